"""Claims that have partitions of a GPU, from the call to the instance, its CDI file, and back."""

import asyncio

import pytest

from dra_gpu.claims.engine import Limits
from dra_gpu.claims.outcome import Prepared, Refusal
from dra_gpu.claims.record import State
from dra_gpu.claims.shares import claim_share_name, share_name
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.mps.service import Limits as MpsLimits
from dra_gpu.vendors.base import FailureKind
from tests.unit.claims.world import (
    EVERY_VIEW,
    Node,
    config,
    fault,
    inventory_of,
    mig_uuid,
    partitionable_gpus,
    ref,
    result,
    share,
    share_id,
)
from tests.unit.inventory.builders import GIB

SMALL, NEXT, BIG = "gpu-0-mig-1g10gb-19-2", "gpu-0-mig-1g10gb-19-3", "gpu-0-mig-3g40gb-9-0"
SHARED = f"{SMALL}-shared"
PLACE, NEXT_PLACE, BIG_PLACE = MigPlacement(0, 2, 1), MigPlacement(0, 3, 1), MigPlacement(2, 0, 4)
GPUS = partitionable_gpus()
UUID = GPUS[0].uuid
MIG = mig_uuid(UUID, PLACE)
IN_USE = "held open by pid 77 (dcgm-exporter)"


def partitioned(directory, **options) -> Node:
    """Return a node whose GPUs can be partitioned."""
    node = Node(directory, **options)
    node.inventory = inventory_of(GPUS, options=EVERY_VIEW)
    return node


@pytest.fixture
async def node(tmp_path):
    async with partitioned(tmp_path).running() as node:
        yield node


@pytest.fixture
async def hurried(tmp_path):
    """Return such a node on which nothing new is begun a moment after a call has come, however slow the machine is."""
    async with partitioned(tmp_path).running(Limits(0.0, 0.0, longest_work=0.3)) as node:
        yield node


def claim(node: Node, uid: str, *devices, configs=()):
    return node.api.add(ref(uid, f"job-{uid}"), *devices, configs=configs)


def part(node: Node, number: int, *, percent: int = 20, memory: str = "2Gi", configs=()):
    """Add claim `number` with a share of the small partition."""
    return claim(node, f"u{number}", share(SHARED, number, percent=percent, memory=memory), configs=configs)


def places(node: Node) -> set[MigPlacement]:
    return {placement for _, placement in node.vendor.instances}


def mode(node: Node) -> bool:
    return node.vendor.mig_modes.get(UUID, False)


def paths(node: Node, uid: str) -> list[str]:
    [device] = node.specs.read(uid).devices
    return [one.path for one in device.container_edits.device_nodes]


async def assert_nothing_left(node: Node) -> None:
    assert (places(node), mode(node), node.mps.held) == (set(), False, {})
    assert await node.journal.records() == []
    assert node.specs.claim_uids() == frozenset()


async def test_a_partition_is_made_for_its_claim_and_destroyed_with_it(node):
    one = claim(node, "u1", SMALL)
    answer = await node.prepare(one)
    assert [device.device for device in answer.devices] == [SMALL]
    assert (places(node), mode(node)) == ({PLACE}, True)
    assert paths(node, "u1") == ["/dev/nvidia0", f"/dev/nvidia-caps/{MIG}"]
    assert await node.unprepare(one) is None
    await assert_nothing_left(node)


async def test_preparing_it_again_gives_the_same_answer_and_asks_no_gpu(node):
    one = claim(node, "u1", SMALL)
    answer = await node.prepare(one)
    before = (list(node.vendor.calls), list(node.vendor.mig_reads), node.api.reads)
    assert await node.prepare(one) == answer
    assert (node.vendor.calls, node.vendor.mig_reads, node.api.reads) == before


async def test_the_last_claim_of_a_gpu_takes_it_out_of_mig_mode(node):
    first, second = claim(node, "u1", SMALL), claim(node, "u2", NEXT)
    await node.prepare(first)
    await node.prepare(second)
    assert await node.unprepare(first) is None
    assert (places(node), mode(node)) == ({NEXT_PLACE}, True)
    assert await node.unprepare(second) is None
    await assert_nothing_left(node)


async def test_a_gpu_that_is_in_mig_mode_for_one_claim_is_not_asked_for_it_by_the_next(node):
    await node.prepare(claim(node, "u1", SMALL))
    await node.prepare(claim(node, "u2", NEXT))
    assert node.vendor.calls.count(f"mig on {UUID}") == 1
    assert node.vendor.mig_reads.count("mode") == 1


async def test_a_mode_that_somebody_has_changed_is_noticed_when_a_partition_cannot_be_made(node):
    await node.prepare(claim(node, "u1", SMALL))
    node.vendor.instances.clear()
    node.vendor.mig_modes[UUID] = False
    assert isinstance(await node.prepare(claim(node, "u2", NEXT)), Prepared)
    assert mode(node)


async def test_a_gpu_that_was_in_mig_mode_before_stays_in_it(node):
    node.vendor.mig_modes[UUID] = True
    for uid, device in (("u1", SMALL), ("u2", NEXT)):
        await node.prepare(claim(node, uid, device))
    for uid in ("u1", "u2"):
        assert await node.unprepare(ref(uid)) is None
    assert (places(node), mode(node)) == (set(), True)


async def test_a_whole_gpu_costs_no_look_at_its_mode(node):
    one = claim(node, "u1", "gpu-0")
    assert isinstance(await node.prepare(one), Prepared)
    assert await node.unprepare(one) is None
    assert (node.vendor.calls, node.vendor.mig_reads) == ([], [])


async def test_a_mode_that_cannot_be_restored_keeps_no_claim_and_is_changed_by_who_needs_it(node):
    one, whole = claim(node, "u1", SMALL), claim(node, "u2", "gpu-0")
    await node.prepare(one)
    node.vendor.mig_faults["mode"] = [fault(FailureKind.IN_USE, IN_USE)] * 1_000
    assert await node.unprepare(one) is None
    assert (places(node), mode(node)) == (set(), True)
    node.vendor.mig_faults.clear()
    assert isinstance(await node.prepare(whole), Prepared)
    assert not mode(node)


async def test_whoever_has_the_gpu_open_for_a_moment_does_not_keep_it_in_mig_mode(node):
    await node.prepare(one := claim(node, "u1", SMALL))
    node.vendor.mig_faults["mode"] = [fault(FailureKind.IN_USE, IN_USE)]
    assert await node.unprepare(one) is None
    assert not mode(node)


async def test_whoever_has_the_gpu_open_is_waited_for_inside_the_call(node):
    node.vendor.mig_faults["mode"] = [fault(FailureKind.IN_USE, IN_USE)] * 2
    assert isinstance(await node.prepare(claim(node, "u1", SMALL), within=60), Prepared)


async def test_whoever_keeps_the_gpu_open_is_named_and_nothing_is_left(hurried):
    hurried.vendor.mig_faults["mode"] = [fault(FailureKind.IN_USE, IN_USE)] * 1000
    answer = await hurried.prepare(claim(hurried, "u1", SMALL))
    assert isinstance(answer, Refusal)
    assert answer.retryable
    for word in ("job-u1", "pid 77 (dcgm-exporter)"):
        assert word in answer.message
    assert hurried.vendor.mig_faults["mode"]
    await assert_nothing_left(hurried)


@pytest.mark.parametrize(
    ("holder", "wanted"), [(SMALL, BIG), (BIG, SMALL), (SMALL, "gpu-0"), ("gpu-0", SMALL), (SMALL, SHARED)]
)
@pytest.mark.case("C05")
async def test_what_cannot_exist_beside_another_claims_device_is_refused_with_the_holder(node, holder, wanted):
    await node.prepare(claim(node, "u1", holder))
    instances = places(node)
    allocated = share(SHARED, 7, memory="2Gi") if wanted == SHARED else wanted
    answer = await node.prepare(claim(node, "u2", allocated))
    assert isinstance(answer, Refusal)
    assert f"device {holder} still held by claim team-a/job-u1 (u1)" in answer.message
    assert places(node) == instances


async def test_a_partition_that_comes_free_during_the_call_is_had(tmp_path):
    async with partitioned(tmp_path, held_wait=60).running() as node:
        holder = claim(node, "u1", BIG)
        await node.prepare(holder)
        waiting = asyncio.create_task(node.prepare(claim(node, "u2", SMALL), within=60))
        while not node.preparation._claim_locks.is_wanted("u2"):
            await asyncio.sleep(0)
        await node.unprepare(holder)
        assert isinstance(await waiting, Prepared)
        assert places(node) == {PLACE}


@pytest.mark.case("C74")
async def test_a_partition_that_cannot_be_made_leaves_nothing_and_is_made_by_the_next_call(node):
    one = claim(node, "u1", SMALL)
    node.vendor.mig_faults["create"] = [fault(FailureKind.REFUSED, "no compute instance: insufficient resources")]
    answer = await node.prepare(one)
    assert "insufficient resources" in answer.message
    await assert_nothing_left(node)
    assert isinstance(await node.prepare(one), Prepared)
    assert places(node) == {PLACE}
    assert await node.unprepare(one) is None
    await assert_nothing_left(node)


@pytest.mark.case("C14")
async def test_of_several_partitions_all_are_made_or_none(node):
    made = node.vendor.create_mig_instance

    async def second_fails(gpu, placement):
        if placement == NEXT_PLACE:
            raise fault(FailureKind.REFUSED)
        return await made(gpu, placement)

    node.vendor.create_mig_instance = second_fails
    both = claim(node, "u1", result(SMALL, "a"), result(NEXT, "b"))
    assert isinstance(await node.prepare(both), Refusal)
    await assert_nothing_left(node)


@pytest.mark.case("C79")
async def test_a_partition_in_use_is_an_error_until_it_is_let_go_and_stays_held_meanwhile(hurried):
    one = claim(hurried, "u1", SMALL)
    await hurried.prepare(one)
    hurried.vendor.mig_faults["destroy"] = [fault(FailureKind.IN_USE, IN_USE)] * 1000
    refusal = await hurried.unprepare(one)
    assert refusal.retryable
    assert IN_USE in refusal.message
    answer = await hurried.prepare(claim(hurried, "u2", SMALL))
    assert f"device {SMALL} still held by claim team-a/job-u1 (u1) ({IN_USE}" in answer.message
    assert isinstance(await hurried.prepare(claim(hurried, "u3", NEXT)), Prepared)
    hurried.vendor.mig_faults["destroy"] = []
    assert await hurried.unprepare(one) is None
    assert await hurried.unprepare(ref("u3")) is None
    await assert_nothing_left(hurried)


@pytest.mark.case("C79")
async def test_a_partition_that_is_let_go_within_the_call_costs_no_second_one(node):
    one = claim(node, "u1", SMALL)
    await node.prepare(one)
    node.vendor.mig_faults["destroy"] = [fault(FailureKind.IN_USE, IN_USE)]
    assert await node.unprepare(one, within=60) is None
    await assert_nothing_left(node)


@pytest.mark.case("C13")
async def test_whoever_waits_for_a_partition_to_be_let_go_holds_up_no_other_partition_of_the_gpu(node):
    one = claim(node, "u1", SMALL)
    await node.prepare(one)
    in_use = node.vendor.mig_faults["destroy"] = [fault(FailureKind.IN_USE, IN_USE)] * 1000
    leaving = asyncio.create_task(node.unprepare(one, within=60))
    while len(in_use) == 1000:
        await asyncio.sleep(0)
    assert isinstance(await node.prepare(claim(node, "u2", NEXT), within=60), Prepared)
    assert not leaving.done()
    in_use.clear()
    assert await leaving is None
    assert places(node) == {NEXT_PLACE}


async def test_a_gpu_that_does_not_answer_keeps_no_pod_and_its_partition_is_not_forgotten(node):
    one = claim(node, "u1", SMALL)
    await node.prepare(one)
    node.vendor.mig_faults["destroy"] = [fault(FailureKind.UNRESPONSIVE, "no answer within 15 s")]
    assert await node.unprepare(one) is None
    [kept] = await node.journal.records()
    assert (kept.state, kept.holds[0].device) == (State.UNPREPARING, SMALL)
    assert node.specs.claim_uids() == frozenset()
    await node.reconciler.reconcile()
    await assert_nothing_left(node)


@pytest.mark.case("C73")
async def test_an_administrators_partition_is_used_and_left_as_it_was(node):
    node.vendor.mig_modes[UUID] = True
    before = node.vendor.put_instance(UUID, PLACE)
    await node.look()
    assert "gpu-0" not in node.inventory.devices
    one = claim(node, "u1", SMALL)
    assert isinstance(await node.prepare(one), Prepared)
    await node.look()
    assert "gpu-0" not in node.inventory.devices
    assert paths(node, "u1") == ["/dev/nvidia0", f"/dev/nvidia-caps/{MIG}"]
    assert await node.unprepare(one) is None
    assert node.vendor.instances == {(UUID, PLACE): before}
    assert mode(node)
    assert not any(call.startswith(("create", "destroy")) for call in node.vendor.calls)


@pytest.mark.case("C73")
async def test_an_administrators_partition_that_he_has_destroyed_is_not_made_for_him(node):
    node.vendor.mig_modes[UUID] = True
    node.vendor.put_instance(UUID, PLACE)
    one = claim(node, "u1", SMALL)
    await node.prepare(one)
    node.vendor.instances.clear()
    report = await node.reconciler.reconcile()
    assert "made by an administrator" in report.failures[0]
    assert places(node) == set()


async def test_what_comes_and_goes_for_claims_changes_nothing_that_is_published(node):
    wires = [device.wire for device in node.inventory.devices.values()]
    one = claim(node, "u1", SMALL)
    await node.prepare(one)
    await node.look()
    assert [device.wire for device in node.inventory.devices.values()] == wires
    await node.unprepare(one)
    await node.look()
    assert [device.wire for device in node.inventory.devices.values()] == wires


async def test_shares_of_a_partition_make_it_once_and_the_last_one_destroys_it(node):
    first, second = part(node, 1), part(node, 2)
    assert isinstance(await node.prepare(first), Prepared)
    assert isinstance(await node.prepare(second), Prepared)
    assert node.mps.held == {(MIG, share_name(share_id(number))): MpsLimits(20, 2 * GIB) for number in (1, 2)}
    assert await node.unprepare(first) is None
    assert (places(node), len(node.mps.held)) == ({PLACE}, 1)
    assert await node.unprepare(second) is None
    await assert_nothing_left(node)


async def test_a_container_of_such_a_share_has_its_limits_in_the_environment_by_the_partition(node):
    await node.prepare(part(node, 1))
    [device] = node.specs.read("u1").devices
    assert {f"DEVICE={MIG}", "PERCENT=20", f"MEMORY={2 * GIB}"} <= set(device.container_edits.env)
    assert paths(node, "u1") == ["/dev/nvidia0", f"/dev/nvidia-caps/{MIG}"]


async def test_shares_are_counted_partition_by_partition(node):
    other = SHARED.replace("19-2", "19-3")
    assert isinstance(await node.prepare(part(node, 1, percent=60)), Prepared)
    beside = claim(node, "u2", share(other, 2, percent=60, memory="2Gi"))
    assert isinstance(await node.prepare(beside), Prepared)
    answer = await node.prepare(part(node, 3, percent=60))
    assert "60 % of its SMs are wanted, 40 % are free; the rest has claim team-a/job-u1 (u1):" in answer.message
    answer = await node.prepare(part(node, 4, memory="8Gi"))
    assert "8Gi of its memory are wanted" in answer.message


async def test_a_partition_is_shared_by_mps_within_its_claim(node):
    mps = config("MigDeviceConfig", sharing={"strategy": "MPS"})
    one = claim(node, "u1", SMALL, configs=[mps])
    assert isinstance(await node.prepare(one), Prepared)
    assert node.mps.held == {(MIG, claim_share_name("u1")): MpsLimits()}
    assert await node.unprepare(one) is None
    await assert_nothing_left(node)


async def test_a_share_whose_partition_is_gone_is_given_up_all_the_same(node):
    one = part(node, 1)
    await node.prepare(one)
    node.vendor.instances.clear()
    node.machine.doubt(UUID)
    assert await node.unprepare(one) is None
    await assert_nothing_left(node)


@pytest.mark.parametrize("lost", ["instance", "mode"])
async def test_a_partition_that_vanished_is_made_again_by_reconciliation(node, lost):
    one = claim(node, "u1", SMALL)
    other = claim(node, "u2", share(f"{NEXT}-shared", 2, memory="2Gi"))
    await node.prepare(one)
    await node.prepare(other)
    node.vendor.instances.clear()
    node.mps.held.clear()
    if lost == "mode":
        node.vendor.mig_modes.clear()
    report = await node.reconciler.reconcile()
    assert report.failures == []
    assert (places(node), mode(node), len(node.mps.held)) == ({PLACE, NEXT_PLACE}, True, 1)
    for each in (one, other):
        assert await node.unprepare(each) is None
    await assert_nothing_left(node)


@pytest.mark.case("C22")
async def test_after_a_reboot_partitions_are_made_anew_and_what_an_administrator_made_first_is_his(tmp_path):
    async with partitioned(tmp_path).running() as node:
        one, other = claim(node, "u1", SMALL), claim(node, "u2", NEXT)
        await node.prepare(one)
        await node.prepare(other)
    again = partitioned(tmp_path, boot="boot-2")
    again.api = node.api
    again.vendor.mig_modes[UUID] = True
    again.vendor.put_instance(UUID, PLACE)
    async with again.running():
        report = await again.reconciler.recover()
        assert report.failures == []
        assert places(again) == {PLACE, NEXT_PLACE}
        for each in (one, other):
            assert await again.unprepare(each) is None
        assert (places(again), mode(again)) == ({PLACE}, True)


async def lose_journal(node: Node) -> None:
    for uid in [record.ref.uid for record in await node.journal.records()]:
        await node.journal.forget(uid)


async def test_a_lost_journal_is_rebuilt_from_the_file_and_the_partition_goes_with_its_claim(node):
    one = claim(node, "u1", SMALL)
    answer = await node.prepare(one)
    await lose_journal(node)
    await node.look()
    assert (await node.reconciler.adopt()).adopted == 1
    assert isinstance(await node.prepare(claim(node, "u2", BIG)), Refusal)
    await node.reconciler.reconcile()
    assert await node.prepare(one) == answer
    assert await node.unprepare(one) is None
    assert places(node) == set()


async def test_a_lost_journal_makes_no_administrators_partition_one_to_destroy(node):
    node.vendor.mig_modes[UUID] = True
    node.vendor.put_instance(UUID, PLACE)
    one = claim(node, "u1", SMALL)
    await node.prepare(one)
    await lose_journal(node)
    assert (await node.reconciler.adopt()).adopted == 1
    await node.reconciler.reconcile()
    assert await node.unprepare(one) is None
    assert places(node) == {PLACE}


async def test_shares_of_a_partition_are_adopted_by_their_names_although_the_view_is_not_published_any_more(node):
    one = part(node, 1)
    await node.prepare(one)
    await lose_journal(node)
    node.inventory = inventory_of(GPUS)
    assert (await node.reconciler.adopt()).adopted == 1
    [found] = await node.journal.records()
    assert [holder.units for holder in found.partitions] == [PLACE.units]
    assert await node.unprepare(one) is None
    assert (places(node), node.mps.held) == (set(), {})


async def test_a_claim_keeps_its_partition_when_nothing_of_its_gpu_is_published_any_more(node):
    one = claim(node, "u1", SMALL)
    answer = await node.prepare(one)
    node.inventory = inventory_of(GPUS, options=ViewOptions(()))
    report = await node.reconciler.reconcile()
    assert report.failures == []
    assert await node.prepare(one) == answer
    assert await node.unprepare(one) is None
    await assert_nothing_left(node)


@pytest.mark.case("C77")
async def test_a_half_prepared_claim_of_an_administrators_partition_ends_without_a_call_to_the_gpu(tmp_path):
    async with partitioned(tmp_path).running() as node:
        node.vendor.mig_modes[UUID] = True
        node.vendor.put_instance(UUID, PLACE)
        one = claim(node, "u1", SMALL)
        await node.prepare(one)
        await node.journal.mark("u1", State.PREPARING)
    without = Node(tmp_path)
    without.inventory = inventory_of(GPUS)
    without.vendor.mig_modes[UUID] = True
    async with without.running():
        assert await without.unprepare(one) is None
        assert await without.journal.records() == []
        assert without.vendor.calls == []


async def test_an_orphaned_share_of_a_partition_is_given_up(node):
    node.vendor.mig_modes[UUID] = True
    node.vendor.put_instance(UUID, PLACE)
    await node.look()
    await node.mps.share(MIG, share_name(share_id(9)), MpsLimits())
    report = await node.reconciler.reconcile()
    assert (report.orphaned_shares, node.mps.held) == (1, {})
