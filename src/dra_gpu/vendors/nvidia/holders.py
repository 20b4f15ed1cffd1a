"""Who holds a device node open: the answer to "in use by another client", with process id and command.

A process is found by the file descriptors that procfs shows of it, so only where this process sees the host's (in a
container: `hostPID`, or the host's procfs mounted). This very process is never the holder: what it opens itself it
closes, and NVML does not count its own caller.
"""

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from dra_gpu.vendors.processes import command

_MOST_NAMED = 5


def holders(processes: Path, nodes: Collection[Path]) -> frozenset[int]:
    """Return the ids of the other processes that have one of the nodes open; those that cannot be read are left out.

    Args:
        processes: where procfs is mounted.
        nodes: device nodes; one that does not exist is held by nobody.
    """
    wanted = frozenset(filter(None, map(_identity, map(str, nodes))))
    return frozenset(pid for pid in _pids(processes) if wanted and _has_open(processes / str(pid), wanted))


def described(processes: Path, pids: Iterable[int]) -> str:
    """Return some processes as a message names them: `pid 4711 (dcgm-exporter -f /etc/dcgm.csv)`, the first five.

    Our own is not among them; empty when none is left.
    """
    others = sorted(set(pids) - {os.getpid()})
    named = [_named(processes, pid) for pid in others[:_MOST_NAMED]]
    more = len(others) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _pids(processes: Path) -> Iterator[int]:
    try:
        names = os.listdir(processes)  # noqa: PTH208 - names alone, of thousands
    except OSError:
        return
    for name in names:
        if name.isdecimal() and int(name) != os.getpid():
            yield int(name)


def _has_open(process: Path, wanted: frozenset[tuple[str, int, int]]) -> bool:
    directory = f"{process}/fd"
    try:
        numbers = os.listdir(directory)  # noqa: PTH208 - as above
    except OSError:  # it has ended, or is none of our business
        return False
    return any(_identity(f"{directory}/{number}") in wanted for number in numbers)


def _identity(path: str) -> tuple[str, int, int] | None:
    """Tell two names of one thing: a device is its number, under whatever path and in whatever container."""
    try:
        found = os.stat(path)  # noqa: PTH116 - plain texts, as above
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode):
        return ("device", found.st_rdev, 0)
    return ("file", found.st_dev, found.st_ino)


def _named(processes: Path, pid: int) -> str:
    started = command(processes, pid)
    return f"pid {pid} ({started})" if started else f"pid {pid}"
