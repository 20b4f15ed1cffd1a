"""Lets the instances of the driver on a node ask each other to let go of its GPUs for a moment.

During an upgrade two live side by side. One that waits for NVML's events has every GPU open meanwhile, and as long as
it has, NVML changes no GPU's MIG mode for the other one. So whoever needs the GPUs closed says so by a lock on a file;
whoever waits looks at it with every wait, leaves, and comes back when the lock is gone. A killed process holds no lock.
Where the files cannot be made nobody is asked, and a mode that is then refused is told with its holder's name.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOK_SECONDS = 0.05
_LEAVE_SECONDS = 5.0  # they look twice a second
# Somebody who is asked to stay away longer than a mode takes to change comes back all the same.
_AWAY_SECONDS = 15.0


class Neighbours:
    """Who waits for events on this node, and who wants them to leave; this process is among both.

    Args:
        directory: where the instances' locks are; None for an instance that has no others beside it.
    """

    def __init__(self, directory: Path | None) -> None:
        self._watching = None if directory is None else directory / "gpus-watched.lock"
        self._wanted = None if directory is None else directory / "gpus-wanted.lock"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be one of those that have GPUs open for long."""
        with _shared(self._watching):
            yield

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Ask everybody who has GPUs open for long to leave, as long as the block lasts."""
        with _shared(self._wanted):
            yield

    @property
    def watched(self) -> bool:
        """Whether anybody has GPUs open for long."""
        return _held(self._watching)

    @property
    def wanted(self) -> bool:
        """Whether anybody asks for them: who can leave should."""
        return _held(self._wanted)

    async def gone(self) -> None:
        """Wait until nobody asks any more, for some seconds at most."""
        await _as_long_as(lambda: self.wanted, _AWAY_SECONDS)

    async def left(self) -> None:
        """Wait until nobody has GPUs open for long any more, for some seconds at most."""
        await _as_long_as(lambda: self.watched, _LEAVE_SECONDS)


async def _as_long_as(so: Callable[[], bool], seconds: float) -> None:
    """Wait as long as something is so; another process' lock is no event of this one."""
    until = asyncio.get_running_loop().time() + seconds
    while so() and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - as above
        await asyncio.sleep(_LOOK_SECONDS)


@contextmanager
def _shared(file: Path | None) -> Iterator[None]:
    descriptor = None
    with suppress(OSError):
        descriptor = None if file is None else os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if descriptor is None:
        yield
        return
    try:
        # Whoever holds it alone only looks, for microseconds.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _held(file: Path | None) -> bool:
    if file is None:
        return False
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # nobody has ever held it
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
