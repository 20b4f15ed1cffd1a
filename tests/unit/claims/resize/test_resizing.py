"""A share on the node while its resize goes on: what is set, what is said, what is published, and in which order."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from dra_gpu.api.claim_resize import AppliesTo, HeldProcess
from dra_gpu.api.resource_v1 import ResourceClaimConsumerReference
from dra_gpu.claims import device_status
from dra_gpu.claims.outcome import ClaimRef, Prepared, Refusal
from dra_gpu.claims.ports import ClaimReadError
from dra_gpu.claims.shares import MEBI, share_name
from dra_gpu.inventory.amounts import NOTHING
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from dra_gpu.mps.service import Limits, MpsError, MpsErrorKind
from tests.unit.claims.resize.resized import DEVICE, Controller, ResizedNode, amounts, told
from tests.unit.claims.world import (
    DRIVER,
    EVERY_VIEW,
    PATIENCE,
    inventory_of,
    mig_uuid,
    partitionable_gpus,
    share,
    share_id,
    shared_config,
)

GIVEN_BACK = amounts(90, 60) - amounts(20, 16)


async def test_limits_fall_before_anything_is_published_for_them(node, training):
    training.want(20, 16)

    await training.visit()

    assert (node.mps_of(1), node.memory_of(1)) == (20, 16)
    assert training.said.in_force == told(amounts(20, 16))
    assert training.said.give_back == told(GIVEN_BACK)
    assert training.said.round == 1
    assert node.server.offered[training.key] == NOTHING


async def test_what_is_over_is_published_once_the_claim_cannot_be_freed(node, training):
    training.want(20, 16)
    await training.visit()

    training.reserve()
    await training.visit()
    assert node.server.offered[training.key] == GIVEN_BACK
    assert training.said.given_back == told(NOTHING)
    node.server.publish()
    await training.visit()

    assert training.said.given_back == told(GIVEN_BACK)
    assert training.said.permit == 1


async def test_memory_in_use_above_the_new_limit_is_waited_for_and_told_by_process(node, training):
    node.use(1, 40, pid=4711)
    training.want(90, 16)

    visit = await training.visit()

    assert visit.waiting
    assert node.memory_of(1) == 16
    assert training.said.in_force == told(amounts(90, 60))
    assert training.said.waiting_for == [HeldProcess(4711, "program-4711")]
    assert training.said.reason == "WaitingForWorkload"
    node.use(1, 15)
    assert not (await training.visit()).waiting
    assert training.said.in_force == told(amounts(90, 16))
    assert training.said.waiting_for == []


async def test_what_several_pods_use_together_is_waited_for(node):
    ref = ClaimRef("team", "c1", "claim-1")
    for number in (1, 2, 3):
        node.vendor.cgroups[f"pod-{number}"] = f"/kubepods/pod-{number}"
    node.api.add(ref, share(DEVICE, 1, percent=90, memory="60Gi"), pods=("pod-1", "pod-2", "pod-3"))
    assert isinstance(await node.prepare(ref), Prepared)
    training = Controller(node, ref, 1, 90, 60)
    for number in (1, 2, 3):
        node.use(number, 20, pid=number)
    training.want(90, 20)

    assert (await training.visit()).waiting

    assert [node.memory_of(number) for number in (1, 2, 3)] == [20, 20, 20]
    assert training.said.in_force == told(amounts(90, 60))
    assert [one.pid for one in training.said.waiting_for] == [1, 2, 3]
    assert "61440 MiB of memory are in use (pids 1, 2, 3), 20480 MiB are wanted" in training.said.message
    node.use(2, 0)
    node.use(3, 0)
    assert not (await training.visit()).waiting
    assert training.said.in_force == told(amounts(90, 20))


async def test_compute_waits_until_no_client_is_attached_and_memory_does_not_wait_for_it(node, training):
    node.attach(1, 4711, 4712)
    training.want(20, 16)

    visit = await training.visit()

    assert visit.waiting
    assert training.said.in_force == told(amounts(90, 16))
    assert [one.pid for one in training.said.waiting_for] == [4711, 4712]
    assert node.mps_of(1) == 90
    node.attach(1)
    await training.visit()
    assert node.mps_of(1) == 20
    assert training.said.in_force == told(amounts(20, 16))


async def test_a_claim_is_prepared_again_while_its_compute_waits_for_clients(node, training):
    node.attach(1, 4711)
    training.want(20, 16)
    await training.visit()

    assert isinstance(await node.prepare(training.ref), Prepared)

    assert node.mps_of(1) == 90


async def test_it_grows_into_what_the_scheduler_has_allocated_and_never_into_what_it_gave_back(node, training):
    await training.give_back(20, 16)

    training.want(90, 60)
    await training.visit()
    assert training.said.in_force == told(amounts(20, 16))
    training.permit(160, 104)
    await training.visit()

    assert training.said.in_force == told(amounts(90, 60))
    assert (node.mps_of(1), node.memory_of(1)) == (90, 60)
    assert training.published == GIVEN_BACK


async def test_a_growth_is_let_go_only_when_the_server_has_less(node, training):
    await training.give_back(20, 16)
    training.want(90, 60)
    training.permit(160, 104)
    await training.visit()

    training.permit(90, 60)
    await training.visit()
    assert node.server.offered[training.key] == NOTHING
    assert training.said.permit == 2
    node.server.publish()
    await training.visit()

    assert training.said.permit == 3
    assert training.said.given_back == told(NOTHING)
    assert training.said.released_round == training.said.round


async def test_a_limit_is_not_raised_into_what_other_claims_have(node, training):
    await training.give_back(20, 16)
    other = await node.claim(2, 75, 40)
    assert isinstance(await node.prepare(other), Prepared)

    training.want(90, 60)
    training.permit(160, 104)
    visit = await training.visit()

    assert visit.waiting
    assert training.said.reason == "ShareNotFree"
    assert "team/c2" in training.said.message
    assert training.said.in_force == told(amounts(20, 16))
    assert training.said.give_back == told(GIVEN_BACK)
    await node.unprepare(other)
    await training.visit()
    assert training.said.in_force == told(amounts(90, 60))


async def test_prepare_counts_what_is_in_force_and_not_what_was_allocated(node, training):
    other = await node.claim(2, 75, 40)
    refused = await node.prepare(other)
    assert isinstance(refused, Refusal)
    assert "ShareNotFree" in refused.message

    training.want(20, 16)
    await training.visit()

    assert isinstance(await node.prepare(other), Prepared)


async def test_a_claim_whose_pod_is_gone_gives_up_what_it_gave_back(node, training):
    await training.give_back(20, 16)

    await node.unprepare(training.ref)
    await training.visit()
    assert node.server.offered[training.key] == NOTHING
    assert training.said.released_round == 0
    node.server.publish()
    await training.visit()

    assert training.said.prepared is False
    assert training.said.released_round == training.said.round == 1


async def test_another_pod_of_the_claim_gets_what_is_in_force(node, training):
    await training.give_back(20, 16)
    await node.unprepare(training.ref)
    await training.visit()

    assert isinstance(await node.prepare(training.ref), Prepared)

    assert (node.mps_of(1), node.memory_of(1)) == (20, 16)


async def test_a_pod_that_joins_is_limited_to_what_is_in_force(node, training):
    await training.give_back(20, 16)
    claim = node.api.claims["team", "c1"]
    node.vendor.cgroups["pod-9"] = "/kubepods/pod-9"
    node.api.add(training.ref, *claim.status.allocation.devices.results, pods=("pod-1", "pod-9"))

    await node.reconciler.reconcile()

    assert node.memory_of(9) == 16


async def test_reconciliation_leaves_a_resized_share_as_it_is(node, training):
    await training.give_back(20, 16)

    report = await node.reconciler.reconcile()

    assert not report.failures
    assert (node.mps_of(1), node.memory_of(1)) == (20, 16)


async def test_after_a_reboot_the_claim_is_prepared_with_what_is_in_force(tmp_path):
    before = ResizedNode(tmp_path)
    async with before.running():
        ref = await before.claim(1, 90, 60)
        await before.prepare(ref)
        controller = Controller(before, ref, 1, 90, 60)
        await controller.give_back(20, 16)
    after = ResizedNode(tmp_path)
    after.boot, after.api, after.server.offered = "boot-2", before.api, before.server.offered
    after.vendor.cgroups = before.vendor.cgroups
    async with after.running():
        controller.node = after
        after.server.publish()
        await controller.visit()
        assert controller.said.prepared
        assert controller.said.given_back == told(GIVEN_BACK)

        assert isinstance(await after.prepare(ref), Prepared)

        assert (after.mps_of(1), after.memory_of(1)) == (20, 16)


async def test_a_lost_journal_is_made_up_for_by_what_was_told(tmp_path):
    before = ResizedNode(tmp_path)
    async with before.running():
        ref = await before.claim(1, 90, 60)
        await before.prepare(ref)
        controller = Controller(before, ref, 1, 90, 60)
        await controller.give_back(20, 16)
        before.enter(ref)
    for path in (tmp_path / "state").glob("journal.db*"):
        path.unlink()
    after = ResizedNode(tmp_path)
    after.api, after.vendor, after.mps = before.api, before.vendor, before.mps
    after.resizes = controller
    async with after.running():
        controller.node = after
        await after.reconciler.reconcile()
        assert (after.mps_of(1), after.memory_of(1)) == (20, 16)

        await controller.visit()
        after.server.publish()
        await controller.visit()

        assert controller.said.in_force == told(amounts(20, 16))
        assert controller.published == GIVEN_BACK
        assert controller.said.given_back == told(GIVEN_BACK)


@pytest.mark.parametrize("known_by", ["its label", "the entry that keeps it allocated"])
async def test_a_growth_itself_is_never_prepared(node, known_by):
    ref = await node.claim(1, 20, 10)
    claim = node.api.claims["team", "c1"]
    labelled = known_by == "its label"
    labels = {"resource.dra-gpu.dev/claim-resize": "claim-0"} if labelled else {}
    metadata = type(claim.metadata)(name="c1", namespace="team", uid=ref.uid, labels=labels)
    entry = ResourceClaimConsumerReference("claimresizes", "training", "r", api_group="resource.dra-gpu.dev")
    users = claim.status.reserved_for if labelled else [*claim.status.reserved_for, entry]
    status = replace(claim.status, reserved_for=users)
    node.api.claims["team", "c1"] = type(claim)(metadata=metadata, status=status)

    refused = await node.prepare(ref)

    assert isinstance(refused, Refusal)
    assert not refused.retryable
    assert "is to grow by" in refused.message
    assert ("claim team/training" in refused.message) is not labelled


async def test_with_classic_mps_containers_started_with_more_are_waited_for(node):
    node.vendor.ability = SharingAbility(MpsProtocol.CLASSIC)
    node.mps.protocol = MpsProtocol.CLASSIC
    ref = await node.claim(1, 90, 60)
    await node.prepare(ref)
    training = Controller(node, ref, 1, 90, 60)
    old = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-1=61440M"}
    node.vendor.processes = {11: ("pod-1", old), 12: ("pod-2", old)}
    training.want(20, 16)

    await training.visit()
    await training.visit()

    assert [one.pid for one in training.said.waiting_for] == [11]
    assert training.said.in_force == told(amounts(90, 60))
    assert training.said.applies_to["computePercent"] is AppliesTo.NEW_PROCESSES
    node.vendor.processes = {}
    await training.visit()
    assert training.said.in_force == told(amounts(20, 16))


async def test_with_classic_mps_a_pod_that_was_force_deleted_counts_as_long_as_its_processes_live(node):
    node.vendor.ability = SharingAbility(MpsProtocol.CLASSIC)
    node.mps.protocol = MpsProtocol.CLASSIC
    ref = await node.claim(1, 90, 60)
    await node.prepare(ref)
    training = Controller(node, ref, 1, 90, 60)
    node.vendor.processes = {11: ("pod-1", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90"})}
    training.want(20, 60)
    await training.visit()
    results = node.api.claims["team", "c1"].status.allocation.devices.results

    node.api.add(ref, *results, pods=())
    await training.visit()
    assert training.said.in_force == told(amounts(90, 60))
    node.api.delete(ref)
    await training.visit()
    assert training.said.in_force == told(amounts(90, 60))

    node.api.add(ref, *results, pods=())
    node.vendor.processes = {}
    await training.visit()
    assert training.said.in_force == told(amounts(20, 60))


async def test_with_time_slices_nothing_keeps_a_limit_from_holding(node):
    ref = await node.claim(1, 90, 60)
    result = node.api.claims["team", "c1"].status.allocation.devices.results[0]
    node.vendor.ability = SharingAbility(None)
    node.api.add(ref, result, configs=[shared_config(strategy="TimeSlicing")], pods=("pod-1",))
    await node.prepare(ref)
    training = Controller(node, ref, 1, 90, 60)
    training.want(20, 16)

    await training.visit()

    assert training.said.in_force == told(amounts(20, 16))


async def test_what_a_claim_has_now_is_told_anew_beside_what_it_was_allocated(node, training):
    training.want(20, 16)

    await training.visit()

    assert [record.ref.uid for record in node.resized] == ["claim-1"]
    [status] = device_status.statuses(node.resized[0], DRIVER, node.inventory.gpus.get)
    memory = msgspec.json.decode(status.data)["capacities"]["memory"]
    assert (memory["requested"], memory["effective"]) == ("60Gi", "16Gi")


async def test_a_claim_that_waits_for_room_is_prepared_when_a_limit_falls(tmp_path):
    waiting = ResizedNode(tmp_path)
    waiting.held_wait = PATIENCE
    async with waiting.running() as node:
        first, second = await node.claim(1, 90, 60), await node.claim(2, 75, 40)
        await node.prepare(first)
        training = Controller(node, first, 1, 90, 60)
        preparing = asyncio.create_task(node.prepare(second))
        while not node.preparation._claim_locks.is_wanted(second.uid):
            await asyncio.sleep(0)
        training.want(20, 16)

        await training.visit()

        assert isinstance(await preparing, Prepared)


async def test_while_the_api_server_is_away_everything_stays_as_it_is(node, training):
    training.want(20, 16)
    node.api.fault = ClaimReadError("away", retryable=True)
    with pytest.raises(ClaimReadError):
        await training.visit()
    assert (node.mps_of(1), node.memory_of(1)) == (90, 60)
    assert node.server.offered[training.key] == NOTHING

    node.api.fault = None
    await training.visit()

    assert training.said.in_force == told(amounts(20, 16))


async def test_a_driver_that_refuses_a_limit_is_said_and_asked_again(node, training):
    node.mps.faults = [MpsError(MpsErrorKind.UNSUPPORTED, "MPS does not know how")]
    training.want(20, 16)

    visit = await training.visit()

    assert visit.waiting
    assert (training.said.reason, training.said.message) == ("LimitsNotSet", "MPS does not know how")
    assert training.said.in_force == told(amounts(90, 60))
    await training.visit()
    assert training.said.in_force == told(amounts(20, 16))


async def test_an_object_from_before_changes_nothing(node, training):
    old = training.object
    await training.give_back(20, 16)
    training.permit(90, 60)
    await training.visit()

    await node.resizing.visit(training.key, old)

    assert (node.mps_of(1), node.memory_of(1)) == (20, 16)


async def test_a_share_of_a_partition_is_resized_within_the_partition(tmp_path):
    node = ResizedNode(tmp_path)
    gpus = partitionable_gpus(1)
    node.inventory = inventory_of(gpus, options=EVERY_VIEW)
    device = "gpu-0-mig-1g10gb-19-2-shared"
    async with node.running():
        ref = ClaimRef("team", "part", "claim-part")
        node.api.add(ref, share(device, 1, percent=80, memory="8Gi"), pods=("pod-1",))
        assert isinstance(await node.prepare(ref), Prepared)
        part = Controller(node, ref, 1, 80, 8, device=device)
        node.vendor.processes = {11: ("pod-1", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "80"})}

        part.want(30, 2)
        await part.visit()
        await part.visit()
        assert part.said.in_force == told(amounts(80, 2))
        node.vendor.processes = {}
        await part.visit()

        assert part.said.in_force == told(amounts(30, 2))
        mig = mig_uuid(gpus[0].uuid, MigPlacement(0, 2, 1))
        assert node.mps.held[mig, share_name(share_id(1))] == Limits(30, 2 * 1024 * MEBI)
