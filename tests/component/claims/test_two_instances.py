"""During an upgrade two instances serve one node: same disk, same GPUs, one truth."""

import asyncio

import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.outcome import Prepared, Refusal
from dra_gpu.claims.record import State
from tests.unit.claims.world import (
    EVERY_VIEW,
    LONG,
    PATIENCE,
    Node,
    config,
    inventory_of,
    partitionable_gpus,
    ref,
    share,
    shared_config,
)

SLICES = shared_config(strategy="TimeSlicing")

pytestmark = pytest.mark.case("C29")


@pytest.fixture
async def instances(tmp_path):
    old, new = Node(tmp_path), Node(tmp_path)
    new.api, new.vendor = old.api, old.vendor
    async with old.running(), new.running():
        yield old, new


async def test_what_one_prepared_the_other_answers_and_takes_back(instances):
    old, new = instances
    claim = old.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    answer = await old.prepare(claim)
    assert await new.prepare(claim) == answer
    assert await new.unprepare(claim) is None
    assert await old.unprepare(claim) is None
    assert old.slice_of("gpu-0") is TimeSliceInterval.DEFAULT


async def test_both_asked_for_one_claim_at_once_prepare_it_once(instances):
    old, new = instances
    claim = old.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    first, second = await asyncio.gather(old.prepare(claim), new.prepare(claim))
    assert isinstance(first, Prepared)
    assert first == second
    assert len(old.vendor.calls) == 1


async def test_of_two_claims_for_one_gpu_only_one_is_prepared(instances):
    old, new = instances
    for round_ in range(10):
        one = old.api.add(ref(f"one-{round_}", "one"), "gpu-0")
        two = old.api.add(ref(f"two-{round_}", "two"), "gpu-0")
        answers = await asyncio.gather(old.prepare(one), new.prepare(two))
        assert sorted(type(answer).__name__ for answer in answers) == ["Prepared", "Refusal"]
        assert [await old.unprepare(one), await new.unprepare(two)] == [None, None]


async def test_a_device_that_the_other_instance_frees_is_noticed_inside_the_call(tmp_path):
    old, new = Node(tmp_path), Node(tmp_path, held_wait=30)
    new.api, new.vendor = old.api, old.vendor
    async with old.running(), new.running():
        held = old.api.add(ref("u1", "held"), "gpu-0")
        await old.prepare(held)
        waiting = asyncio.create_task(new.prepare(old.api.add(ref("u2", "next"), "gpu-0"), within=30))
        while not new.preparation._claim_locks.is_wanted("u2"):
            await asyncio.sleep(0)
        await old.unprepare(held)
        async with asyncio.timeout(PATIENCE / 2):
            assert isinstance(await waiting, Prepared)


async def test_the_new_instance_leaves_alone_what_the_old_one_is_working_on(instances):
    old, new = instances
    claim = old.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    gate = old.vendor.gates[old.uuid("gpu-0")] = asyncio.Event()
    entered = old.vendor.entered[old.uuid("gpu-0")] = asyncio.Event()
    preparing = asyncio.create_task(old.prepare(claim))
    await entered.wait()
    recovering = asyncio.create_task(new.reconciler.recover())
    other = old.api.add(ref("u2", "other"), "gpu-0")
    assert isinstance(await new.prepare(other, within=1), Refusal)
    gate.set()
    assert isinstance(await preparing, Prepared)
    await recovering
    assert (await new.journal.load("aaaa")).state is State.PREPARED


async def test_partitions_of_both_are_made_once_and_the_last_claim_of_either_ends_them(instances):
    old, new = instances
    device = "gpu-0-mig-1g10gb-19-2-shared"
    for node in instances:
        node.inventory = inventory_of(partitionable_gpus(), options=EVERY_VIEW)
    one, two = (
        old.api.add(ref(f"u{number}", f"job-{number}"), share(device, number, memory="2Gi"), configs=[SLICES])
        for number in (1, 2)
    )
    answers = await asyncio.gather(old.prepare(one), new.prepare(two))
    assert [type(answer) for answer in answers] == [Prepared, Prepared]
    assert len(old.vendor.instances) == 1
    assert await new.unprepare(one) is None
    assert len(old.vendor.instances) == 1
    assert await old.unprepare(two) is None
    assert (old.vendor.instances, old.vendor.mig_modes) == ({}, {old.uuid(device): False})
