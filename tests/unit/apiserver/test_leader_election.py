"""Who leads: one at a time, whatever the network does; the next one soon."""
# ruff: noqa: ARG002 - the server's stand-in has the client's signatures

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.leader_election import LeaderElection, LeaseTimes
from tests.unit.apiserver.virtual_clock import VirtualClock


class Server:
    """The lease as the API server has it."""

    def __init__(self) -> None:
        self.lease = None
        self.version = 0

    def store(self, lease) -> None:
        self.version += 1
        self.lease = replace(lease, metadata=replace(lease.metadata, resource_version=str(self.version)))


class FakeApi:
    """A replica's way to the server; it may take time, swallow requests or answers, and be cut for a while."""

    def __init__(self, clock: VirtualClock, rng: random.Random | None = None, server: Server | None = None) -> None:
        self.clock = clock
        self.rng = rng
        self.server = server or Server()
        self.away = False
        self._cut_until = 0.0

    @property
    def lease(self):
        return self.server.lease

    async def get(self, resource, name, namespace="", *, deadline=15.0):
        await self._travel("get")
        found = self.lease
        await self._travel("get")
        if found is None:
            raise errors.NotFoundError("get", "leases", name, status=404)
        return found

    async def create(self, resource, body, namespace="", *, deadline=15.0):
        await self._travel("create")
        if self.lease is not None:
            raise errors.AlreadyExistsError("create", "leases", status=409)
        return await self._store("create", body)

    async def update(self, resource, body, name, namespace="", *, deadline=15.0):
        await self._travel("update")
        if body.metadata.resource_version != self.lease.metadata.resource_version:
            raise errors.ConflictError("update", "leases", status=409)
        return await self._store("update", body)

    async def _store(self, verb, body):
        self.server.store(body)
        stored = self.lease
        await self._travel(verb)
        return stored

    async def _travel(self, verb) -> None:
        if self.rng is not None:
            await self.clock.sleep(self.rng.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.5, 2.0, 8.0)))
            if self.rng.random() < 0.03:
                self._cut_until = self.clock.now() + self.rng.uniform(1.0, 40.0)
        if self.away or self.clock.now() < self._cut_until:
            raise errors.UnavailableError(verb, "leases", detail="lost on the way")


class Replica:
    """One process that wants to lead."""

    def __init__(self, api, clock, name, rng=None) -> None:
        self.name = name
        self.works = False
        self.terms = 0
        self.election = LeaderElection(api, "dra-gpu-controller", "dra-gpu", name, clock=clock, rng=rng)
        self.task = asyncio.ensure_future(self.election.run(self.lead))

    async def lead(self) -> None:
        self.works, self.terms = True, self.terms + 1
        try:
            await asyncio.Event().wait()
        finally:
            self.works = False

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def replicas(api, clock, *names):
    async with AsyncExitStack() as stack:
        made = [Replica(api, clock, name) for name in names]
        for replica in made:
            stack.push_async_callback(replica.end)
        yield made
        api.away = False


async def test_the_first_leads_and_the_second_waits():
    clock = VirtualClock()
    api = FakeApi(clock)
    async with replicas(api, clock, "a", "b") as (a, b):
        await clock.advance(300)

        assert (a.works, b.works) == (True, False)
        assert api.lease.spec.holder_identity == "a"
        assert api.lease.spec.lease_transitions == 0
        assert api.server.version <= 1 + 300 / 2


async def test_a_leader_that_ends_in_good_order_is_followed_at_once():
    clock = VirtualClock()
    async with replicas(FakeApi(clock), clock, "a", "b") as (a, b):
        await clock.advance(60)
        await a.end()
        await clock.advance(3)

        assert b.works


async def test_a_leader_that_dies_is_followed_after_the_lease_and_one_try():
    clock = VirtualClock()
    api = FakeApi(clock)
    async with replicas(api, clock, "a", "b") as (a, b):
        await clock.advance(60)
        a.election._release = asyncio.Event().wait  # it gives nothing away
        a.task.cancel()
        await clock.advance(12)
        assert not b.works
        await clock.advance(8)

        assert b.works
        assert api.lease.spec.lease_transitions == 1


async def test_a_leader_that_cannot_renew_stops_ten_seconds_after_it_last_asked_with_success():
    clock = VirtualClock()
    api = FakeApi(clock)
    async with replicas(api, clock, "a") as (a,):
        await clock.advance(61)
        api.away = True
        renewed = a.election._leads_until - 10
        await clock.advance(renewed + 9.9 - clock.now())
        assert a.works
        assert a.election.leads
        await clock.advance(0.2)

        assert not a.works
        assert not a.election.leads


async def test_a_lease_that_somebody_else_took_ends_the_work_at_the_next_look():
    clock = VirtualClock()
    api = FakeApi(clock)
    async with replicas(api, clock, "a") as (a,):
        await clock.advance(60)
        api.server.store(replace(api.lease, spec=replace(api.lease.spec, holder_identity="somebody")))
        await clock.advance(2.1)

        assert not a.works
        assert api.lease.spec.holder_identity == "somebody"


async def test_what_the_work_raises_ends_the_process_and_gives_the_lease_away():
    clock = VirtualClock()
    api = FakeApi(clock)

    async def fails() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await LeaderElection(api, "lease", "dra-gpu", "a", clock=clock).run(fails)

    assert api.lease.spec.holder_identity == ""


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
async def test_two_never_lead_at_once_whatever_the_network_does(seed):
    clock, rng, server = VirtualClock(), random.Random(seed), Server()
    links = [FakeApi(clock, random.Random(rng.random()), server) for _ in range(3)]
    made = [Replica(link, clock, name, link.rng) for link, name in zip(links, "abc", strict=True)]
    led = 0
    for _ in range(1200):
        await clock.advance(0.25)
        leading = [replica.name for replica in made if replica.works or replica.election.leads]
        assert len(leading) <= 1
        led += len(leading)
    for replica in made:
        replica.task.cancel()
    await clock.advance(120)

    assert led > 120  # a tenth of the time at least, or the network was not what is tested


@pytest.mark.parametrize("times", [(10, 15, 2), (15, 10, 9), (15, 10, 0)])
def test_times_that_would_let_two_lead_are_refused(times):
    with pytest.raises(ValueError, match="must be longer"):
        LeaseTimes(*times)
