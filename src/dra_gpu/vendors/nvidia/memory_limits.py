"""Limits on the device memory of a cgroup, by NVML (driver 615 and later). Everything here blocks.

The soft limit is always 0: it would guarantee memory, and the kernel's accounting of guarantees leaks when a cgroup
goes. Source: MPS documentation r615, "MPS v3 Memory Partitioning"; nvidia-ml-py 13.615, `nvmlDeviceSetMemoryLimits_v1`.
"""

from pathlib import Path

import pynvml

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.base import CgroupGoneError, CgroupUnlimitedError, VendorError
from dra_gpu.vendors.nvidia.nvml import failure, handle_of
from dra_gpu.vendors.nvidia.usage import processes_on
from dra_gpu.vendors.usage import UsingProcess

_NO_LIMIT = 2**64 - 1
_CANNOT = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_SET, _GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


def set_limit(gpu: Gpu, cgroup: str, limit: int | None) -> None:
    """Limit the memory that a cgroup's processes may use on a GPU; NVML must be open.

    Args:
        gpu: the GPU.
        cgroup: path of the cgroup.
        limit: bytes; None takes the limit away.

    Raises:
        VendorError: UNSUPPORTED on an older driver or a partitioned GPU, else what NVML answered.
    """
    request = pynvml.c_nvmlSetMemoryLimits_v1_t()
    request.nameSpace = cgroup.encode()
    request.softLimit = 0
    request.hardLimit = _NO_LIMIT if limit is None else limit
    try:
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle_of(gpu), request)
    except pynvml.NVMLError as error:
        raise _failure(gpu, cgroup, _SET, error) from error


def limit(gpu: Gpu, cgroup: str) -> int | None:
    """Return the limit in force for a cgroup in bytes, its ancestors' included; None where there is none.

    Raises:
        VendorError: as for `set_limit`.
    """
    request = pynvml.c_nvmlGetMemoryLimits_v1_t()
    request.nameSpace = cgroup.encode()
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle_of(gpu), request)
    except pynvml.NVMLError as error:
        raise _failure(gpu, cgroup, _GET, error) from error
    return None if request.hardLimit == _NO_LIMIT else int(request.hardLimit)


def use(gpu: Gpu, cgroup: str) -> tuple[int, tuple[UsingProcess, ...]]:
    """Return the bytes that are counted against a cgroup's limit, and all processes on the GPU.

    Raises:
        VendorError: as for `set_limit`.
    """
    request = pynvml.c_nvmlGetMemoryLimits_v1_t()
    request.nameSpace = cgroup.encode()
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle_of(gpu), request)
    except pynvml.NVMLError as error:
        raise _failure(gpu, cgroup, _GET, error) from error
    return int(request.currentUsed), processes_on(handle_of(gpu))


def _failure(gpu: Gpu, cgroup: str, call: str, error: pynvml.NVMLError) -> VendorError:
    """Tell a cgroup that is gone from one in which the driver cannot: NVML answers either in more than one way."""
    if not Path(cgroup).is_dir():
        return CgroupGoneError(f"GPU {gpu.uuid}: cgroup {cgroup} does not exist any more: its pod has ended")
    if error.value in _CANNOT:
        return CgroupUnlimitedError(
            f"GPU {gpu.uuid}: the driver limits no memory in cgroup {cgroup} ({call} answered {error}): it takes the "
            "dmem controller there, which its parents must have in cgroup.subtree_control"
        )
    return failure(f"GPU {gpu.uuid}, cgroup {cgroup}", call, error)
