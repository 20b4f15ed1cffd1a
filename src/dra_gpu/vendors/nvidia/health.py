"""One look at how well a GPU is, by NVML. Everything here blocks; NVML must be open.

Source: NVML API reference r580. `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` is what has to be done before the GPU works
again, and decides where it is told. `NVML_FI_DEV_REMAPPED_PENDING` and `_FAILURE`: rows that are replaced at the next
reset, and rows for which none is left ("A100 Memory Error Management": such a board is replaced).
`NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION`: millijoules since the driver was loaded; it is the GPU that counts, from its
last reset on. The fabric's health is a mask of small fields, each of which says "not supported", "true" or "false".
"""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.health import HealthProbe, RecoveryAction
from dra_gpu.vendors.nvidia.nvml import failure
from dra_gpu.vendors.nvidia.queries import optional, text

# A reset of the bus is one of the GPU for whoever has to order it, and so is a reboot of the system (nvidia-ml-py 13).
_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: RecoveryAction.NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: RecoveryAction.REBOOT,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: RecoveryAction.DRAIN_P2P,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: RecoveryAction.DRAIN_AND_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: RecoveryAction.RECOVER_IMEX,
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: RecoveryAction.REBOOT,
}
_FIELDS = (
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
)
_UNREACHABLE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
# What is wrong when a field of the mask of fabric health is "true".
_FABRIC_FLAGS = (
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW,
        "degraded bandwidth",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY,
        "routes are being recovered",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY,
        "unhealthy routes",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY,
        "recovering from access timeouts",
    ),
)
_TRUE = 1
_CONFIGURATIONS = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware of the GPU",
    7: "invalid location",
    8: "invalid state of the GPU",
}
_CONFIGURATION_FINE = (0, 1)  # not supported, none


def probe(gpu: Gpu) -> HealthProbe:
    """Look at a GPU. Its mark of resets is not NVML's to tell, and left empty.

    Raises:
        VendorError: NVML itself does not answer.
    """
    handle = _find(gpu)
    if isinstance(handle, HealthProbe):
        return handle
    fields = _fields(handle)
    refusal = _refusal(fields)
    if refusal is not None:
        return _without_handle(gpu, refusal)
    action, energy, pending, failed = _values(fields)
    problems = []
    known = None if action is None else _ACTIONS.get(action)
    if action is not None and known is None:
        problems.append(f"the driver asks for recovery action {action}, which is not known here: see NVIDIA's manual")
    if failed:
        problems.append("memory rows failed and none is left to replace them: have the board replaced")
    elif pending and known is None:  # where the driver says what to do, it has looked at this, too
        problems.append("memory rows are replaced at the next reset: reset the GPU")
    return HealthProbe(
        gpu.uuid,
        problem="; ".join(problems),
        recovery_action=known,
        fabric_problem=_fabric_problem(handle),
        counter=energy,
    )


def _find(gpu: Gpu) -> Any:
    """Return a GPU's handle, wherever it stands now, or the probe of one that has none."""
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except (pynvml.NVMLError, AttributeError) as error:
        raise failure("NVML", "nvmlDeviceGetCount_v2", error) from error
    refusal: Exception | None = None
    for index in sorted(range(count), key=lambda index: index != gpu.index):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if text(pynvml.nvmlDeviceGetUUID(handle)) == gpu.uuid:
                return handle
        except (pynvml.NVMLError, AttributeError, ValueError) as error:
            refusal = error if refusal is None or index == gpu.index else refusal
    return _without_handle(gpu, refusal)


def _without_handle(gpu: Gpu, refusal: Exception | None) -> HealthProbe:
    code = getattr(refusal, "value", None)
    if refusal is None or code == pynvml.NVML_ERROR_GPU_IS_LOST:
        return HealthProbe(
            gpu.uuid, lost=True, problem="NVML does not reach it any more: reset the GPU or reboot the node"
        )
    if code == pynvml.NVML_ERROR_RESET_REQUIRED:
        return HealthProbe(gpu.uuid, problem="NVML says that it has to be reset", recovery_action=RecoveryAction.RESET)
    return HealthProbe(gpu.uuid, problem=str(failure(f"GPU {gpu.uuid}", "nvmlDeviceGetHandleByIndex_v2", refusal)))


def _fields(handle: Any) -> Sequence[Any] | Exception:
    """Return the fields, or why there are none."""
    try:
        found: Sequence[Any] = pynvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS))
    except (pynvml.NVMLError, AttributeError, ValueError) as error:
        return error
    return found


def _refusal(fields: Sequence[Any] | Exception) -> Exception | None:
    """Return an answer that says that the GPU is lost or has to be reset, though NVML has a handle and a UUID of it."""
    codes = (getattr(fields, "value", None),) if isinstance(fields, Exception) else (one.nvmlReturn for one in fields)
    code = next((code for code in codes if code in _UNREACHABLE), None)
    return None if code is None else pynvml.NVMLError(code)


def _values(fields: Sequence[Any] | Exception) -> Sequence[int | None]:
    if isinstance(fields, Exception) or len(fields) != len(_FIELDS):
        return (None,) * len(_FIELDS)
    return [_number(one) if one.nvmlReturn == pynvml.NVML_SUCCESS else None for one in fields]


def _number(field: Any) -> int:
    """Return a field's value: NVML says for each of what type it is."""
    wide = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG)
    return int(field.value.ullVal if field.valueType in wide else field.value.uiVal)


def _fabric_problem(handle: Any) -> str:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if optional(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        return ""
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return ""
    mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is not None and mode[0]:  # partitions have no NVLink, whatever becomes of the registration
        return ""
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return "it has not registered with the fabric of its switches: is the Fabric Manager running?"
    if info.status:
        return f"its registration with the fabric of its switches failed ({info.status}): see the Fabric Manager's log"
    return "; ".join(_wrong(int(info.healthMask)))


def _wrong(mask: int) -> Iterator[str]:
    for shift, width, words in _FABRIC_FLAGS:
        if mask >> shift & width == _TRUE:
            yield words
    shift = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
    configuration = mask >> shift & pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION
    if configuration not in _CONFIGURATION_FINE:
        yield f"incorrect configuration: {_CONFIGURATIONS.get(configuration, configuration)}"
