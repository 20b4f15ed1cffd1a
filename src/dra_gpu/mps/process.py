"""The control daemon as a process: found by its pid file, watched and ended by a pidfd, which means no other process.

A pid alone proves nothing: it may have been given to another process since. A daemon is ours when its environment names
our pipe directory. Source: pidfd_open(2); MPS documentation r615, "Legacy MPS v2 Interface" (the pid file).
"""

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

PID_FILE = "nvidia-cuda-mps-control.pid"
_PIPE = b"CUDA_MPS_PIPE_DIRECTORY="


class DaemonProcess:
    """A running process; holds a pidfd until `close`.

    Attributes:
        pid: in this process' pid namespace.
        since: when it was found, on the monotonic clock.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.since = time.monotonic()
        self._pidfd = pidfd
        self._watched = False

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        if self._pidfd < 0:
            return False
        poll = select.poll()  # select() cannot take descriptors above 1023
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def watch(self, died: Callable[[], None]) -> None:
        """Have `died` called once, on the running loop, when the process ends."""
        self._watched = True
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended, died)

    def unwatch(self) -> None:
        """Have nothing called any more."""
        if self._watched:
            self._watched = False
            asyncio.get_running_loop().remove_reader(self._pidfd)

    def _ended(self, died: Callable[[], None]) -> None:
        self.unwatch()
        died()

    async def wait(self, seconds: float) -> bool:
        """Wait for the process' end; whether it came in time."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.unwatch()
        loop.add_reader(self._pidfd, ended.set)
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._pidfd)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended gets none."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Watch no longer; the process goes on."""
        self.unwatch()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def find(pipe: Path) -> DaemonProcess | None:
    """Return the daemon of a pipe directory; None when it does not run."""
    try:
        pid = int((pipe / PID_FILE).read_text().strip())
    except (OSError, ValueError):
        return None
    return hold(pid, pipe)


def hold(pid: int, pipe: Path) -> DaemonProcess | None:
    """Return the process if it lives and works for a pipe directory (a daemon or one of its servers)."""
    if pid <= 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    process = DaemonProcess(pid, pidfd)
    if process.alive and _works_for(pid, pipe):
        return process
    process.close()
    return None


def _works_for(pid: int, pipe: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return _PIPE + os.fsencode(pipe) in environment.split(b"\0")
