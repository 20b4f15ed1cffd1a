"""Locks that hold between the instances of the plugin on a node, fair within one.

Within an instance, an asyncio lock serves in the order of arrival. Between instances (two run during an upgrade), the
kernel's file locks decide: a process that dies, however it dies, lets go of them. Only when the other instance has a
lock is it polled for. Every wait has a deadline, on the loop's monotonic clock.
"""

import asyncio
import fcntl
import json
import os
import re
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

_POLL_S = 0.02  # while another instance has the lock: short beside any hardware call, idle otherwise
_POLL_CAP_S = 0.1
_UNSAFE = re.compile(r"[^0-9A-Za-z._-]")
_SHOWN = 400


class LockTimeoutError(Exception):
    """A lock did not come free by its deadline; the message names the lock and who has it."""


@dataclass(slots=True)
class _Entry:
    """A lock of this process, and how many want or have it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    holder: str = ""


class KeyedLocks:
    """Locks by key within this process, made when wanted and dropped when nobody wants them."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[str, _Entry] = {}

    def is_wanted(self, key: str) -> bool:
        """Tell whether somebody has the lock or waits for it."""
        return key in self._entries

    @asynccontextmanager
    async def hold(self, key: str, holder: str, deadline: float) -> AsyncIterator[None]:
        """Hold the lock of a key, in the order of asking.

        Args:
            key: what is locked.
            holder: who asks, for the errors of those who wait.
            deadline: on the loop's clock.

        Raises:
            LockTimeoutError: not free by the deadline.
        """
        entry = self._entries.setdefault(key, _Entry())
        entry.users += 1
        try:
            await self._acquire(entry, key, deadline)
            entry.holder = holder
            try:
                yield
            finally:
                entry.holder = ""
                entry.lock.release()
        finally:
            entry.users -= 1
            if not entry.users:
                self._entries.pop(key, None)

    async def _acquire(self, entry: _Entry, key: str, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await entry.lock.acquire()
        except TimeoutError:
            raise LockTimeoutError(
                f"the lock of {self._what} {key} is held by {entry.holder} of this instance"
            ) from None


class ClaimLocks:
    """One lock a claim: calls for the same claim follow each other, also across instances.

    Between instances the lock is one byte of one file, chosen by a hash of the UID: nothing is left behind, whatever
    the number of claims. Source: fcntl_locking(2), open file description locks.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "claims.lock"
        self._local = KeyedLocks("claim")
        self._descriptor: int | None = None

    def is_wanted(self, uid: str) -> bool:
        """Tell whether a call for this claim runs or waits in this instance."""
        return self._local.is_wanted(uid)

    @asynccontextmanager
    async def hold(self, uid: str, holder: str, deadline: float) -> AsyncIterator[None]:
        """Hold a claim's lock.

        Raises:
            LockTimeoutError: another call for the claim did not end by the deadline.
            OSError: the lock file cannot be made.
        """
        async with self._local.hold(uid, holder, deadline):
            descriptor = self._open()
            offset = _offset(uid)
            try:
                await _until(lambda: _try_byte(descriptor, offset), deadline)
            except TimeoutError:
                raise LockTimeoutError(f"the lock of claim {uid} is held by another instance of the plugin") from None
            try:
                yield
            finally:
                _lock_byte(descriptor, fcntl.F_UNLCK, offset)

    def close(self) -> None:
        """Close the lock file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = _open(self._path)
        return self._descriptor


class GpuLocks:
    """One lock a GPU, under which its settings are read, changed and restored.

    The holder's process and claim stand in the lock's file while it is held, for the errors of those who wait.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._local = KeyedLocks("GPU")
        self._descriptors: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, keys: Sequence[str], holder: str, deadline: float) -> AsyncIterator[None]:
        """Hold the locks of several GPUs, taken in their order, so that nobody waits in a circle.

        Args:
            keys: slots of the GPUs in PCI order.
            holder: who asks, for the errors of those who wait.
            deadline: on the loop's clock.

        Raises:
            LockTimeoutError: one of them did not come free by the deadline.
            OSError: a lock file cannot be made.
        """
        async with AsyncExitStack() as stack:
            for key in sorted(keys):
                await stack.enter_async_context(self._hold_one(key, holder, deadline))
            yield

    def close(self) -> None:
        """Close the lock files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    @asynccontextmanager
    async def _hold_one(self, key: str, holder: str, deadline: float) -> AsyncIterator[None]:
        async with self._local.hold(key, holder, deadline):
            descriptor = self._open(key)
            try:
                await _until(lambda: try_flock(descriptor), deadline)
            except TimeoutError:
                raise LockTimeoutError(f"the lock of GPU {key} is held by {_read_holder(descriptor)}") from None
            _write_holder(descriptor, holder)
            try:
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _open(self, key: str) -> int:
        if key not in self._descriptors:
            self._descriptors[key] = _open(self._directory / f"{_UNSAFE.sub('_', key)}.lock")
        return self._descriptors[key]


def try_flock(descriptor: int) -> bool:
    """Take an exclusive lock on a whole file if nobody has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


async def _until(attempt: Callable[[], bool], deadline: float) -> None:
    """Repeat a non-blocking attempt until it succeeds.

    Raises:
        TimeoutError: it did not by the deadline.
    """
    pause = _POLL_S
    loop = asyncio.get_running_loop()
    while not attempt():
        if loop.time() >= deadline:
            raise TimeoutError
        await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
        pause = min(pause * 2, _POLL_CAP_S)


def _offset(uid: str) -> int:
    """Return the byte that stands for a claim: 62 bits of its hash, which off_t takes."""
    return int.from_bytes(sha256(uid.encode()).digest()[:8], "big") >> 2


def _try_byte(descriptor: int, offset: int) -> bool:
    try:
        _lock_byte(descriptor, fcntl.F_WRLCK, offset)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by POSIX' choice
        return False
    return True


def _lock_byte(descriptor: int, kind: int, offset: int) -> None:
    # struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for such locks), with native padding.
    flock = struct.pack("hhqqi4x", kind, os.SEEK_SET, offset, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, flock)


def _write_holder(descriptor: int, holder: str) -> None:
    with suppress(OSError):  # a full disk only costs others the name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "claim": holder}).encode(), 0)


def _read_holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, _SHOWN, 0))
        return f"process {int(found['pid'])} for claim {str(found['claim'])[:_SHOWN]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another instance of the plugin"
