"""Whatever goes wrong between a partition's making and its end, it stays known whose it is and goes with its claims."""

import dataclasses

import pytest

from dra_gpu.inventory.model import SickGpu
from dra_gpu.mps.service import MpsError, MpsErrorKind
from tests.unit.claims.test_partitions import (
    SMALL,
    assert_nothing_left,
    claim,
    part,
    partitioned,
    places,
)
from tests.unit.claims.world import inventory_of

AWAY = MpsError(MpsErrorKind.UNAVAILABLE, "the MPS service is being restarted")


async def test_shares_that_end_while_the_mps_service_is_away_take_their_partition_along_in_the_end(tmp_path):
    async with partitioned(tmp_path).running() as node:
        first, second = part(node, 1), part(node, 2)
        for one in (first, second):
            await node.prepare(one)
        node.mps.faults = [AWAY] * 1000
        for one in (first, second):
            assert (await node.unprepare(one, within=0.0)).retryable

        node.mps.faults.clear()
        for one in (first, second):
            assert await node.unprepare(one) is None

        await assert_nothing_left(node)


async def test_a_new_share_beside_one_that_cannot_be_given_up_does_not_take_the_partition_for_a_strangers(tmp_path):
    async with partitioned(tmp_path).running() as node:
        first, second, third = part(node, 1), part(node, 2), part(node, 3)
        await node.prepare(first)
        await node.prepare(second)
        node.mps.faults = [AWAY] * 1000
        assert (await node.unprepare(first, within=0.0)).retryable
        node.mps.faults.clear()

        await node.prepare(third)
        for one in (first, second, third):
            assert await node.unprepare(one) is None

        await assert_nothing_left(node)


@pytest.mark.parametrize("sick", [(), (SickGpu("all GPUs", "NVML cannot be initialised"),)])
async def test_a_partition_is_not_forgotten_while_nobody_knows_which_gpus_there_are(tmp_path, sick):
    async with partitioned(tmp_path).running() as node:
        one, known = claim(node, "u1", SMALL), node.inventory
        await node.prepare(one)
        node.inventory = dataclasses.replace(inventory_of([]), sick=sick)

        assert await node.unprepare(one) is None

        node.inventory = known
        assert len(places(node)) == 1
        await node.reconciler.reconcile()
        await assert_nothing_left(node)
