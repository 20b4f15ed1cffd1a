"""Keeps the ResourceSlices of one driver on one node equal to the inventory.

Promises: an unchanged pool costs no write, not even after a restart; slices that somebody wipes are back within two
seconds; a pool is never published half-safe (counter sets are written first and read back); nothing is published
before the kubelet has registered the plugin, while another instance is the newer one, or while a foreign driver
holds the node; content that the server refuses is not sent again; slices stay when the process ends. Errors are
reported and retried, never raised.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_gpu.api.resource_v1 import OwnerReference, ResourceSlice
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.clock import Clock, SystemClock, set_or_elapsed
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.publish_reports import (
    ForeignSlices,
    LeftOut,
    Published,
    PublishFailed,
    PublishReport,
    Rejected,
    WatchFailed,
    Wiped,
    Withdrawn,
)
from dra_gpu.apiserver.rate_limit import RateLimit
from dra_gpu.apiserver.reflector import Change, Reflector, ReflectorLimits
from dra_gpu.apiserver.resources import NODES, RESOURCE_SLICES
from dra_gpu.apiserver.slice_cache import SliceCache
from dra_gpu.apiserver.slice_diff import PoolIdentity, is_ours, plan_slices
from dra_gpu.apiserver.slice_writer import SliceWriter, UnsafeDropError
from dra_gpu.inventory import validation
from dra_gpu.inventory.slices import SliceContent

_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class PublisherLimits:
    """Times in seconds, rates per second, and their reasons.

    Attributes:
        settle: after a foreign deletion, so that the rest of a wipe is seen before anything is written.
        registration: after a wipe, how long the kubelet is given to register the plugin again. A pod that is
            scheduled before that fails its Prepare and comes back only after a minute, so waiting is worth it; with
            it, and the writes, slices are back within two seconds.
        recent_registration: a registration this short before the wipe belongs to it.
        lock_poll: how often `may_publish` is asked while it says no.
        first_wait, longest_wait: bounds of the exponential wait after failures.
        unsafe_retry: how often a server that dropped counters is tried again.
        requests_per_second, burst: upper bound on requests.
    """

    settle: float = 0.05
    registration: float = 1.4
    recent_registration: float = 2.0
    lock_poll: float = 1.0
    first_wait: float = 0.2
    longest_wait: float = 30.0
    unsafe_retry: float = 300.0
    requests_per_second: float = 10.0
    burst: int = 20


class SlicePublisher:
    """Publishes one pool.

    Args:
        api: the client.
        identity: driver, node and pool.
        on_report: called, on the loop, with everything worth telling; must not block.
        may_publish: tells whether this instance is the one that publishes (the newest on the node). Asked before
            every round; call :meth:`wake` when the answer changes, else it is asked once a second.
        on_settled: called, on the loop, with what is wanted whenever the server is known to hold exactly that; with
            nothing when it is known to hold nothing of ours. It may come again with the same.
    """

    def __init__(
        self,
        api: KubernetesApi,
        identity: PoolIdentity,
        *,
        on_report: Callable[[PublishReport], None] | None = None,
        may_publish: Callable[[], bool] | None = None,
        on_settled: Callable[[tuple[SliceContent, ...]], None] | None = None,
        limits: PublisherLimits | None = None,
        reflector_limits: ReflectorLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._identity = identity
        self._report = on_report or (lambda _report: None)
        self._may_publish = may_publish or (lambda: True)
        self._on_settled = on_settled or (lambda _contents: None)
        self._limits = limits or PublisherLimits()
        self._clock = clock or SystemClock()
        self._wake = asyncio.Event()
        self._reflector = Reflector(
            api,
            RESOURCE_SLICES,
            Selection(field_selector=f"spec.driver={identity.driver},spec.nodeName={identity.node}"),
            on_change=self._on_change,
            on_listed=self._on_listed,
            on_problem=self._on_watch_problem,
            limits=reflector_limits,
            clock=self._clock,
        )
        self._cache = SliceCache(self._reflector.objects, self._clock)
        rate = RateLimit(self._clock, self._limits.requests_per_second, self._limits.burst)
        self._rate = rate
        self._writer = SliceWriter(api, self._cache, rate, self._report)
        self._backoff = Backoff(self._limits.first_wait, self._limits.longest_wait)
        self._wanted: tuple[SliceContent, ...] | None = None
        self._withdrawal = ""
        self._owner: OwnerReference | None = None
        self._registered = False
        self._registered_at = -_FOREVER
        self._wiped_at: float | None = None
        self._wiped: list[str] = []
        self._not_before = -_FOREVER
        self._blocked_until: float | None = None
        self._failure: tuple[type, str, str, int] | None = None
        self._foreign: tuple[str, ...] = ()
        self._left_out: tuple[validation.Problem, ...] = ()
        self._generation = 1
        self.settled = asyncio.Event()
        """Set while the server is known to hold exactly what is wanted."""

    @property
    def watch_age(self) -> float:
        """Seconds since the server was last heard of about slices."""
        return self._reflector.age

    def publish(self, contents: Sequence[SliceContent]) -> None:
        """Want these slices from now on; returns at once. An empty sequence is published as one empty slice."""
        wanted = tuple(contents) or (SliceContent(),)
        if wanted != self._wanted or self._withdrawal:
            self._wanted, self._withdrawal, self._blocked_until = wanted, "", None
            self.settled.clear()
            self.wake()

    def withdraw(self, reason: str) -> None:
        """Want no slices from now on, until :meth:`publish` is called; returns at once. Ours are deleted."""
        if not self._withdrawal:
            self._withdrawal = reason
            self.settled.clear()
            self.wake()

    def set_registered(self, registered: bool) -> None:  # noqa: FBT001 - the one fact that this call is about
        """Tell whether the kubelet has the plugin registered; call it at every registration, each one counts."""
        self._registered = registered
        if registered:
            self._registered_at = self._clock.now()
        self.wake()

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled. Slices stay when it ends: the next instance continues with them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name="slice-reflector")
            group.create_task(self._work(), name="slice-publisher")

    async def _work(self) -> None:
        await self._reflector.synced.wait()
        while True:
            self._wake.clear()
            wait = await self._round()
            await self._wait_for_wake(wait)

    async def _wait_for_wake(self, seconds: float | None) -> None:
        if seconds is not None and seconds <= 0:
            return
        await set_or_elapsed(self._wake, self._clock, None if seconds == _FOREVER else seconds)

    async def _round(self) -> float | None:
        """Do what can be done now; returns how long to wait for the next round, None for no limit."""
        self._notice_foreign()
        if self._wanted is None and not self._withdrawal:
            return None
        if not self._may_publish():
            return self._limits.lock_poll
        pause = self._pause()
        if pause is not None:
            return pause
        try:
            if self._foreign or self._withdrawal:
                await self._withdraw_ours()
            elif self._registered:
                await self._synchronise()
        except errors.ApiError as error:
            return await self._after_error(error)
        except UnsafeDropError:
            self._blocked_until = self._clock.now() + self._limits.unsafe_retry
            return self._limits.unsafe_retry
        self._backoff.reset()
        self._failure = None
        return None

    def _pause(self) -> float | None:
        """Return the seconds for which nothing may be done, None if now is a good time."""
        now = self._clock.now()
        until = self._not_before
        if self._wiped_at is not None:
            until = max(until, self._wiped_at + self._limits.settle)
            if self._registered_at < self._wiped_at - self._limits.recent_registration:
                until = max(until, self._wiped_at + self._limits.registration)
        if self._blocked_until is not None and not (self._foreign or self._withdrawal):
            until = max(until, self._blocked_until)
        return until - now if until > now else None

    async def _synchronise(self) -> None:
        assert self._wanted is not None
        contents = self._checked(self._wanted)
        if contents is None:
            return
        self._announce_wipe()
        wanted = self._wanted
        owner = await self._owner_reference()
        plan = plan_slices(
            self._identity,
            contents,
            [one for one in self._cache.snapshot() if is_ours(one)],
            owner,
            accepted=self._writer.accepted,
            last_generation=self._generation,
        )
        if not plan.is_empty:
            await self._writer.execute(plan)
        self._generation = plan.generation
        if wanted == self._wanted and not self._withdrawal:
            self.settled.set()
            self._on_settled(wanted)
        if not plan.is_empty:
            writes = len(plan.deletes) + len(plan.writes)
            self._report(Published(plan.generation, len(contents), writes))

    async def _withdraw_ours(self) -> None:
        ours = [one for one in self._cache.snapshot() if is_ours(one)]
        self._wiped_at = None
        self._wiped.clear()
        if ours:
            await self._writer.delete(ours)
            reason = self._withdrawal or f"slices of another driver are there: {', '.join(self._foreign)}"
            self._report(Withdrawn(reason, len(ours)))
        if not self._foreign:
            self.settled.set()
            self._on_settled(())

    def _checked(self, wanted: tuple[SliceContent, ...]) -> tuple[SliceContent, ...] | None:
        """Return what may be sent of the wanted content; None if nothing of it may."""
        try:
            contents, problems = validation.check(self._identity.driver, self._identity.pool, wanted)
        except validation.InvalidPoolError as error:
            self._block(str(error))
            return None
        if tuple(problems) != self._left_out:
            self._left_out = tuple(problems)
            if problems:
                self._report(LeftOut(self._left_out))
        return contents

    async def _owner_reference(self) -> OwnerReference:
        if self._owner is None:
            await self._rate.acquire()
            node = await self._api.get(NODES, self._identity.node)
            self._owner = OwnerReference("v1", "Node", node.metadata.name, node.metadata.uid, controller=True)
        return self._owner

    async def _after_error(self, error: errors.ApiError) -> float:
        if isinstance(error, (errors.InvalidError, errors.BadRequestError)):
            self._block(str(error))
            return _FOREVER
        wait = self._backoff.next(error.retry_after)
        self._not_before = self._clock.now() + wait
        kind = (type(error), error.verb, error.resource, error.status)
        expected = isinstance(error, (errors.ConflictError, errors.NotFoundError)) and error.resource == str(
            RESOURCE_SLICES
        )
        if kind != self._failure and not expected:
            self._failure = kind
            self._report(PublishFailed(str(error), wait))
        return wait

    def _block(self, message: str) -> None:
        """Do not send this content again: only another one can succeed."""
        self._blocked_until = _FOREVER
        self._report(Rejected(message))

    def _notice_foreign(self) -> None:
        foreign = tuple(one.metadata.name for one in self._cache.snapshot() if not is_ours(one))
        if foreign != self._foreign:
            self._foreign = foreign
            self.settled.clear()
            self._report(ForeignSlices(foreign))

    def _announce_wipe(self) -> None:
        if self._wiped_at is not None:
            self._report(Wiped(tuple(self._wiped)))
            self._wiped_at = None
            self._wiped.clear()
            self._owner = None  # the node itself may have been deleted and made again

    def _on_change(self, change: Change[ResourceSlice]) -> None:
        if self._cache.observe(change):
            assert change.before is not None
            if self._wiped_at is None:
                self._wiped_at = self._clock.now()
            self._wiped.append(change.before.metadata.name)
        self.settled.clear()
        self.wake()

    def _on_listed(self, asked_at: float) -> None:
        self._cache.listed(asked_at)
        self.wake()

    def _on_watch_problem(self, text: str) -> None:
        self._report(WatchFailed(text))
