"""Opening the state of a simulated node from Python: the same file, lock and wake-ups as the C library uses.

The lock is ``flock`` on the file: the kernel frees it when its holder dies, so that a process killed with -9 in the
middle of a call never holds up the others.
"""

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_gpu_sim.state import LAYOUT_VERSION, MAGIC, MAX_EVENTS, NO_INSTANCE, SimState

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE = 1
_ALL_WAITERS = 2**31 - 1


class StateError(RuntimeError):
    """The file is not the state of a node made by this version of the simulator."""


def create_state(path: Path) -> None:
    """Write a zeroed state with its magic, readable and writable by every process of the node.

    Raises:
        FileExistsError: there is a file already.
    """
    with path.open("xb") as file:
        file.truncate(ctypes.sizeof(SimState))
    path.chmod(0o666)
    with raw_state(path) as state:
        state.layout_version = LAYOUT_VERSION
        state.size = ctypes.sizeof(SimState)
        state.magic = MAGIC


@contextmanager
def raw_state(path: Path) -> Iterator[SimState]:
    """The locked state without a look at its magic; for making one."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield SimState.from_buffer(mmap.mmap(file, ctypes.sizeof(SimState)))
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # closing would not: the mapping holds a duplicate while anyone has the view
        os.close(file)


@contextmanager
def locked(path: Path) -> Iterator[SimState]:
    """The state, to be read and changed while no other process is in a call.

    Raises:
        StateError: the file was made by another version, or is something else.
        FileNotFoundError: there is no node here.
    """
    if path.stat().st_size != ctypes.sizeof(SimState):
        raise StateError(f"{path} is not the state of a simulated node of this version: make the node anew")
    with raw_state(path) as state:
        if state.magic != MAGIC or state.layout_version != LAYOUT_VERSION:
            raise StateError(f"{path} has layout {state.layout_version}, this is {LAYOUT_VERSION}: make the node anew")
        yield state


def wake(state: SimState, word: str) -> None:
    """Wake every process that waits on a futex word of the state (``event_futex`` or ``fault_futex``)."""
    setattr(state, word, (getattr(state, word) + 1) & 0xFFFFFFFF)
    address = ctypes.addressof(state) + getattr(SimState, word).offset
    number = _SYS_FUTEX[os.uname().machine]
    ctypes.CDLL(None).syscall(
        ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_int(_FUTEX_WAKE), ctypes.c_int(_ALL_WAITERS)
    )


def add_event(state: SimState, gpu: int, kind: int, data: int, *, gi: int = NO_INSTANCE, ci: int = NO_INSTANCE) -> None:
    """Put an event on the ring and wake the waits of all event sets."""
    state.event_sequence += 1
    event = state.events[state.event_sequence % MAX_EVENTS]
    event.type, event.data, event.gpu, event.gi, event.ci = kind, data, gpu, gi, ci
    event.sequence = state.event_sequence
    wake(state, "event_futex")
