"""Which slots of the process table belong to living processes: the mirror of ``nvml/occupancy.c``.

A CUDA process holds a lock on its slot's byte of the state file. The kernel drops it when the process ends, and tells
anyone who asks the pid of the holder as the asker's own pid namespace numbers it.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from dra_gpu_sim.state import MAX_PROCESSES, MAX_SESSIONS, SimProcess, SimState

_FLOCK = struct.Struct("hhqqi4x")


def living(state: SimState, path: Path) -> Iterator[tuple[int, SimProcess]]:
    """The pid and the slot of every process that lives and has a context, in the order of slots.

    Args:
        state: the locked state.
        path: its file.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for index in range(MAX_PROCESSES):
            slot = state.processes[index]
            if not slot.used or not slot.kind:
                continue
            pid = _holder(file, index) if slot.held else _alive(slot)
            if pid is not None:
                yield pid or slot.pid, slot
    finally:
        os.close(file)


def _holder(file: int, slot: int) -> int | None:
    """The pid of the lock's holder; 0 if this pid namespace does not show it, None if nobody holds the lock."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, MAX_SESSIONS + slot, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, request))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _alive(slot: SimProcess) -> int | None:
    try:
        os.kill(slot.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return int(slot.pid)
