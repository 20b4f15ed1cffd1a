"""kill -9 of the shipped node plugin at every step of a claim of every kind.

Whatever the moment: the next call is right; nothing stays behind in the hardware, with MPS, in the journal or the CDI
directory; nothing is held or promised twice; and a program that uses another part of the GPU never notices.

A moment has two ends: the kubelet calls again, or the pod is gone. Each moment is met with one of them, by turns; those
of partitions, which are there alone and beside another one, with both. `DRA_GPU_KILLS=all` meets each with both, and
tests/component/claims/test_kill_sweep.py does so in the engine, without the half second that a plugin takes to start.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from tests.component.node import dying_partitions
from tests.component.node.dying import Boundary, Dying
from tests.component.node.dying_shares import Shares
from tests.component.node.dying_time_slices import TimeSlices
from tests.component.node.node_under_fire import held_twice

# A sweep starts the plugin up to nine times, and the machine may be busy.
pytestmark = pytest.mark.timeout(300)

SCENARIOS = {
    "time-slices": TimeSlices,
    "share-beside-another": Shares,
    "partitions-alone": dying_partitions.Alone,
    "partitions-beside-another": dying_partitions.Beside,
}

ALL = os.environ.get("DRA_GPU_KILLS") == "all"


def by_turns(boundaries: Sequence[Boundary], first: int) -> Sequence[Boundary]:
    """Return the boundaries at which a test kills: every second one, from the first or from the one after it."""
    return boundaries if ALL else boundaries[first::2]


@pytest.fixture(params=SCENARIOS.values(), ids=SCENARIOS)
async def dying(request, make_world, make_sharing) -> AsyncIterator[Dying]:
    made = await request.param.create(make_world, make_sharing)
    yield made
    made.programs.close()


async def test_killed_anywhere_in_a_prepare_the_next_prepare_is_right_and_the_unprepare_leaves_nothing(dying):
    for boundary in by_turns(dying.preparing, 0):
        claim = dying.claim()

        await dying.killed_in(boundary, claim, dying.world.prepare)

        await dying.world.prepared(claim)
        await dying.right(claim)
        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.nothing_left()


async def test_killed_anywhere_in_a_prepare_the_place_goes_to_the_next_claim_when_the_pod_is_gone(dying):
    for boundary in by_turns(dying.preparing, 1):
        gone, successor = dying.claim(), dying.claim()

        await dying.killed_in(boundary, gone, dying.world.prepare)
        dying.world.cluster.remove_claim(gone)
        assert (await dying.world.unprepare(gone))[gone.uid] == "", boundary.__name__

        await dying.world.prepared(successor)
        await dying.right(successor)
        assert (await dying.world.unprepare(successor))[successor.uid] == ""
        await dying.nothing_left()


async def test_killed_anywhere_in_an_unprepare_the_next_unprepare_leaves_nothing(dying):
    for boundary in by_turns(dying.unpreparing[::-1], 0):
        claim = dying.claim()
        await dying.world.prepared(claim)

        await dying.killed_in(boundary, claim, dying.world.unprepare)

        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.nothing_left()


async def test_killed_anywhere_in_an_unprepare_the_next_prepare_is_right(dying):
    for boundary in by_turns(dying.unpreparing[::-1], 1):
        claim = dying.claim()
        await dying.world.prepared(claim)

        await dying.killed_in(boundary, claim, dying.world.unprepare)

        await dying.world.prepared(claim)
        await dying.right(claim)
        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.nothing_left()


async def test_killed_at_random_moments_of_many_calls_nothing_is_held_twice_or_left(make_world):
    world = await make_world(gpus=4)
    await world.start(devices=8)
    dying, rng = TimeSlices(world), random.Random(20260)
    claims = [world.claim(f"c{number}", f"gpu-{number % 4}", interval="Long") for number in range(8)]

    async def life(claim) -> None:
        with suppress(Exception):  # the connection breaks with the process
            await world.prepare(claim, within=5.5)
            await world.unprepare(claim)

    for _ in range(6):
        lives = [asyncio.create_task(life(claim)) for claim in claims]
        await asyncio.sleep(rng.uniform(0.0, 0.25))
        await dying.die()
        await asyncio.gather(*lives)
        assert held_twice(world) == []

    for claim in claims:
        assert (await world.unprepare(claim))[claim.uid] == ""
    await dying.nothing_left()
