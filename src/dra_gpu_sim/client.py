"""A ``cuda-client`` process under a test's control: the workload of simulated GPUs."""

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_WITHIN_SECONDS = 60.0


class ClientError(RuntimeError):
    """The process said nothing in time, or ended before it answered; the message has what it printed."""


class CudaClient:
    """A process that attaches to a GPU and does what it is told, one line of answer a command.

    ``alloc 5G``, ``free [1G]``, ``info``, ``launch`` (a kernel begins), ``sync`` (it ends), ``fault``, ``sleep 0.5``,
    ``hold``, ``exit``. An answer is ``ok used=MIB`` or an error such as ``CUDA_ERROR_OUT_OF_MEMORY 2``. It is killed
    when the ``with`` block ends.
    """

    def __init__(
        self, program: Path, commands: Sequence[str], environment: Mapping[str, str], user: int | None = None
    ) -> None:
        """Start it; with ``commands`` it does those and ends, without it waits for :meth:`command`."""
        self._process = subprocess.Popen(
            [program, *commands],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            bufsize=0,
            user=user,
            group=user,
        )
        self._buffer = b""
        self._attached: str | None = None

    @property
    def pid(self) -> int:
        """Its pid, in this process's namespace."""
        return self._process.pid

    @property
    def attached(self) -> str:
        """Its first line: ``attached gpu=... mps=... total=...``, or the error that kept it out.

        Raises:
            ClientError: it is still waiting to be let in.
        """
        if self._attached is None:
            self._attached = self.line()
        return self._attached

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def command(self, text: str) -> str:
        """Give a command and return its line of answer.

        Raises:
            ClientError: no answer came in time, or the process has ended.
        """
        self.send(text)
        return self.line()

    def send(self, text: str) -> None:
        """Give a command whose answer is read later, with :meth:`line`."""
        assert self._process.stdin is not None
        _ = self.attached
        try:
            self._process.stdin.write(f"{text}\n".encode())
        except BrokenPipeError:
            raise ClientError(f"cuda-client {self.pid} has ended and cannot {text}") from None

    def line(self, timeout: float = _WITHIN_SECONDS) -> str:
        """The next line it prints.

        Raises:
            ClientError: none came within ``timeout`` seconds, or its output ended.
        """
        assert self._process.stdout is not None
        until = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise ClientError(f"cuda-client {self.pid} said nothing within {timeout:g} s")
                got = os.read(self._process.stdout.fileno(), 65536)
                if not got:
                    raise ClientError(f"cuda-client {self.pid} ended with {self.wait()}, last: {self._buffer!r}")
                self._buffer += got
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def wait(self, timeout: float = _WITHIN_SECONDS) -> int:
        """Its exit status; negative for the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
