"""The control daemon as a process: found by its pid file, watched and ended by a pidfd, which means no other process.

A pid alone proves nothing: it may have been given to another process since, and with classic MPS the containers of a
share can write to the pid file, or put anything in its place. A daemon is ours when its environment names our pipe
directory and it runs in our pid namespace, where no container's processes do.
Source: pidfd_open(2); MPS documentation r615, "Legacy MPS v2 Interface" (the pid file).
"""

import asyncio
import contextlib
import os
import select
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

PID_FILE = "nvidia-cuda-mps-control.pid"
_DAEMON, _SERVER = (b"nvidia-cuda-mps-control", b"-d"), (b"nvidia-cuda-mps-server",)
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
    found = _running(_DAEMON, pipe)
    for other in found[1:]:
        other.close()
    return found[0] if found else None


def servers(pipe: Path) -> list[DaemonProcess]:
    """Return the servers of a pipe directory's daemon; they hold the GPU, and may outlive a daemon that was killed."""
    return _running(_SERVER, pipe)


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


def _running(command: tuple[bytes, ...], pipe: Path) -> list[DaemonProcess]:
    """Return the processes that work for a pipe directory and were started by a command with these arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            program, *arguments = (entry / "cmdline").read_bytes().split(b"\0")
            if program.rpartition(b"/")[2] == command[0] and {*command[1:]} <= {*arguments}:
                held = hold(int(entry.name), pipe)
                found += [] if held is None else [held]
    return found


def _works_for(pid: int, pipe: Path) -> bool:
    process = Path(f"/proc/{pid}")
    try:
        environment = (process / "environ").read_bytes()
        ours = (process / "ns/pid").stat().st_ino == Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return False
    return ours and _PIPE + os.fsencode(pipe) in environment.split(b"\0")
