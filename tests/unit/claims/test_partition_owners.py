"""Whatever goes wrong between a partition's making and its end, it stays known whose it is and goes with its claims."""

import asyncio
import dataclasses

import pytest

from dra_gpu.claims.outcome import Prepared
from dra_gpu.inventory.model import SickGpu
from dra_gpu.mps.service import MpsError, MpsErrorKind
from dra_gpu.vendors.base import FailureKind
from tests.unit.claims.test_partitions import (
    IN_USE,
    SMALL,
    assert_nothing_left,
    claim,
    mode,
    part,
    partitioned,
    places,
)
from tests.unit.claims.world import PATIENCE, fault, inventory_of

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


async def test_a_whole_gpu_is_taken_out_of_the_mode_in_which_the_claim_that_it_waited_for_has_left_it(tmp_path):
    async with partitioned(tmp_path, held_wait=PATIENCE).running() as node:
        part_of, whole = claim(node, "u1", SMALL), claim(node, "u2", "gpu-0")
        read, go_on = node.vendor.mig_mode, asyncio.Event()

        async def stands_still(gpu):
            await go_on.wait()
            return await read(gpu)

        node.vendor.mig_mode = stands_still
        making = asyncio.create_task(node.prepare(part_of))
        while node.api.reads < 1:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(node.prepare(whole))
        while node.api.reads < 2:
            await asyncio.sleep(0)
        go_on.set()
        await making
        node.vendor.mig_faults["mode"] = [fault(FailureKind.IN_USE, IN_USE)]
        assert await node.unprepare(part_of) is None

        assert isinstance(await waiting, Prepared)
        assert not mode(node)
