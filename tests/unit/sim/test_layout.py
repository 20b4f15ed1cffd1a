"""The layouts that C and Python must share: the state file, and NVML's structs."""

import ctypes
import subprocess
from pathlib import Path

import pynvml

import dra_gpu_sim
from dra_gpu_sim import state

SOURCES = Path(dra_gpu_sim.__file__).parent / "nvml"

NVML_STRUCTS = {
    "nvml_memory": "c_nvmlMemory_t",
    "nvml_memory_v2": "c_nvmlMemory_v2_t",
    "nvml_bar1": "c_nvmlBAR1Memory_t",
    "nvml_utilization": "c_nvmlUtilization_t",
    "nvml_pci": "nvmlPciInfo_t",
    "nvml_pci_v2": "nvmlPciInfo_v2_t",
    "nvml_pci_ext": "nvmlPciInfoExt_v1_t",
    "nvml_uuid": "c_nvmlUUID_t",
    "nvml_addressing_mode": "c_nvmlDeviceAddressingMode_t",
    "nvml_temperature": "c_nvmlTemperature_v1_t",
    "nvml_process": "c_nvmlProcessInfo_v3_t",
    "nvml_process_detail": "c_nvmlProcessDetail_v1_t",
    "nvml_process_detail_list": "c_nvmlProcessDetailList_v1_t",
    "nvml_process_sample": "c_nvmlProcessUtilizationSample_t",
    "nvml_process_use": "c_nvmlProcessUtilizationInfo_v1_t",
    "nvml_process_use_list": "c_nvmlProcessesUtilizationInfo_v1_t",
    "nvml_limits_set": "c_nvmlSetMemoryLimits_v1_t",
    "nvml_limits_get": "c_nvmlGetMemoryLimits_v1_t",
    "nvml_field": "c_nvmlFieldValue_t",
    "nvml_fabric": "c_nvmlGpuFabricInfo_t",
    "nvml_fabric_v2": "c_nvmlGpuFabricInfo_v2_t",
    "nvml_fabric_v3": "c_nvmlGpuFabricInfo_v3_t",
    "nvml_event": "c_nvmlEventData_t",
    "nvml_placement": "c_nvmlGpuInstancePlacement_t",
    "nvml_gi_info": "c_nvmlGpuInstanceInfo_t",
    "nvml_ci_info": "c_nvmlComputeInstanceInfo_t",
    "nvml_gi_profile": "c_nvmlGpuInstanceProfileInfo_t",
    "nvml_gi_profile_v2": "c_nvmlGpuInstanceProfileInfo_v2_t",
    "nvml_ci_profile": "c_nvmlComputeInstanceProfileInfo_t",
    "nvml_ci_profile_v2": "c_nvmlComputeInstanceProfileInfo_v2_t",
    "nvml_attributes": "c_nvmlDeviceAttributes",
    "nvml_cc_state": "c_nvmlConfComputeSystemState_t",
    "nvml_cc_settings": "c_nvmlSystemConfComputeSettings_v1_t",
    "nvml_cc_caps": "c_nvmlConfComputeSystemCaps_t",
    "nvml_branch": "c_nvmlSystemDriverBranchInfo_v1_t",
}
"""Struct of the C library → the structure that nvidia-ml-py passes for it."""


def compiles(tmp_path: Path, header: str, assertions: list[str]) -> None:
    """Have the compiler check assertions about a header."""
    source = tmp_path / "layout.c"
    source.write_text(
        f'#include <stddef.h>\n#include "{header}"\n' + "\n".join(assertions) + "\nint main(void){return 0;}\n"
    )
    result = subprocess.run(
        ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{SOURCES}", source], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_python_mirror_has_the_size_and_offsets_of_every_struct_of_the_state(tmp_path):
    assertions = []
    for name, mirror in state.MIRRORED.items():
        assertions.append(f'_Static_assert(sizeof(struct {name}) == {ctypes.sizeof(mirror)}, "{name}");')
        for field, *_ in mirror._fields_:
            place = getattr(mirror, field)
            assertions.append(
                f"_Static_assert(offsetof(struct {name}, {field}) == {place.offset} && "
                f'sizeof(((struct {name} *)0)->{field}) == {place.size}, "{name}.{field}");'
            )
    compiles(tmp_path, "state.h", assertions)


CONSTANTS = (
    "MAGIC LAYOUT_VERSION MAX_GPUS MAX_LINKS MAX_PROFILES MAX_PLACEMENTS MAX_GI MAX_CI MAX_FAULTS MAX_EVENTS "
    "MAX_PROCESSES MAX_SESSIONS MAX_LIMITS MIG_NONE MIG_LIVE MIG_AFTER_RESET NODES_DEVICES NODES_FILES "
    "PROCESS_COMPUTE PROCESS_GRAPHICS PROCESS_MPS_CLIENT PROCESS_MPS_SERVER"
)


def test_the_constants_of_the_mirror_are_those_of_the_header(tmp_path):
    compiles(
        tmp_path,
        "state.h",
        [f'_Static_assert(SIM_{name} == {getattr(state, name)}ull, "{name}");' for name in CONSTANTS.split()],
    )


def test_the_structs_of_the_library_have_the_sizes_that_nvidia_ml_py_passes(tmp_path):
    compiles(
        tmp_path,
        "abi.h",
        [
            f'_Static_assert(sizeof(struct {ours}) == {ctypes.sizeof(getattr(pynvml, theirs))}, "{theirs}");'
            for ours, theirs in NVML_STRUCTS.items()
        ],
    )
