"""One of several replicas leads: who holds a Lease, with Kubernetes' own rules.

Promises: two replicas never lead at once, as long as the clocks of their machines run at about the same speed; what
the clocks show does not matter. A leader counts from the moment at which it *asked* for its last successful renewal,
and stops before `renew` seconds are over; the others count from the moment at which they *saw* the lease change, which
is later, and wait the longer `lease` seconds. A leader that ends in good order gives the lease away at once.
Source: K8s v1.37 client-go/tools/leaderelection, whose times these are.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from dra_gpu.api.coordination_v1 import API_VERSION, Lease, LeaseSpec
from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import LEASES

_JITTER = 0.2
_RELEASE_SECONDS = 3.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds; each must be shorter than the one before.

    Attributes:
        lease: for how long others wait after they have seen the last renewal.
        renew: for how long a leader goes on leading after it asked for the last one.
        retry: between two tries to get or to keep the lease.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease > self.renew > self.retry * (1 + _JITTER) > 0:
            raise ValueError(
                f"lease ({self.lease:g} s) must be longer than renew ({self.renew:g} s), and that than retry "
                f"({self.retry:g} s) and a fifth"
            )


@dataclass(slots=True)
class _Seen:
    """The lease as it was last seen to change, and when that was seen."""

    version: str
    spec: LeaseSpec
    at: float


class LeaderElection:
    """Takes part in the election for one lease.

    Args:
        api: the API server.
        name: of the lease.
        namespace: of the lease.
        identity: of this replica; no other has the same, not even after a restart.
        times: see there.
        clock: monotonic time.
        now: wall-clock time, for people who read the lease.
        rng: spreads the tries of replicas.
        on_change: told whenever this replica begins or ends to lead.
    """

    def __init__(
        self,
        api: KubernetesApi,
        name: str,
        namespace: str,
        identity: str,
        *,
        times: LeaseTimes | None = None,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random | None = None,
        on_change: Callable[[bool], None] = lambda _leads: None,
    ) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._times = times or LeaseTimes()
        self._clock = clock or SystemClock()
        self._now = now
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, protects nothing
        self._on_change = on_change
        self._seen: _Seen | None = None
        self._leads_until: float | None = None
        self._complaint = ""

    @property
    def leads(self) -> bool:
        """Whether this replica leads now; False from the moment at which another one might begin to."""
        return self._leads_until is not None and self._clock.now() < self._leads_until

    @property
    def holder(self) -> str:
        """Who held the lease when it was last seen; empty for nobody."""
        return (self._seen.spec.holder_identity or "") if self._seen is not None else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Take part until cancelled. While this replica leads, `lead` runs; it is cancelled when the lease is lost.

        Raises:
            Whatever `lead` raises; the lease is given away then, too.
        """
        while True:
            while not await self._try():
                await self._clock.sleep(self._times.retry * (1 + self._rng.uniform(0.0, _JITTER)))
            await self._lead(lead)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        _log.info("this replica leads", lease=self._name, identity=self._identity)
        self._on_change(True)  # noqa: FBT003 - the one fact that it is told
        work: asyncio.Future[None] = asyncio.ensure_future(lead())
        tasks = (work, asyncio.ensure_future(self._keep()), asyncio.ensure_future(self._expire()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = work.done() and not work.cancelled()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            held, self._leads_until = self.leads, None
            self._on_change(False)  # noqa: FBT003 - the one fact that it is told
            if held:
                await asyncio.shield(self._release())
            _log.info("this replica does not lead any more", lease=self._name, holder=self.holder)
        if ended:
            work.result()

    async def _keep(self) -> None:
        """Renew again and again; returns when somebody else has the lease."""
        while True:
            await self._clock.sleep(self._times.retry)
            if not await self._try() and self.holder not in ("", self._identity):
                return

    async def _expire(self) -> None:
        """Return when the last renewal is too long ago, to the moment, whatever request is still under way."""
        while self._leads_until is not None and (left := self._leads_until - self._clock.now()) > 0:
            await self._clock.sleep(left)

    async def _try(self) -> bool:
        """Get or keep the lease, if that is possible now; a request ends before the right to lead does."""
        started = self._clock.now()
        limit = self._times.renew
        left = self._leads_until - started if self._leads_until is not None and self.leads else limit
        try:
            async with asyncio.timeout(left):
                got = await self._write(started, left)
        except (errors.ApiError, TimeoutError) as error:
            self._complain(str(error) or "no answer in time")
            return False
        self._complaint = ""
        if got:
            self._leads_until = started + limit
        return got and self.leads  # an answer may come when the right that it gives has ended already

    async def _write(self, started: float, seconds: float) -> bool:
        try:
            lease = await self._api.get(LEASES, self._name, self._namespace, deadline=seconds)
        except errors.NotFoundError:
            body = self._body(ObjectMeta(name=self._name, namespace=self._namespace), None)
            self._look(await self._api.create(LEASES, body, self._namespace, deadline=seconds))
            return True
        self._look(lease)
        if not self._is_free(started):
            return False
        try:
            body = self._body(lease.metadata, lease.spec)
            self._look(await self._api.update(LEASES, body, self._name, self._namespace, deadline=seconds))
        except errors.ConflictError:
            return False  # somebody was faster; the next try sees who
        return True

    def _look(self, lease: Lease) -> None:
        if self._seen is None or self._seen.version != lease.metadata.resource_version:
            self._seen = _Seen(lease.metadata.resource_version, lease.spec, self._clock.now())

    def _is_free(self, now: float) -> bool:
        """Whether the lease is ours, nobody's, or was not renewed for too long since we saw it change."""
        assert self._seen is not None
        if self.holder in ("", self._identity):
            return True
        seconds = max(self._times.lease, float(self._seen.spec.lease_duration_seconds or 0))
        return now - self._seen.at >= seconds

    def _body(self, metadata: ObjectMeta, before: LeaseSpec | None, holder: str | None = None) -> Lease:
        stamp = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before is not None and before.holder_identity == self._identity
        transitions = 0 if before is None else (before.lease_transitions or 0) + (not mine)
        kept = ObjectMeta(
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
        )
        return Lease(
            API_VERSION,
            "Lease",
            kept,
            LeaseSpec(
                holder_identity=self._identity if holder is None else holder,
                lease_duration_seconds=int(self._times.lease) if holder is None else 1,
                acquire_time=before.acquire_time if before is not None and mine else stamp,
                renew_time=stamp,
                lease_transitions=transitions,
            ),
        )

    async def _release(self) -> None:
        """Give the lease away, so that the next leader need not wait; one that is not ours any more is left alone."""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                lease = await self._api.get(LEASES, self._name, self._namespace, deadline=_RELEASE_SECONDS)
                if lease.spec.holder_identity == self._identity:
                    body = self._body(lease.metadata, lease.spec, holder="")
                    self._look(await self._api.update(LEASES, body, self._name, self._namespace))
        except (errors.ApiError, TimeoutError) as error:
            _log.info("the lease runs out by itself", lease=self._name, reason=str(error))

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _log.warning("the lease could not be had or kept", lease=self._name, reason=reason)
