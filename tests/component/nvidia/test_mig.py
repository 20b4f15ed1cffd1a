"""Partitioning by NVML: what is read, made and unmade, and who is told to stand in the way."""

import os

import pynvml
import pytest

from dra_gpu.inventory.model import MigInstance, MigPlacement
from dra_gpu.vendors.base import FailureKind, VendorError
from tests.component.nvidia.conftest import place

IN_USE, RESET_REQUIRED, INSUFFICIENT, UNKNOWN = (
    pynvml.NVML_ERROR_IN_USE,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
    pynvml.NVML_ERROR_UNKNOWN,
)
SET_MODE, MAKE_COMPUTE = "nvmlDeviceSetMigMode", "nvmlGpuInstanceCreateComputeInstance"


async def refused(call) -> VendorError:
    with pytest.raises(VendorError) as refusal:
        await call
    return refusal.value


async def test_a_gpu_tells_its_profiles_and_their_places_whether_or_not_mig_is_on(bed):
    off = await bed.gpu()
    await bed.vendor.set_mig_mode(off, enabled=True)
    on = await bed.gpu()

    small = off.mig_profiles[0]
    assert (small.profile, small.profile_id, small.name, small.slices) == (0, 19, "1g.10gb", 1)
    assert [at.start for at in small.placements] == list(range(7))
    assert {profile.name for profile in off.mig_profiles} >= {"1g.10gb+me", "1g.20gb", "7g.80gb"}
    assert (off.mig_enabled, on.mig_enabled, on.mig_live) == (False, True, True)
    assert on.mig_profiles == off.mig_profiles


async def test_instances_are_told_with_their_mig_device(bed):
    gpu = await bed.partitioned()
    made = await bed.vendor.create_mig_instance(gpu, place(gpu, "3g.40gb", 4))

    [found] = (await bed.gpu()).mig_instances

    [truth] = bed.instances()
    [compute] = truth.compute_instances
    assert found == made == MigInstance(place(gpu, "3g.40gb", 4), truth.id, compute.id, compute.uuid)
    assert await bed.vendor.mig_instance(gpu, found.placement) == found
    assert await bed.vendor.mig_instance(gpu, place(gpu, "3g.40gb", 0)) is None


@pytest.mark.case("C68")
@pytest.mark.parametrize("profile", ["P-plain2", "L4", "P-vgpu1"])
async def test_a_gpu_without_mig_is_found_as_ever(make_bed, profile):
    gpu = await make_bed(profile).gpu()

    assert (gpu.mig_capable, gpu.mig_enabled, gpu.mig_profiles, gpu.mig_instances) == (False, None, (), ())


@pytest.mark.case("C68")
@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstance*", "nvmlGpuInstance*", "nvmlDeviceGetMigDeviceHandleByIndex"],
)
async def test_a_call_about_partitions_that_fails_never_costs_the_gpu(bed, call):
    gpu = await bed.partitioned()
    await bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb"))
    bed.node.inject(call, code=UNKNOWN)

    scan = await bed.vendor.scan()

    assert [one.uuid for one in scan.gpus] == [gpu.uuid]
    assert scan.sick == ()


async def test_what_could_not_be_read_this_time_is_what_it_was_the_last_time(bed):
    gpu = await bed.partitioned()
    await bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb"))
    before = await bed.gpu()
    bed.node.inject("nvmlGpuInstanceGetInfo", code=UNKNOWN, count=2)

    assert await bed.gpu() == before
    assert [fault.remaining for fault in bed.node.faults()] == []


async def test_what_could_not_be_read_right_after_the_mode_has_changed_costs_no_profile(bed):
    before = await bed.partitioned()
    bed.node.inject("nvmlDeviceGetGpuInstances", code=UNKNOWN)

    after = await bed.gpu()

    assert after.mig_enabled
    assert after.mig_profiles == before.mig_profiles


async def test_links_that_rest_while_a_gpu_is_partitioned_are_still_what_it_has_as_a_whole(bed):
    gpu = await bed.partitioned()
    bed.node.set_links(0, up=False)

    partitioned = await bed.gpu()
    await bed.vendor.set_mig_mode(partitioned, enabled=False)
    whole = await bed.gpu()

    assert partitioned.nvlinks == gpu.nvlinks
    assert any(link.active for link in gpu.nvlinks)
    assert not any(link.active for link in whole.nvlinks)


async def test_an_instance_that_goes_while_it_is_looked_at_is_gone(bed):
    gpu = await bed.partitioned()
    await bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb", 0))
    kept = await bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb", 1))
    bed.node.inject("nvmlGpuInstanceGetInfo", code=pynvml.NVML_ERROR_INVALID_ARGUMENT, count=1)

    assert (await bed.gpu()).mig_instances == (kept,)


async def test_the_mode_changes_at_once_and_back(bed):
    gpu = await bed.gpu()
    await bed.vendor.set_mig_mode(gpu, enabled=True)
    assert bed.modes() == (True, True)
    assert await bed.vendor.mig_mode(gpu)

    await bed.vendor.set_mig_mode(gpu, enabled=False)

    assert bed.modes() == (False, False)
    assert not await bed.vendor.mig_mode(gpu)


async def test_a_gpu_that_is_in_its_mode_already_is_left_alone(bed):
    gpu = await bed.gpu()

    await bed.vendor.set_mig_mode(gpu, enabled=False)

    assert bed.node.calls(SET_MODE) == []


@pytest.mark.case("C71")
async def test_a_gpu_that_needs_a_reset_is_never_asked_to_change_its_mode(make_bed):
    bed = make_bed("A100")
    gpu = await bed.gpu()

    refusal = await refused(bed.vendor.set_mig_mode(gpu, enabled=True))

    assert refusal.kind is FailureKind.REFUSED
    assert f"nvidia-smi -i {gpu.uuid} -mig 1" in str(refusal)
    assert "reset" in str(refusal)
    assert bed.modes() == (False, False)
    assert bed.node.calls(SET_MODE) == []


@pytest.mark.case("C71")
async def test_a_pending_change_of_a_gpu_that_needs_a_reset_is_told_and_left(make_bed):
    bed = make_bed("A100", settings=["gpu.0.mig_pending=1"])

    gpu = await bed.gpu()
    await bed.vendor.set_mig_mode(gpu, enabled=False)

    assert (gpu.mig_enabled, gpu.mig_pending, gpu.mig_live) == (False, True, False)
    assert bed.modes() == (False, True)


@pytest.mark.case("C71")
async def test_success_that_leaves_the_change_pending_is_a_refusal_and_nothing_stays_pending(bed):
    bed.node.set_mig_pending(0, pending=True)
    gpu = await bed.gpu()

    refusal = await refused(bed.vendor.set_mig_mode(gpu, enabled=True))

    assert refusal.kind is FailureKind.REFUSED
    assert "reset the GPU" in str(refusal)
    assert bed.modes() == (False, False)


@pytest.mark.case("C71")
async def test_a_gpu_that_a_monitor_holds_open_keeps_its_mode_and_the_monitor_is_named(bed):
    gpu = await bed.gpu()
    with bed.held() as pid:
        refusal = await refused(bed.vendor.set_mig_mode(gpu, enabled=True))

        assert refusal.kind is FailureKind.IN_USE
        assert f"pid {pid} (" in str(refusal)
        assert "import pynvml" in str(refusal)
        assert str(os.getpid()) not in str(refusal)
        assert bed.modes() == (False, False)

    await bed.vendor.set_mig_mode(gpu, enabled=True)


async def test_a_gpu_that_a_program_computes_on_keeps_its_mode_and_the_program_is_named(bed):
    gpu = await bed.gpu()
    with bed.node.client() as client:
        bed.show(client.pid)
        assert client.attached.startswith("attached")

        refusal = await refused(bed.vendor.set_mig_mode(gpu, enabled=True))

        assert refusal.kind is FailureKind.IN_USE
        assert f"pid {client.pid} ({bed.node.cuda_client}" in str(refusal)


@pytest.mark.parametrize("at_once", [True, False])
async def test_whoever_cannot_be_seen_is_said_to_be_so(bed, at_once):
    """NVML tells of a client by an error of the call, or by the call's second answer."""
    gpu = await bed.gpu()
    if at_once:
        bed.node.inject(SET_MODE, code=IN_USE, count=1)
    else:
        bed.node.add_process(os.getpid(), 0, memory=1 << 30)

    refusal = await refused(bed.vendor.set_mig_mode(gpu, enabled=True))

    assert refusal.kind is FailureKind.IN_USE
    assert "cannot be seen from here" in str(refusal)
    assert bed.modes() == (False, False)


async def test_a_change_that_still_waits_on_a_live_gpu_is_withdrawn_when_the_present_mode_is_wanted(make_bed):
    bed = make_bed(settings=["gpu.0.mig_pending=1"])

    await bed.vendor.set_mig_mode(await bed.gpu(), enabled=False)

    assert bed.modes() == (False, False)


async def test_a_gpu_with_instances_stays_in_mig_mode(bed):
    gpu = await bed.partitioned()
    made = await bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb", 5))

    refusal = await refused(bed.vendor.set_mig_mode(gpu, enabled=False))

    assert refusal.kind is FailureKind.REFUSED
    assert f"{made.gpu_instance} (units 5 on)" in str(refusal)
    assert bed.modes() == (True, True)


async def test_a_gpu_without_mig_cannot_be_put_into_it(make_bed):
    bed = make_bed("L4")

    refusal = await refused(bed.vendor.set_mig_mode(await bed.gpu(), enabled=True))

    assert refusal.kind is FailureKind.UNSUPPORTED


async def test_every_profile_of_every_board_is_made_at_each_of_its_places_and_unmade(make_bed):
    for board in ("A100", "H100", "RTX-PRO-6000"):
        bed = make_bed(board, settings=["gpu.0.mig_support=1", "gpu.0.mig_current=1", "gpu.0.mig_pending=1"])
        gpu = await bed.gpu()
        for profile in gpu.mig_profiles:
            for at in profile.placements:
                made = await bed.vendor.create_mig_instance(gpu, at)
                [truth] = bed.instances()
                assert (truth.profile.removeprefix("MIG "), truth.start) == (profile.name, at.start)
                assert made.uuid == truth.compute_instances[0].uuid
                assert truth.compute_instances[0].slices == profile.slices
                await bed.vendor.destroy_mig_instance(gpu, at)
                assert bed.instances() == ()


async def test_making_and_unmaking_may_be_repeated(bed):
    gpu = await bed.partitioned()
    at = place(gpu, "2g.20gb", 2)

    first = await bed.vendor.create_mig_instance(gpu, at)
    assert await bed.vendor.create_mig_instance(gpu, at) == first
    assert len(bed.instances()) == 1

    await bed.vendor.destroy_mig_instance(gpu, at)
    await bed.vendor.destroy_mig_instance(gpu, at)
    assert bed.instances() == ()


async def test_unmaking_on_a_gpu_that_is_not_in_mig_mode_is_as_good(bed):
    gpu = await bed.gpu()

    await bed.vendor.destroy_mig_instance(gpu, place(gpu, "1g.10gb"))

    assert await bed.vendor.mig_instance(gpu, place(gpu, "1g.10gb")) is None


@pytest.mark.case("C74")
async def test_a_gpu_instance_whose_compute_instance_fails_does_not_stay(bed):
    gpu = await bed.partitioned()
    bed.node.inject(MAKE_COMPUTE, code=INSUFFICIENT, count=1)

    refusal = await refused(bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb")))

    assert refusal.kind is FailureKind.TRANSIENT
    assert bed.instances() == ()
    assert (await bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb"))).uuid


@pytest.mark.case("C74")
async def test_a_gpu_instance_left_by_a_crash_is_completed_and_not_undone_by_a_failure(bed):
    gpu = await bed.partitioned()
    at = place(gpu, "1g.10gb")
    bed.node.inject(MAKE_COMPUTE, code=INSUFFICIENT, count=2)
    bed.node.inject("nvmlGpuInstanceDestroy", code=UNKNOWN, count=1)
    await refused(bed.vendor.create_mig_instance(gpu, at))
    [left] = bed.instances()
    assert left.compute_instances == ()

    await refused(bed.vendor.create_mig_instance(gpu, at))
    assert bed.instances() == (left,)
    made = await bed.vendor.create_mig_instance(gpu, at)

    assert (made.gpu_instance, len(bed.instances())) == (left.id, 1)
    assert made.uuid


async def test_a_place_that_others_take_is_in_use_and_they_are_told(bed):
    gpu = await bed.partitioned()
    await bed.vendor.create_mig_instance(gpu, place(gpu, "3g.40gb", 0))

    refusal = await refused(bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb", 2)))

    assert refusal.kind is FailureKind.IN_USE
    assert "no room for a 1g.10gb at 2: the GPU has 3g.40gb at 0" in str(refusal)


async def test_an_instance_that_somebody_cut_into_several_is_nobodys_as_a_whole(bed):
    gpu = await bed.partitioned()
    at = place(gpu, "3g.40gb", 0)
    await bed.vendor.create_mig_instance(gpu, at)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, bed.instances()[0].id)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    for profile in (1, 0):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
    pynvml.nvmlShutdown()

    [found] = (await bed.gpu()).mig_instances
    assert (found.placement, found.compute_instance, found.uuid) == (at, None, None)
    refusal = await refused(bed.vendor.create_mig_instance(gpu, at))
    assert refusal.kind is FailureKind.REFUSED
    assert "-dci" in str(refusal)

    await bed.vendor.destroy_mig_instance(gpu, at)
    assert bed.instances() == ()


async def test_a_profile_that_the_gpu_does_not_have_is_refused(bed):
    gpu = await bed.partitioned()

    refusal = await refused(bed.vendor.create_mig_instance(gpu, MigPlacement(10, 0, 1)))

    assert refusal.kind is FailureKind.UNSUPPORTED


async def test_nothing_is_made_on_a_gpu_that_has_left_mig_mode(bed):
    gpu = await bed.gpu()

    refusal = await refused(bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb")))

    assert refusal.kind is FailureKind.TRANSIENT
    assert "not in MIG mode" in str(refusal)


@pytest.mark.case("C79")
async def test_an_instance_that_a_program_uses_stays_and_the_program_is_named(bed):
    gpu = await bed.partitioned()
    at = place(gpu, "1g.10gb")
    made = await bed.vendor.create_mig_instance(gpu, at)
    other = await bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb", 1))
    clients = [bed.node.client(environment={"CUDA_VISIBLE_DEVICES": one.uuid}) for one in (made, other)]
    with clients[0] as user, clients[1] as bystander:
        bed.show(user.pid)
        bed.show(bystander.pid)
        assert user.attached.startswith("attached")
        assert bystander.attached.startswith("attached")

        refusal = await refused(bed.vendor.destroy_mig_instance(gpu, at))

        assert refusal.kind is FailureKind.IN_USE
        assert f"its 1g.10gb at 0 is in use by pid {user.pid} (" in str(refusal)
        assert f"pid {bystander.pid}" not in str(refusal)
        assert len(bed.instances()) == 2

    await bed.vendor.destroy_mig_instance(gpu, at)
    assert [truth.id for truth in bed.instances()] == [other.gpu_instance]


@pytest.mark.case("C79")
async def test_an_instance_that_cannot_go_because_of_a_monitor_names_the_monitor(bed):
    gpu = await bed.partitioned()
    at = place(gpu, "1g.10gb")
    await bed.vendor.create_mig_instance(gpu, at)
    bed.node.inject("nvmlGpuInstanceDestroy", code=IN_USE, count=1)
    with bed.held() as pid:
        refusal = await refused(bed.vendor.destroy_mig_instance(gpu, at))

    assert refusal.kind is FailureKind.IN_USE
    assert f"pid {pid} (" in str(refusal)
    await bed.vendor.destroy_mig_instance(gpu, at)
    assert bed.instances() == ()


@pytest.mark.case("C79")
async def test_the_drivers_own_look_at_a_gpu_never_stands_in_the_way(bed):
    gpu = await bed.gpu()
    for _ in range(3):
        await bed.vendor.scan()

        await bed.vendor.set_mig_mode(gpu, enabled=True)
        await bed.vendor.set_mig_mode(gpu, enabled=False)

    with bed.node.state() as state:
        assert not [session for session in state.sessions if session.used]


async def test_a_lost_gpu_of_the_node_does_not_keep_the_others_from_being_partitioned(make_bed):
    bed = make_bed(gpus=2)
    gpu = await bed.gpu(1)
    bed.node.lose_gpu(0)

    await bed.vendor.set_mig_mode(gpu, enabled=True)
    await bed.vendor.create_mig_instance(gpu, place(gpu, "7g.80gb"))

    assert len(bed.instances(1)) == 1


async def test_gpus_that_have_exchanged_their_device_nodes_are_not_touched_until_they_are_looked_at_again(make_bed):
    """The node, and what lets a container use a partition, go by that number."""
    bed = make_bed("P-dc8", gpus=2)
    gpu = await bed.partitioned()
    with bed.node.state() as state:
        first, second = state.gpus[0], state.gpus[1]
        first.minor, second.minor = second.minor, first.minor

    refusal = await refused(bed.vendor.create_mig_instance(gpu, place(gpu, "1g.10gb")))

    assert refusal.kind is FailureKind.TRANSIENT
    assert bed.instances() == ()
    again = await bed.gpu()
    assert (await bed.vendor.create_mig_instance(again, place(again, "1g.10gb"))).uuid is not None


async def test_a_gpu_that_is_no_longer_in_its_place_is_not_touched(make_bed):
    bed = make_bed(gpus=2)
    gpu = await bed.gpu(0)
    with bed.node.state() as state:
        state.gpus[0].uuid, state.gpus[1].uuid = state.gpus[1].uuid, state.gpus[0].uuid

    refusal = await refused(bed.vendor.set_mig_mode(gpu, enabled=True))

    assert refusal.kind is FailureKind.TRANSIENT
    assert (bed.modes(0), bed.modes(1)) == ((False, False), (False, False))


async def test_fifty_lives_of_partitions_leave_the_node_as_it_was(bed):
    before = bed.node.snapshot()
    gpu = await bed.gpu()
    for number in range(50):
        at = place(gpu, "1g.10gb", number % 7)
        await bed.vendor.set_mig_mode(gpu, enabled=True)
        await bed.vendor.create_mig_instance(gpu, at)
        await bed.vendor.destroy_mig_instance(gpu, at)
        await bed.vendor.set_mig_mode(gpu, enabled=False)

    assert bed.node.snapshot() == before
    assert not list(bed.node.dev_root.glob("nvidia-caps/nvidia-cap[3-9]*"))
