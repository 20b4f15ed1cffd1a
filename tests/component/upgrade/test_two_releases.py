"""Two releases on one node while pods come and go: an upgrade and a way back that no pod notices."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpclib.exceptions import StreamTerminatedError

from dra_gpu_sim.local.cluster import DRIVER
from tests.component.node.configs import time_slice
from tests.component.node.node_under_fire import PATIENCE, held_twice, records
from tests.component.upgrade.held import DEVICES, NEWER, THIS, VIEWS, HeldNode

LONG = 3  # of `nvidia-smi compute-policy`


class Load:
    """Pods of every kind that come and go, some of them after the same GPU."""

    def __init__(self, held: HeldNode) -> None:
        self.held = held
        self.rounds: Counter[str] = Counter()
        self.ending = asyncio.Event()
        self.failures: list[str] = []
        self.twice: list[tuple] = []
        self.cut_off = 0

    def _result(self, device: str, **more) -> dict:
        return {"request": "r", "driver": DRIVER, "pool": self.held.cluster.node_name, "device": device, **more}

    def _share(self, device: str) -> dict:
        consumed = {"computePercent": "20", "memory": "2Gi"}
        return self._result(device, shareID=str(uuid.uuid4()), consumedCapacity=consumed)

    async def one_pod(self, worker: str, result: dict, config: list, is_so=lambda _claim: True) -> None:
        """Let a pod's claim be prepared, held and given back."""
        held = self.held
        claim = held.cluster.add_claim(f"{worker}-{self.rounds[worker]}", results=[result], config=config)
        answer = (await self._insist(held.world.prepare, claim))[claim.uid]
        if answer.error:
            self.failures.append(f"{worker}: {answer.error}")
        elif not is_so(claim):
            self.failures.append(f"{worker}: prepared, but nothing was done")
        self.twice += [row for row in held_twice(held.world) if row[0] == held.node.uuids[0]]
        back = (await self._insist(held.world.unprepare, claim))[claim.uid]
        if back:
            self.failures.append(f"{worker}: {back}")
        held.cluster.remove_claim(claim)
        self.rounds[worker] += 1

    async def _insist(self, call, claim):
        """Call again when the instance died in the middle, as the kubelet does, which then has another one."""
        while True:
            try:
                return await call(claim)
            except (StreamTerminatedError, OSError):
                self.cut_off += 1
                await asyncio.sleep(0.02)  # the kubelet takes a minute

    async def whole(self, worker: str) -> None:
        """One of two pods that want the same whole GPU: the second waits inside its call."""

        def sliced(claim) -> bool:
            return self.held.node.gpus[0].time_slice == LONG and records(self.held.world).get(claim.uid) == "prepared"

        await self.one_pod(worker, self._result("gpu-0"), [time_slice("Long")], sliced)

    async def share(self, worker: str) -> None:
        """One of two pods that share a GPU."""
        await self.one_pod(worker, self._share("gpu-1-shared"), [])

    async def partition(self, worker: str) -> None:
        """One of two pods that each have a partition of one GPU."""
        start = int(worker[-1])

        def made(_claim) -> bool:
            return any(one.start == start for one in self.held.node.gpus[2].instances)

        await self.one_pod(worker, self._result(f"gpu-2-mig-1g10gb-19-{start}"), [], made)

    async def part(self, worker: str) -> None:
        """A pod that has a fraction of a partition."""
        await self.one_pod(worker, self._share("gpu-3-mig-1g10gb-19-4-shared"), [])

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Let pods come and go meanwhile; they end with the block."""
        kinds = {
            "whole-0": self.whole, "whole-1": self.whole, "share-0": self.share, "share-1": self.share,
            "partition-0": self.partition, "partition-1": self.partition, "part-0": self.part,
        }  # fmt: skip

        async def work(worker: str) -> None:
            while not self.ending.is_set():
                await kinds[worker](worker)

        async with asyncio.TaskGroup() as group:
            for worker in kinds:
                self.rounds[worker] = 0
                group.create_task(work(worker))
            try:
                yield
            finally:
                self.ending.set()

    async def one_more_round(self) -> None:
        """Wait until every kind of pod has come and gone once more, begun and ended from now on."""
        before = Counter(self.rounds)
        async with asyncio.timeout(3 * PATIENCE):
            # The round at work now may have begun before.
            while any(self.rounds[worker] < before[worker] + 2 for worker in self.rounds):
                await asyncio.sleep(0.02)


def slices_of(held: HeldNode) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in held.cluster.slices()}


@pytest.mark.case("C29")
@pytest.mark.parametrize(("before", "after"), [(THIS, NEWER), (NEWER, THIS)], ids=["upgrade", "way-back"])
async def test_pods_come_and_go_while_the_driver_is_exchanged(held, before, after):
    old = await held.start(program=before, views=VIEWS)
    await held.cluster.wait_slices(DEVICES)
    running = await held.hold("watched")
    published = slices_of(held)
    load = Load(held)

    async with load.going_on():
        await load.one_more_round()
        await held.start(program=after, views=VIEWS)
        await load.one_more_round()
        await held.stop(old)
        await load.one_more_round()

    assert load.failures == []
    assert load.twice == []
    assert slices_of(held) == published
    assert running["watched"] == await held.world.prepared(held.claims["watched"])
    await held.give_back()
    assert held.left() == {}


@pytest.mark.case("C29")
async def test_a_new_release_that_dies_again_and_again_costs_nobody_a_claim(held):
    old = await held.start()
    load = Load(held)

    async with load.going_on():
        for _ in range(3):
            new = await held.start(program=NEWER)
            await load.one_more_round()
            await new.kill()
            held.forget(new)
            await load.one_more_round()

    assert load.failures == []
    assert load.twice == []
    assert old.process.returncode is None
    assert load.cut_off, "no call was ever cut off: nothing was tested"
    assert held.left() == {}
