"""Keys that want work, each once, with a wait that grows while their work fails.

What a key means is looked up anew each time, so that a key which was dropped, or came twice, does no harm: whoever adds
keys adds them again.
"""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.clock import Clock, SystemClock, set_or_elapsed

K = TypeVar("K", bound=Hashable)

_log = structlog.get_logger(__name__)


class WorkQueue(Generic[K]):
    """A bounded queue and its workers.

    Args:
        work: does what a key wants; returns seconds after which to do it again, None when it is done.
        most: keys that may wait; further ones are dropped and counted.
        workers: keys in work at a time.
        attempts: failures in a row after which a key is dropped.
        first_wait: seconds, after the first failure.
        longest_wait: seconds, after many.
        clock: monotonic time.
    """

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        *,
        most: int = 4096,
        workers: int = 4,
        attempts: int = 8,
        first_wait: float = 0.5,
        longest_wait: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self._work = work
        self._most = most
        self._workers = workers
        self._attempts = attempts
        self._waits = (first_wait, longest_wait)
        self._clock = clock or SystemClock()
        self._due: list[tuple[float, int, K]] = []
        self._waiting: dict[K, tuple[float, int]] = {}  # the entry that counts: when, and its number
        self._in_work: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, Backoff] = {}
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self.dropped = 0
        """How many keys were given up: too many waited, or their work failed too often."""
        self.failed = 0
        """How often work failed."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_work)

    def add(self, key: K, after: float = 0.0) -> None:
        """Want work for a key, once, in so many seconds or earlier; returns at once."""
        if key in self._in_work:
            self._again.add(key)
        elif key in self._waiting or len(self) < self._most:
            self._put(key, after)
        else:
            self.dropped += 1
            _log.warning("too much waits to be done; this is left out", key=str(key), waiting=len(self))

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._serve(), name=f"worker {number}")

    async def _serve(self) -> None:
        while True:
            key = await self._next()
            self._in_work.add(key)
            again: float | None = None
            try:
                again = await self._work(key)
            except Exception as error:  # noqa: BLE001 - one key's failure is its own
                again = self._after_failure(key, error)
            else:
                self._failures.pop(key, None)
                if key in self._again:
                    again = 0.0  # whoever added it knows what the work did not
            finally:
                self._in_work.discard(key)
            if key in self._again:  # after a failure not sooner than is good
                self._again.discard(key)
                again = 0.0 if again is None else again
            if again is not None:
                self._put(key, again)

    def _after_failure(self, key: K, error: Exception) -> float | None:
        self.failed += 1
        backoff = self._failures.setdefault(key, Backoff(*self._waits))
        wait = backoff.next(getattr(error, "retry_after", None))
        if backoff.failures >= self._attempts:
            del self._failures[key]
            self.dropped += 1
            _log.error("given up after many failures", key=str(key), failures=self._attempts, reason=str(error))
            return None
        _log.warning("it is tried again", key=str(key), retry_in=round(wait, 1), reason=str(error))
        return wait

    def _put(self, key: K, after: float) -> None:
        entry = self._clock.now() + after, next(self._numbers)
        if key in self._waiting and self._waiting[key] <= entry:
            return
        self._waiting[key] = entry
        heapq.heappush(self._due, (*entry, key))
        self._wake.set()

    async def _next(self) -> K:
        while True:
            while self._due and self._waiting.get(self._due[0][2]) != self._due[0][:2]:
                heapq.heappop(self._due)  # a sooner entry took its place
            left = self._due[0][0] - self._clock.now() if self._due else None
            if left is not None and left <= 0:
                _, _, key = heapq.heappop(self._due)
                del self._waiting[key]
                return key
            self._wake.clear()
            await set_or_elapsed(self._wake, self._clock, left)
