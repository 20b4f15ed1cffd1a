"""The control daemon as a process: found by its pid file, watched and ended by a pidfd, which means no other process.

A pid alone proves nothing: it may have been given to another process since, and with classic MPS the containers of a
share can write to the pid file, or put anything in its place. A daemon is ours when its environment names our pipe
directory. Source: pidfd_open(2); MPS documentation r615, "Legacy MPS v2 Interface" (the pid file).
"""

import asyncio
import contextlib
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PID_FILE = "nvidia-cuda-mps-control.pid"
_DAEMON, _IN_BACKGROUND = b"nvidia-cuda-mps-control", b"-d"
_PIPE = b"CUDA_MPS_PIPE_DIRECTORY="
_MAX_PID_TEXT = 32


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
    """Return the daemon that the pid file of a pipe directory names; None when it does not run."""
    return hold(_pid_in(pipe / PID_FILE), pipe)


def search(pipe: Path) -> DaemonProcess | None:
    """Return the daemon of a pipe directory whatever its pid file says, by a look at all processes."""
    for pid, command in _commands():
        if Path(os.fsdecode(command[0])).name.encode() == _DAEMON and _IN_BACKGROUND in command[1:]:
            found = hold(pid, pipe)
            if found is not None:
                return found
    return None


def children(pid: int, pipe: Path) -> list[DaemonProcess]:
    """Return the processes that a daemon has started for its pipe directory: its servers."""
    try:
        pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [held for child in pids if (held := hold(int(child), pipe)) is not None]


def hold(pid: int, pipe: Path) -> DaemonProcess | None:
    """Return the process if it lives and works for a pipe directory (a daemon or one of its servers)."""
    if pid <= 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    process = DaemonProcess(pid, pidfd)
    if process.alive and _works_for(pid, pipe):
        return process
    process.close()
    return None


def _pid_in(file: Path) -> int:
    """Return the number in a file; 0 where there is none. Waits for nobody and follows no link."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return int(os.read(descriptor, _MAX_PID_TEXT)) if regular else 0
    except (OSError, ValueError):
        return 0
    finally:
        os.close(descriptor)


def _commands() -> Iterator[tuple[int, list[bytes]]]:
    """Yield every process with its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")


def _works_for(pid: int, pipe: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return _PIPE + os.fsencode(pipe) in environment.split(b"\0")
