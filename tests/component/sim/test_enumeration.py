"""What a client of the library sees of each kind of node."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

from dra_gpu_sim.boards import PROFILES, mig_tables
from dra_gpu_sim.node import SimulatedNode
from tests.component.sim.conftest import code

ENUMERATE = """
import json, pynvml as n
n.nvmlInit()
def ask(call, *args):
    try:
        return call(*args)
    except n.NVMLError as error:
        return -error.value
gpus = []
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    memory = ask(n.nvmlDeviceGetMemoryInfo, h, n.nvmlMemory_v2)
    links = ask(lambda: n.nvmlDeviceGetFieldValues(h, [91])[0])
    gpus.append({
        "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h),
        "memory": memory if isinstance(memory, int) else memory.total,
        "cc": n.nvmlDeviceGetCudaComputeCapability(h), "architecture": n.nvmlDeviceGetArchitecture(h),
        "mig": ask(n.nvmlDeviceGetMigMode, h), "brand": n.nvmlDeviceGetBrand(h),
        "links": 0 if isinstance(links, int) or links.nvmlReturn else links.value.uiVal,
        "same": n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))) == n.nvmlDeviceGetUUID(h),
    })
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "cuda": n.nvmlSystemGetCudaDriverVersion(), "gpus": gpus}))
n.nvmlShutdown()
"""


def enumerate_with_pynvml(node: SimulatedNode) -> dict:
    environment = {**os.environ, **node.environment()}
    return json.loads(subprocess.check_output([sys.executable, "-c", ENUMERATE], env=environment, timeout=120))


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_nvidia_ml_py_finds_every_gpu_of_a_profile_by_the_librarys_name(make_node, name):
    profile = PROFILES[name]
    node = make_node(name)
    seen = enumerate_with_pynvml(node)
    assert [gpu["name"] for gpu in seen["gpus"]] == [board.name for board in profile.boards]
    assert [gpu["uuid"] for gpu in seen["gpus"]] == node.uuids
    for gpu, board in zip(seen["gpus"], profile.boards, strict=True):
        supported = not any("MemoryInfo" in call for call in board.unsupported)
        assert gpu["memory"] == (board.memory_mib << 20 if supported else -3)
        assert tuple(gpu["cc"]) == board.compute_capability
        assert gpu["mig"] == ([0, 0] if board.mig_table else -3)
        assert gpu["links"] == (board.nvlink.links if board.nvlink else 0)
        assert gpu["same"]


def test_versions_are_those_of_the_driver_that_was_asked_for(make_node):
    seen = enumerate_with_pynvml(make_node("L4", gpus=1, driver_version="580.95.05"))
    assert (seen["driver"], seen["cuda"]) == ("580.95.05", 13000)


@pytest.mark.parametrize("name", ["A100", "H100", "H200", "B200", "GB200", "RTX-PRO-6000"])
def test_mig_profiles_and_placements_are_those_of_the_table_with_mig_off(make_node, load, name):
    node = make_node(name, gpus=1)
    nvml = load(node)
    table = mig_tables()[PROFILES[name.lower()].boards[0].mig_table]
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    seen = {}
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
        except nvml.NVMLError_NotSupported:
            continue
        seen[info.name] = (
            info.id,
            info.multiprocessorCount,
            info.memorySizeMB,
            info.instanceCount,
            placements(nvml, handle, info.id),
        )
    assert seen == {
        f"MIG {row.name}": (
            row.id,
            row.sm,
            row.memory_mib,
            row.max_instances,
            [(start, row.units) for start in row.starts],
        )
        for row in table.profiles
    }


def placements(nvml, handle, profile_id):
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, places, ctypes.byref(count))
    return [(place.start, place.size) for place in places]


def test_the_enumeration_of_mig_profiles_has_holes_and_an_end(nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code(lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 5)) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code(lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 18)) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_only_gpus_whose_device_node_is_there_are_listed(make_node, load, tmp_path, monkeypatch):
    node = make_node("H100", gpus=4)
    container = tmp_path / "container-dev"
    container.mkdir()
    for name in ("nvidiactl", "nvidia3"):
        (container / name).touch()
    monkeypatch.setenv("DRA_GPU_SIM_DEV", str(container))
    nvml = load(node)
    assert nvml.nvmlDeviceGetCount() == 1
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0)) == node.uuids[3]


def test_without_nvidiactl_the_driver_counts_as_not_loaded(node, load, monkeypatch, tmp_path):
    monkeypatch.setenv("DRA_GPU_SIM_DEV", str(tmp_path))
    assert code(lambda: load(node)) == 9


@pytest.mark.case("C61")
def test_a_call_that_an_older_library_lacks_is_not_exported(make_node, load):
    nvml = load(make_node("H100", gpus=1, without_symbols=["nvmlDeviceGetGpuFabricInfoV"]))
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    assert (
        code(lambda: nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))) == nvml.NVML_ERROR_FUNCTION_NOT_FOUND
    )
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"


def test_memory_limits_are_missing_below_driver_615(make_node, load):
    nvml = load(make_node("H100", gpus=1, driver_version="610.10"))
    limits = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/pod")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code(lambda: nvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)) == nvml.NVML_ERROR_FUNCTION_NOT_FOUND


@pytest.mark.case("C67")
def test_an_integrated_gpu_has_a_name_and_a_uuid_and_little_else(make_node, load):
    nvml = load(make_node("P-tegra1"))
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetUUID(handle).startswith("GPU-")
    for call in (nvml.nvmlDeviceGetPciInfo, nvml.nvmlDeviceGetSerial, nvml.nvmlDeviceGetPowerUsage):
        assert code(lambda call=call: call(handle)) == nvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.case("C67")
def test_a_vgpu_guest_reports_values_outside_every_table(make_node, load):
    nvml = load(make_node("P-vgpu1"))
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetBrand(handle) == 99
    assert nvml.nvmlDeviceGetArchitecture(handle) == nvml.NVML_DEVICE_ARCH_UNKNOWN
    assert code(lambda: nvml.nvmlDeviceGetMigMode(handle)) == nvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.case("C59")
def test_a_memory_size_can_be_set(make_node, load):
    nvml = load(make_node("L4", gpus=2, settings=["gpu.1.memory=16380"]))
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetMemoryInfo(handle).total == 16_380 << 20


@pytest.mark.case("C62")
def test_an_address_is_spelled_as_set_and_sysfs_follows_it(make_node, load):
    node = make_node("H100", gpus=2, settings=["gpu.0.pci=00010000:01:00.0", "gpu.1.bus_id="])
    nvml = load(node)
    spelled = [nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(index)).busId for index in range(2)]
    assert spelled == ["00010000:01:00.0", ""]
    assert (node.sysfs_root / "bus/pci/devices/10000:01:00.0/numa_node").is_file()


def test_a_rack_tray_reports_its_cluster_clique_and_memory_nodes(make_node, load):
    nvml = load(make_node("GB200"))
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    assert (info.state, info.cliqueId, info.healthSummary) == (nvml.NVML_GPU_FABRIC_STATE_COMPLETED, 1, 1)
    assert any(info.clusterUuid)
    assert nvml.nvmlDeviceGetNumaNodeId(handle) == 10


def test_links_of_an_hgx_board_end_at_switches(nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetNvLinkState(handle, 17) == 1
    assert nvml.nvmlDeviceGetNvLinkVersion(handle, 0) == nvml.NVML_NVLINK_VERSION_4_0
    assert nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, 0) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    assert nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, 0).busId == "00000000:05:00.0"
    assert code(lambda: nvml.nvmlDeviceGetNvLinkState(handle, 18)) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_field_values_carry_a_result_each(nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    speed, recovery, version, unknown = nvml.nvmlDeviceGetFieldValues(handle, [90, 230, (166, 3), 12])
    assert (speed.value.uiVal, recovery.value.uiVal, version.value.uiVal) == (26_562, 0, nvml.NVML_NVLINK_VERSION_4_0)
    assert unknown.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize(("profile", "cores"), [("A100", 6_912), ("H100", 16_896), ("L4", 7_424)])
def test_cuda_cores_are_those_of_the_datasheet(make_node, load, profile, cores):
    nvml = load(make_node(profile, gpus=1))
    assert nvml.nvmlDeviceGetNumGpuCores(nvml.nvmlDeviceGetHandleByIndex(0)) == cores


def test_a_gpu_is_found_by_any_spelling_of_its_address(nvml):
    for text in ("0000:1b:00.0", "00000000:1B:00.0", "1b:00.0"):
        assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(text)) == 0
    assert code(lambda: nvml.nvmlDeviceGetHandleByPciBusId("0000:77:00.0")) == nvml.NVML_ERROR_NOT_FOUND


@pytest.mark.case("C56")
def test_a_gpu_that_is_bound_later_is_seen_after_the_next_initialisation(node, nvml):
    node.set_gpu_count(1)
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 1
    node.set_gpu_count(2)
    assert nvml.nvmlDeviceGetCount() == 1
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 2
