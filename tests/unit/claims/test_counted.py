"""Whole GPUs and partitions that several claims have at once: counted, all with one config, and left as they were."""

import json

import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.api.resource_v1 import DeviceRequestAllocationResult
from dra_gpu.claims import device_status
from dra_gpu.claims.outcome import Prepared, Refusal
from dra_gpu.claims.record import Access, Hold
from dra_gpu.inventory.options import ViewOptions, consumable_shares
from tests.unit.claims.world import (
    DRIVER,
    LONG,
    POOL,
    Node,
    config,
    inventory_of,
    partitionable_gpus,
    ref,
    result,
    share,
    share_id,
)
from tests.unit.inventory.published import EVERY

MPS = {"sharing": {"strategy": "MPS"}}
PARTITION = "gpu-0-mig-1g10gb-19-2"
DEFAULT, SET = TimeSliceInterval.DEFAULT, TimeSliceInterval.LONG


@pytest.fixture
async def node(tmp_path):
    node = Node(tmp_path)
    options = ViewOptions(EVERY, shared_mig_profiles=("1g.10gb",), consumable_shares=consumable_shares("memory"))
    node.inventory = inventory_of(partitionable_gpus(), options=options)
    async with node.running():
        yield node


def part(number, device="gpu-0", request="gpu", *, memory="20Gi"):
    """Return share `number` of a device that several claims have whole."""
    return DeviceRequestAllocationResult(request, DRIVER, POOL, device, None, share_id(number), {"memory": memory})


def claim(node, number, *results, configs=()):
    return node.api.add(ref(f"u{number}", f"job-{number}"), *(results or [part(number)]), configs=configs)


async def status(node, claimed):
    record = await node.journal.load(claimed.uid)
    (one,) = device_status.statuses(record, DRIVER, node.inventory.gpus.get)
    return json.loads(bytes(one.data)), {condition.type: condition for condition in one.conditions}


async def test_several_claims_have_a_gpu_at_once_each_with_a_name_of_its_own(node):
    claims = [claim(node, number) for number in range(3)]

    answers = await node.prepare(*claims)

    assert all(isinstance(answer, Prepared) for answer in answers.values())
    assert {answer.devices[0].share_id for answer in answers.values()} == {share_id(number) for number in range(3)}
    assert len({answer.devices[0].cdi_ids for answer in answers.values()}) == 3
    assert node.vendor.calls == []


@pytest.mark.parametrize(
    "other",
    [
        result("gpu-0"),
        share("gpu-0-shared", 9),
        part(9, PARTITION, memory="1Gi"),
        share(f"{PARTITION}-shared", 9, memory="1Gi"),
    ],
)
async def test_they_exclude_every_other_use_of_the_gpu(node, other):
    assert isinstance(await node.prepare(claim(node, 0)), Prepared)

    answer = await node.prepare(claim(node, 1, other))

    assert isinstance(answer, Refusal)
    assert "team-a/job-0" in answer.message


async def test_a_share_of_another_view_does_not_join_them(node):
    assert isinstance(await node.prepare(claim(node, 0, share("gpu-0-shared", 0))), Prepared)

    assert isinstance(await node.prepare(claim(node, 1)), Refusal)
    assert isinstance(await node.prepare(claim(node, 2, share("gpu-0-shared", 2))), Prepared)


async def test_their_memory_is_never_more_than_the_gpu_has(node):
    await node.prepare(claim(node, 0, part(0, memory="60Gi")))

    answer = await node.prepare(claim(node, 1, part(1, memory="30Gi")))

    assert isinstance(answer, Refusal)
    assert "of its memory are wanted" in answer.message


@pytest.mark.case("C97")
@pytest.mark.parametrize(("device", "kind"), [("gpu-0", "GpuConfig"), (PARTITION, "MigDeviceConfig")])
async def test_mps_is_refused_with_what_to_use_instead(node, device, kind):
    answer = await node.prepare(claim(node, 0, part(0, device, memory="1Gi"), configs=[config(kind, **MPS)]))

    assert isinstance(answer, Refusal)
    assert "consumableShares" in answer.message
    assert "shared.gpu.nvidia.com" in answer.message
    assert node.mps.held == {}


@pytest.mark.migration("Different configs of claims that share a GPU")
async def test_all_have_the_same_config_or_wait_until_the_others_have_gone(node):
    with_slice, plain = claim(node, 0, configs=[config(**LONG)]), claim(node, 1)
    assert isinstance(await node.prepare(with_slice), Prepared)

    answer = await node.prepare(plain)

    assert isinstance(answer, Refusal)
    assert "claims with the time slice Long" in answer.message
    assert "claims without a time slice of their own cannot be mixed" in answer.message
    await node.unprepare(with_slice)
    assert isinstance(await node.prepare(plain), Prepared)


async def test_two_requests_of_a_claim_for_one_gpu_have_the_same_config_too(node):
    slices = config(requests=["a"], **LONG)
    answer = await node.prepare(claim(node, 0, part(0, request="a"), part(1, request="b"), configs=[slices]))

    assert isinstance(answer, Refusal)
    assert "give both the same config" in answer.message
    assert isinstance(await node.prepare(claim(node, 1, part(2, request="a"), part(3, request="b"))), Prepared)


@pytest.mark.parametrize("last", [0, 1, 2])
async def test_the_first_sets_the_time_slice_and_the_last_restores_what_was_before(node, last):
    node.vendor.slices[node.uuid("gpu-0")] = TimeSliceInterval.SHORT
    claims = [claim(node, number, configs=[config(**LONG)]) for number in range(3)]
    for one in claims:
        await node.prepare(one)
    final = claims.pop(last)

    for one in claims:
        await node.unprepare(one)
        assert node.slice_of("gpu-0") is SET
    await node.unprepare(final)
    assert node.slice_of("gpu-0") is TimeSliceInterval.SHORT


async def test_a_gpu_of_ones_own_gets_its_time_slice_back_whatever_others_do(node):
    alone = claim(node, 0, result("gpu-1"), configs=[config(**LONG)])
    await node.prepare(alone, claim(node, 1, configs=[config(**LONG)]))

    await node.unprepare(alone)

    assert (node.slice_of("gpu-1"), node.slice_of("gpu-0")) == (DEFAULT, SET)


async def test_the_status_says_that_it_is_accounting_and_nothing_more(node):
    counted = claim(node, 0)
    await node.prepare(counted)

    data, conditions = await status(node, counted)

    assert data["capacities"] == {"memory": {"mechanism": "accounting", "requested": "20Gi", "lifted": True}}
    assert "nothing on the node limits" in data["notes"][0]
    assert (conditions["Enforced"].status, conditions["Enforced"].reason) == ("False", "NotLimited")


async def test_the_first_claim_of_a_partition_makes_it_and_the_last_destroys_it(node):
    claims = [claim(node, number, part(number, PARTITION, memory="1Gi")) for number in range(2)]

    for one in claims:
        assert isinstance(await node.prepare(one), Prepared)
    assert len(node.vendor.instances) == 1
    await node.unprepare(claims[0])
    assert len(node.vendor.instances) == 1
    await node.unprepare(claims[1])
    assert node.vendor.instances == {}


async def test_a_claim_is_prepared_again_from_the_journal_alone(node):
    counted = claim(node, 0, configs=[config(**LONG)])
    first = await node.prepare(counted)
    reads, calls = node.api.reads, list(node.vendor.calls)

    assert await node.prepare(counted) == first
    assert (node.api.reads, node.vendor.calls) == (reads, calls)


async def test_admin_access_to_such_a_gpu_counts_for_nothing(node):
    watched = DeviceRequestAllocationResult("look", DRIVER, POOL, "gpu-0", admin_access=True, share_id=share_id(5))
    await node.prepare(claim(node, 0))

    assert isinstance(await node.prepare(claim(node, 1, watched)), Prepared)
    assert (await node.journal.load("u1")).holds == (Hold("gpu-0", node.uuid("gpu-0"), Access.OBSERVER, share_id(5)),)
