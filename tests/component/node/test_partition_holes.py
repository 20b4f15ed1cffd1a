"""Partitions that leave in any order leave holes: what fits into one is allocated and made, what does not waits."""

import random
import re
from collections import Counter
from contextlib import nullcontext

import pytest

from dra_gpu_sim.local.allocator import UnschedulableError
from tests.component.node.partitions import DEVICES, VIEWS, Partitions

SLICES = 7
PROFILES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


class Scheduled:
    """A node whose partitions are chosen by the scheduler."""

    def __init__(self, world) -> None:
        self.world, self.partitions = world, Partitions(world)

    async def run(self, name: str, profile: str):
        """Schedule and prepare a pod; what is allocated must be prepared."""
        selector = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
        asked = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": selector}}]}
        claim = self.world.cluster.add_claim(name, requests=[{"name": "part", "exactly": asked}])
        (device,) = (await self.world.prepared(claim)).devices
        return claim, int(device.device.rpartition("-")[2])

    async def end(self, claim) -> None:
        assert (await self.world.unprepare(claim))[claim.uid] == ""
        self.world.cluster.remove_claim(claim)

    async def free(self, profile: str) -> int:
        """How many more of a profile the hardware itself says it could make; it is in MIG mode."""
        listed = await self.partitions.smi("mig", "-i", "0", "-lgip")
        return int(re.search(rf" MIG {re.escape(profile)} +\d+ +(\d+)/", listed)[1])

    @property
    def lying(self) -> list[tuple[str, int, int]]:
        return self.partitions.lying()


@pytest.fixture
async def scheduled(make_world) -> Scheduled:
    """A node with one H100."""
    world = await make_world(gpus=1)
    await world.start(VIEWS, devices=DEVICES)
    return Scheduled(world)


@pytest.mark.case("C76")
async def test_after_small_partitions_have_left_a_larger_one_is_made_in_a_hole_that_is_large_enough(scheduled):
    small = [await scheduled.run(f"small-{number}", "1g.10gb") for number in range(SLICES)]
    for claim, start in small:
        if start in (2, 3, 4, 6):
            await scheduled.end(claim)

    with pytest.raises(UnschedulableError, match="counter memory-slice-"):
        await scheduled.run("half", "3g.40gb")
    _, start = await scheduled.run("quarter", "2g.20gb")

    assert start == 2
    assert scheduled.lying == [("1g.10gb", 0, 1), ("1g.10gb", 1, 1), ("1g.10gb", 5, 1), ("2g.20gb", 2, 1)]


@pytest.mark.case("C76")
async def test_a_partition_is_made_exactly_where_the_hardware_says_that_it_could_be(scheduled):
    chance, outcomes = random.Random(76), Counter()
    first, _ = await scheduled.run("first", "1g.10gb")  # keeps the GPU in MIG mode
    running = {}
    for number in range(60):
        if running and chance.random() < 0.45:
            await scheduled.end(running.pop(chance.choice(sorted(running))))
            continue
        profile = chance.choice(PROFILES)
        fits = await scheduled.free(profile) > 0
        outcomes[fits] += 1
        with nullcontext() if fits else pytest.raises(UnschedulableError):
            running[number], _ = await scheduled.run(f"pod-{number}", profile)
        assert len(scheduled.lying) == 1 + len(running)

    assert min(outcomes[True], outcomes[False]) > 5
    for claim in (first, *running.values()):
        await scheduled.end(claim)
    assert scheduled.lying == []
