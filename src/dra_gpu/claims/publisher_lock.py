"""Which instance of the plugin publishes: the one that registered last.

During an upgrade two instances run on a node; only one may write slices and taints. The lock is a file lock. An
instance that wants it puts down a wish: a file with the moment of its registration, locked by the wisher as long as it
lives. The holder looks at the wish every quarter of a second and yields to a living one that is newer than its own;
a wish whose writer died binds nobody, so that the older instance takes over again when the newer one crashes.
"""

import asyncio
import fcntl
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from dra_gpu.claims.locks import try_flock

_LOOK_S = 0.25  # how soon an older instance notices a newer one: at most 0.5 s is promised
_TRY_S = 0.05  # how soon the newer one notices that the lock is free


class _Wish(msgspec.Struct):
    """Who wants to publish, and since when (CLOCK_MONOTONIC, one clock for all processes of a boot)."""

    instance: str = ""
    since_ns: int = 0
    pid: int = 0


class PublisherLock:
    """The right to publish for one driver on this node.

    ::

        while True:
            await lock.acquire()
            ...            # publish until:
            await lock.wanted()
            ...            # stop publishing, then
            lock.release()

    Args:
        directory: the state directory that all instances share.
        instance: unique name of this instance, such as its pod's UID; random when empty.
    """

    def __init__(self, directory: Path, instance: str = "") -> None:
        self._lock_path = directory / "locks" / "publisher.lock"
        self._wish_path = directory / "publisher.wanted"
        self._instance = instance or secrets.token_hex(8)
        self._since_ns = time.monotonic_ns()
        self._lock_descriptor: int | None = None
        self._wish_descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this instance is the publisher."""
        return self._lock_descriptor is not None

    def registered(self) -> None:
        """Note that the kubelet has just registered this instance: it is now the newest."""
        self._since_ns = time.monotonic_ns()

    async def acquire(self) -> None:
        """Wait until this instance is the publisher: older ones are asked to yield, newer ones are waited for.

        Raises:
            OSError: the state directory cannot be written.
        """
        while not self.held:
            if self._newer_wish() is None:
                self._put_down_wish()
                if self._try_lock():
                    return
                await asyncio.sleep(_TRY_S)
            else:
                await asyncio.sleep(_LOOK_S)

    async def wanted(self) -> None:
        """Wait until a newer instance wants to publish; the caller then stops publishing and releases."""
        while self._newer_wish() is None:  # noqa: ASYNC110 - the other process can set no event of ours
            await asyncio.sleep(_LOOK_S)

    def release(self) -> None:
        """Let another instance publish. The wish stays: should the newer one die, this one may follow it."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def close(self) -> None:
        """Release, and want nothing any more."""
        self.release()
        if self._wish_descriptor is not None:
            os.close(self._wish_descriptor)
            self._wish_descriptor = None

    def _try_lock(self) -> bool:
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_flock(descriptor):
            os.close(descriptor)
            return False
        self._lock_descriptor = descriptor
        return True

    def _newer_wish(self) -> _Wish | None:
        """Return the wish of another living instance that is newer than this one."""
        try:
            descriptor = os.open(self._wish_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            wish = msgspec.json.decode(os.pread(descriptor, 4096, 0), type=_Wish)
            mine = (self._since_ns, self._instance)
            if wish.instance == self._instance or (wish.since_ns, wish.instance) < mine:
                return None
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None  # nobody holds it: the wisher is dead
        except msgspec.DecodeError:
            return None
        else:
            return wish
        finally:
            os.close(descriptor)

    def _put_down_wish(self) -> None:
        """Put down this instance's wish unless it stands there already."""
        wish = _Wish(self._instance, self._since_ns, os.getpid())
        content = msgspec.json.encode(wish)
        with suppress(FileNotFoundError):
            if self._wish_descriptor is not None and self._wish_path.read_bytes() == content:
                return
        temporary = self._wish_path.with_name(f".{self._wish_path.name}.{self._instance}")
        self._wish_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, content)
            temporary.rename(self._wish_path)
        except OSError:
            os.close(descriptor)
            raise
        if self._wish_descriptor is not None:
            os.close(self._wish_descriptor)
        self._wish_descriptor = descriptor
