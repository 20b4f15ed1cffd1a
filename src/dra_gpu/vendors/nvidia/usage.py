"""What processes use of a GPU, by NVML. Everything here blocks; NVML must be open.

Source: NVML API reference r580: nvmlDeviceGetComputeRunningProcesses_v3 (an MPS client is a compute process);
nvmlDeviceGetProcessUtilization (a sample for each process with some utilisation, so that one without did nothing; not
supported in MIG mode); NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX (KiB; scope UINT_MAX is all links).
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pynvml

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.nvidia.nvml import handle_of
from dra_gpu.vendors.nvidia.queries import optional
from dra_gpu.vendors.usage import GpuUsage, NoSamples, UsingProcess

_KIB = 1024
_PERCENT = 100.0
_ALL_LINKS = 0xFFFFFFFF
_NO_INSTANCE = 0xFFFFFFFF


class Usage:
    """Looks at GPUs again and again: samples of processes count from the look before."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, gpu: Gpu, cgroups: Sequence[str]) -> GpuUsage:
        """Return what is used of a GPU.

        Args:
            gpu: the GPU.
            cgroups: paths of which the memory is asked, too.

        Raises:
            VendorError: there is no such GPU any more.
        """
        handle = handle_of(gpu)
        memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        sm, no_samples = self._sm(gpu.uuid, handle)
        sent, received = _nvlink(gpu, handle)
        return GpuUsage(
            processes=processes_on(handle),
            memory_bytes=None if memory is None else int(memory.used),
            sm=sm,
            no_samples=no_samples,
            cgroups={path: used for path in cgroups if (used := _cgroup_memory(handle, path)) is not None},
            nvlink_sent=sent,
            nvlink_received=received,
        )

    def _sm(self, uuid: str, handle: Any) -> tuple[dict[int, float], NoSamples | None]:
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, self._seen.get(uuid, 0))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return {}, None
            mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
            return {}, NoSamples.MIG if mode is not None and mode[0] else NoSamples.UNSUPPORTED
        except AttributeError:  # the library does not have the call
            return {}, NoSamples.UNSUPPORTED
        busy: dict[int, list[int]] = defaultdict(list)
        for sample in samples:
            if sample.timeStamp:
                busy[int(sample.pid)].append(min(int(sample.smUtil), int(_PERCENT)))
                self._seen[uuid] = max(self._seen.get(uuid, 0), int(sample.timeStamp))
        return {pid: sum(shares) / len(shares) / _PERCENT for pid, shares in busy.items()}, None


def processes_on(handle: Any) -> tuple[UsingProcess, ...]:
    """Return the processes that use a GPU; none where it does not tell."""
    found: dict[int, UsingProcess] = {}
    for call in (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3):
        for one in optional(call, handle) or ():
            instance = getattr(one, "gpuInstanceId", _NO_INSTANCE)
            memory = one.usedGpuMemory
            found.setdefault(
                int(one.pid),
                UsingProcess(
                    int(one.pid),
                    None if memory is None else int(memory),
                    None if instance is None or instance == _NO_INSTANCE else int(instance),
                ),
            )
    return tuple(found.values())


def _cgroup_memory(handle: Any, path: str) -> int | None:
    request = pynvml.c_nvmlGetMemoryLimits_v1_t()
    request.nameSpace = path.encode()
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, request)
    except (pynvml.NVMLError, AttributeError):  # it has gone, the driver is older, or the GPU is partitioned
        return None
    return int(request.currentUsed)


def _nvlink(gpu: Gpu, handle: Any) -> tuple[int | None, int | None]:
    if not any(link.active for link in gpu.nvlinks):
        return None, None
    fields = [
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
    ]
    values = optional(pynvml.nvmlDeviceGetFieldValues, handle, fields) or ()
    told = [int(one.value.ullVal) * _KIB if one.nvmlReturn == pynvml.NVML_SUCCESS else None for one in values]
    return (told[0], told[1]) if len(told) == len(fields) else (None, None)
