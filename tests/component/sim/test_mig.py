"""MIG: modes, geometry, instances and their handles."""

import ctypes
import os
import random
import shutil

import pytest

from dra_gpu_sim.boards import MigProfile, mig_tables
from tests.component.sim.conftest import code

ONE, THREE = 19, 9
"""GPU instance profile ids of 1g and 3g on seven-slice boards."""


def enable(nvml, index=0):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == 0
    return handle


def create(nvml, handle, profile, start, size):
    place = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, ctypes.byref(place))


def partition(nvml, handle, profile=ONE, start=0, size=1, slices=1):
    """A GPU instance with one compute instance over all of it: GI, CI and the MIG device."""
    gi = create(nvml, handle, profile, start, size)
    ci = nvml.nvmlGpuInstanceCreateComputeInstance(gi, {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices])
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        if code(lambda index=index: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)) == 0:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            if nvml.nvmlDeviceGetGpuInstanceId(device) == nvml.nvmlGpuInstanceGetInfo(gi).id:
                return gi, ci, device
    raise AssertionError("the MIG device of the new instance is not listed")


def test_a_partition_is_made_described_and_removed(node, nvml):
    handle = enable(nvml)
    gi, ci, device = partition(nvml, handle, THREE, 4, 4, 3)
    attributes = nvml.nvmlDeviceGetAttributes(device)
    assert (attributes.multiprocessorCount, attributes.memorySizeMB, attributes.gpuInstanceSliceCount) == (
        60,
        40_448,
        3,
    )
    assert nvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)) == node.uuids[0]
    uuid = nvml.nvmlDeviceGetUUID(device)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    assert nvml.nvmlDeviceGetMemoryInfo(device).total == 40_448 << 20
    nvml.nvmlComputeInstanceDestroy(ci)
    nvml.nvmlGpuInstanceDestroy(gi)
    assert node.snapshot().gpus[0].instances == ()


def test_handles_of_a_destroyed_instance_stay_dead_when_the_same_place_is_taken_again(nvml):
    handle = enable(nvml)
    gi, ci, device = partition(nvml, handle)
    nvml.nvmlComputeInstanceDestroy(ci)
    nvml.nvmlGpuInstanceDestroy(gi)
    partition(nvml, handle)
    for call, dead in ((nvml.nvmlDeviceGetUUID, device), (nvml.nvmlGpuInstanceGetInfo, gi)):
        assert code(lambda call=call, dead=dead: call(dead)) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_instances_are_numbered_by_their_place_as_nvidia_smi_lists_them(nvml):
    handle = enable(nvml)
    ids = [nvml.nvmlGpuInstanceGetInfo(create(nvml, handle, ONE, start, 1)).id for start in range(7)]
    assert ids == [11, 12, 13, 14, 7, 8, 9]


def test_the_same_partition_has_the_same_uuid_again_and_others_have_others(nvml):
    handle = enable(nvml)
    gi, ci, device = partition(nvml, handle)
    first = nvml.nvmlDeviceGetUUID(device)
    second = nvml.nvmlDeviceGetUUID(partition(nvml, handle, start=1)[2])
    nvml.nvmlComputeInstanceDestroy(ci)
    nvml.nvmlGpuInstanceDestroy(gi)
    assert nvml.nvmlDeviceGetUUID(partition(nvml, handle)[2]) == first != second


@pytest.mark.parametrize(
    ("board", "profile"), [("A100-80GB", "A100"), ("H100-80GB", "H100"), ("RTX-PRO-6000-96GB", "RTX-PRO-6000")]
)
@pytest.mark.parametrize("seed", range(4))
def test_what_fits_follows_from_memory_slices_engines_and_counts(make_node, load, board, profile, seed):
    nvml = load(make_node(profile, gpus=1, settings=["gpu.0.mig_support=1"]))
    handle = enable(nvml)
    table = mig_tables()[board]
    whole = max(table.profiles, key=lambda row: (row.slices, row.copy, row.ofa))
    chance = random.Random(seed)
    placed: list[tuple[MigProfile, int, object]] = []

    def fits(row: MigProfile, start: int) -> bool:
        together = [row, *(other for other, _, _ in placed)]
        free = all(start + row.units <= at or at + other.units <= start for other, at, _ in placed)
        engines = all(
            sum(getattr(one, name) for one in together) <= getattr(whole, name)
            for name in ("copy", "dec", "enc", "jpeg", "ofa")
        )
        alike = sum(one.id == row.id for one in together) <= row.max_instances
        return free and engines and alike and sum(one.slices for one in together) <= table.slices

    for _ in range(150):
        if placed and chance.random() < 0.4:
            nvml.nvmlGpuInstanceDestroy(placed.pop(chance.randrange(len(placed)))[2])
            continue
        row = chance.choice(table.profiles)
        start = chance.choice(row.starts)
        expected = fits(row, start)
        try:
            instance = create(nvml, handle, row.id, start, row.units)
        except nvml.NVMLError_InsufficientResources:
            assert not expected, f"{row.name}@{start} beside {[(other.name, at) for other, at, _ in placed]}"
        else:
            assert expected, f"{row.name}@{start} beside {[(other.name, at) for other, at, _ in placed]}"
            placed.append((row, start, instance))


@pytest.mark.case("C76")
def test_holes_left_by_released_partitions_hold_only_what_is_aligned(nvml):
    handle = enable(nvml)
    small = {start: create(nvml, handle, ONE, start, 1) for start in range(7)}
    for start in (2, 3, 4, 6):
        nvml.nvmlGpuInstanceDestroy(small[start])
    assert code(lambda: create(nvml, handle, THREE, 4, 4)) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    assert code(lambda: create(nvml, handle, 14, 4, 2)) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    assert code(lambda: create(nvml, handle, 14, 2, 2)) == 0


def test_a_place_that_the_profile_does_not_have_is_refused(nvml):
    handle = enable(nvml)
    assert code(lambda: create(nvml, handle, THREE, 2, 4)) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    assert code(lambda: create(nvml, handle, 77, 0, 1)) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_instances_cannot_be_made_while_mig_is_off(nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code(lambda: create(nvml, handle, ONE, 0, 1)) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0


@pytest.mark.case("C71")
def test_a_mode_change_that_needs_a_reset_succeeds_and_stays_pending(make_node, load):
    nvml = load(make_node("P-a100", gpus=1))
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == nvml.NVML_ERROR_RESET_REQUIRED
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    assert code(lambda: create(nvml, handle, ONE, 0, 1)) == nvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.case("C71")
def test_a_mode_change_stays_pending_while_a_process_runs(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.add_process(os.getpid(), 0, memory=1 << 30)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == nvml.NVML_ERROR_IN_USE
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    node.end_process(os.getpid())
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == 0
    assert nvml.nvmlDeviceGetMigMode(handle) == [1, 1]


@pytest.mark.case("C71")
def test_a_live_board_can_be_made_to_keep_its_mode_pending(node, nvml):
    node.set_mig_pending(0, pending=True)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == nvml.NVML_ERROR_RESET_REQUIRED


@pytest.mark.case("C79")
def test_an_instance_in_use_is_not_destroyed(node, nvml):
    handle = enable(nvml)
    gi, ci, _ = partition(nvml, handle)
    node.add_process(os.getpid(), 0, memory=1 << 30, gi=nvml.nvmlGpuInstanceGetInfo(gi).id, ci=0)
    assert code(lambda: nvml.nvmlComputeInstanceDestroy(ci)) == nvml.NVML_ERROR_IN_USE
    node.end_process(os.getpid())
    assert code(lambda: nvml.nvmlGpuInstanceDestroy(gi)) == nvml.NVML_ERROR_IN_USE
    nvml.nvmlComputeInstanceDestroy(ci)
    nvml.nvmlGpuInstanceDestroy(gi)


@pytest.mark.case("C74")
def test_a_compute_instance_can_fail_once_after_its_gpu_instance_was_made(node, nvml):
    handle = enable(nvml)
    gi = create(nvml, handle, ONE, 0, 1)
    node.inject("nvmlGpuInstanceCreateComputeInstance", code=23, count=1)
    assert code(lambda: nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    assert code(lambda: nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)) == 0


def test_a_media_partition_takes_the_compute_profile_of_its_own_kind_only(nvml):
    handle = enable(nvml)
    gi = create(nvml, handle, 20, 0, 1)
    assert code(lambda: nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 0, 0)) == nvml.NVML_ERROR_NOT_SUPPORTED
    profile = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 7, 0)
    assert (profile.id, profile.sliceCount, profile.name) == (7, 1, "MIG 1g.10gb+me")


def test_two_compute_instances_share_a_gpu_instance(node, nvml):
    handle = enable(nvml)
    gi = create(nvml, handle, THREE, 0, 4)
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0) == 3
    nvml.nvmlGpuInstanceCreateComputeInstance(gi, 1)
    nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    assert code(lambda: nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)) == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    devices = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index) for index in range(2)]
    assert [nvml.nvmlDeviceGetAttributes(device).multiprocessorCount for device in devices] == [40, 20]


def test_compute_mode_belongs_to_the_partition_while_mig_is_on(nvml):
    handle = enable(nvml)
    device = partition(nvml, handle)[2]
    assert code(lambda: nvml.nvmlDeviceSetComputeMode(handle, 3)) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code(lambda: nvml.nvmlDeviceSetComputeMode(device, 3)) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert nvml.nvmlDeviceGetComputeMode(device) == 0


def test_a_partition_has_device_nodes_and_entries_in_proc_while_it_exists(node, nvml):
    handle = enable(nvml)
    gi, ci, _ = partition(nvml, handle, start=4)
    access = node.proc_root / "driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access"
    minor = access.read_text().split()[1]
    assert f"gpu0/gi7/ci0/access {minor}\n" in (node.proc_root / "driver/nvidia-caps/mig-minors").read_text()
    assert (node.dev_root / f"nvidia-caps/nvidia-cap{minor}").exists()
    nvml.nvmlComputeInstanceDestroy(ci)
    nvml.nvmlGpuInstanceDestroy(gi)
    assert not access.exists()
    assert not (node.dev_root / f"nvidia-caps/nvidia-cap{minor}").exists()


def test_a_container_sees_the_partition_whose_capability_nodes_it_has(make_node, load, tmp_path, monkeypatch):
    node = make_node("H100", gpus=1)
    nvml = load(node)
    handle = enable(nvml)
    _, _, wanted = partition(nvml, handle, start=1)
    partition(nvml, handle, start=2)
    uuid = nvml.nvmlDeviceGetUUID(wanted)
    nvml.nvmlShutdown()
    container = tmp_path / "dev"
    (container / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia0"):
        (container / name).touch()
    for path in node.proc_root.glob("driver/nvidia/capabilities/gpu0/mig/gi12/**/access"):
        (container / f"nvidia-caps/nvidia-cap{path.read_text().split()[1]}").touch()
    monkeypatch.setenv("DRA_GPU_SIM_DEV", str(container))
    nvml.nvmlInit()
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    found = [
        nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        for index in range(7)
        if code(lambda index=index: nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)) == 0
    ]
    assert found == [uuid]
    shutil.rmtree(container)


def test_a_reboot_takes_instances_and_modes_and_leaves_mig_mode_on_ampere_only(make_node, load):
    for profile, kept in (("A100", True), ("H100", False)):
        node = make_node(profile, gpus=1, settings=["gpu.0.mig_support=1"])
        nvml = load(node)
        partition(nvml, enable(nvml))
        boot = node.boot_id
        node.reboot()
        gpu = node.gpus[0]
        assert (gpu.mig_current, gpu.instances) == (kept, ())
        assert node.boot_id != boot
        assert not list(node.proc_root.glob("driver/nvidia/capabilities/gpu0/mig/gi*"))
