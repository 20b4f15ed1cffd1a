"""A local copy of a collection that follows the API server through every fault that a list and a watch can have.

Promises: whatever happens in between (closed or silent streams, compaction, an absent server, rotated credentials),
the store ends up equal to the server's state, and every difference on the way, lost deletions among them, is
reported exactly once. It never lists more than once a second. Errors are waited out, not raised: `run` ends only by
cancellation.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Listing, Selection, WatchEvent, WatchOptions
from dra_gpu.apiserver.resources import KubernetesObject, Resource

T = TypeVar("T", bound=KubernetesObject)
Key = tuple[str, str]
_FAILURES_BEFORE_LIST = 5


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One difference: `before` is None for a new object, `after` is None for a deleted one."""

    before: T | None
    after: T | None


@dataclass(frozen=True, slots=True)
class ReflectorLimits:
    """Times in seconds, and their reasons.

    Attributes:
        idle: a watch that is silent for longer is opened anew, which shows at once whether the server is there. Silence
            alone shows nothing: bookmarks come about once a minute only where something of the kind has changed since
            the watch began (K8s v1.37 apiserver/pkg/storage/cacher/cache_watcher.go), and never for Events, which no
            cache has.
        watch_shortest, watch_longest: how long the server is asked to keep a watch, drawn anew each time, so that
            nodes that connected together do not reconnect together.
        between_lists: at least so long between two lists, whatever the server does.
        first_wait, longest_wait: bounds of the exponential wait after failures.
        line: longest event in bytes.
    """

    idle: float = 70.0
    watch_shortest: int = 290
    watch_longest: int = 350
    between_lists: float = 1.0
    first_wait: float = 0.25
    longest_wait: float = 30.0
    line: int = 8 * 1024 * 1024


class Reflector(Generic[T]):
    """List and watch one selection of one kind.

    Args:
        api: the client.
        resource: the kind.
        selection: which objects.
        on_change: called, on the loop, after the store has changed; must not block.
        on_listed: called after every list was taken over, with the clock's time from before it was asked for.
        on_problem: called with every failure, for logs and metrics.
    """

    def __init__(
        self,
        api: KubernetesApi,
        resource: Resource[T],
        selection: Selection | None = None,
        *,
        on_change: Callable[[Change[T]], None] | None = None,
        on_listed: Callable[[float], None] | None = None,
        on_problem: Callable[[str], None] | None = None,
        limits: ReflectorLimits | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._selection = selection or Selection()
        self._on_change = on_change or (lambda _change: None)
        self._on_listed = on_listed or (lambda _at: None)
        self._on_problem = on_problem or (lambda _text: None)
        self._limits = limits or ReflectorLimits()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, protects nothing
        self._backoff = Backoff(self._limits.first_wait, self._limits.longest_wait, self._rng)
        self._store: dict[Key, T] = {}
        self._version: str | None = None
        self._listed_at: float | None = None
        self._heard_at = self._clock.now()
        self.synced = asyncio.Event()
        """Set once the first list has been taken over."""

    @property
    def objects(self) -> Mapping[Key, T]:
        """The present copy, by (namespace, name). A live view: copy it before you wait for anything."""
        return MappingProxyType(self._store)

    @property
    def age(self) -> float:
        """Seconds since the server was last heard of; where nothing changes that is when it took the present watch."""
        return max(0.0, self._clock.now() - self._heard_at)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        while True:
            wait = await self._round()
            if wait > 0:
                await self._clock.sleep(wait)

    async def _round(self) -> float:
        """List if necessary, then watch until it ends; returns how long to wait before the next round."""
        try:
            if self._version is None:
                await self._list()
            heard_before = self._heard_at
            started = self._clock.now()
            await self._watch()
        except errors.WatchIdleError:
            return self._quiet(started)
        except errors.GoneError as error:
            self._version = None
            if not self._backoff.failures:  # of a kind that changes seldom the version grows old, and that is all
                return self._note_failure()
            self._on_problem(str(error))
            return self._wait_after(error)
        except (errors.LineTooLongError, errors.BadRequestError, errors.UnreadableAnswerError) as error:
            self._version = None  # what cannot be read by watching (or asked for) is shown by a list
            self._on_problem(str(error))
            return self._wait_after(error)
        except errors.ApiError as error:
            self._on_problem(str(error))
            if self._backoff.failures >= _FAILURES_BEFORE_LIST:
                self._version = None  # a server restored from an older backup never reaches the version we know
            return self._wait_after(error)
        if self._heard_at > heard_before or self._clock.now() - started >= self._limits.between_lists:
            return self._quiet(started)
        return self._backoff.next()  # accepted and closed at once, again and again: no reason to hurry

    def _quiet(self, started: float) -> float:
        """The server took a watch at `started` and kept it: it was there, and the next watch begins at once."""
        self._heard_at = max(self._heard_at, started)
        self._backoff.reset()
        return 0.0

    def _wait_after(self, error: errors.ApiError) -> float:
        return self._backoff.next(error.retry_after)

    def _note_failure(self) -> float:
        """Count a failure that is answered at once the first time."""
        self._backoff.next()
        return 0.0

    async def _list(self) -> None:
        now = self._clock.now()
        if self._listed_at is not None and now - self._listed_at < self._limits.between_lists:
            await self._clock.sleep(self._limits.between_lists - (now - self._listed_at))
        self._listed_at = asked_at = self._clock.now()
        listing = await self._api.list(self._resource, self._selection)
        self._heard_at = self._clock.now()
        self._version = listing.resource_version
        self._take_over(listing)
        self._on_listed(asked_at)
        self.synced.set()

    def _take_over(self, listing: Listing[T]) -> None:
        for problem in listing.undecodable:
            self._on_problem(f"{self._resource} {problem}; the object is ignored: correct or delete it")
        fresh = {_key(obj): obj for obj in listing.items}
        for key in [key for key in self._store if key not in fresh]:
            self._on_change(Change(self._store.pop(key), None))
        for key, obj in fresh.items():
            self._put(key, obj)

    def _put(self, key: Key, obj: T) -> None:
        before = self._store.get(key)
        if before is not None and before.metadata.uid != obj.metadata.uid:
            del self._store[key]  # deleted and made again while we were blind: that is two changes
            self._on_change(Change(before, None))
            before = None
        if before is not None and before.metadata.resource_version == obj.metadata.resource_version:
            return
        self._store[key] = obj
        self._on_change(Change(before, obj))

    async def _watch(self) -> None:
        assert self._version is not None
        options = WatchOptions(
            resource_version=self._version,
            timeout_seconds=self._rng.randint(self._limits.watch_shortest, self._limits.watch_longest),
            idle_limit=self._limits.idle,
            line_limit=self._limits.line,
        )
        await self._api.watch(self._resource, self._selection, options, self._deliver)

    def _deliver(self, event: WatchEvent[T]) -> None:
        self._heard_at = self._clock.now()
        self._backoff.reset()
        self._version = event.resource_version
        if event.problem:
            self._on_problem(f"{self._resource} {event.problem}; the object is ignored: correct or delete it")
        if event.object is None:
            return
        key = _key(event.object)
        if event.type != "DELETED":
            self._put(key, event.object)
        elif (before := self._store.pop(key, None)) is not None:
            self._on_change(Change(before, None))


def _key(obj: KubernetesObject) -> Key:
    return obj.metadata.namespace, obj.metadata.name
