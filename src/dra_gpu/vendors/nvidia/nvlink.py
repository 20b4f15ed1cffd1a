"""NVLink as NVML tells it: the links of a GPU, what they carry, and the fabric it has registered with.

Everything here blocks; callers run it under a watchdog. Source: NVML API reference r580, "NvLink Methods" and
"nvmlDeviceGetGpuFabricInfoV"; Fabric Manager User Guide r580, "Initializing NVSwitch and NVLink".
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from dra_gpu.inventory import pci
from dra_gpu.inventory.model import Fabric, NvLink
from dra_gpu.vendors.nvidia.queries import optional, text

_MB = 10**6
_NULL_CLUSTER = bytes(16)
# NVML counts versions, not generations (nvmlNvlinkVersion_t): 2.2 and 3.1 have numbers of their own.
_GENERATIONS = {
    pynvml.NVML_NVLINK_VERSION_1_0: 1,
    pynvml.NVML_NVLINK_VERSION_2_0: 2,
    pynvml.NVML_NVLINK_VERSION_2_2: 2,
    pynvml.NVML_NVLINK_VERSION_3_0: 3,
    pynvml.NVML_NVLINK_VERSION_3_1: 3,
    pynvml.NVML_NVLINK_VERSION_4_0: 4,
    pynvml.NVML_NVLINK_VERSION_5_0: 5,
    pynvml.NVML_NVLINK_VERSION_6_0: 6,
}


@dataclass(frozen=True, slots=True)
class Registration:
    """Whether a GPU has registered with the fabric of its switches, and what that made it a member of.

    Attributes:
        complete: it has, with success; None where there is no registration: no switches, or a GPU before Hopper.
        fabric: the multi-node fabric; None for one that ends at this node.
    """

    complete: bool | None = None
    fabric: Fabric | None = None


def links(handle: Any) -> Iterator[NvLink]:
    """Yield every link a GPU has, active or not."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = optional(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            return
        if not state:
            yield NvLink(link=link, active=False)
            continue
        remote = optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        kind = optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        version = optional(pynvml.nvmlDeviceGetNvLinkVersion, handle, link)
        yield NvLink(
            link=link,
            active=True,
            version=None if version is None else _GENERATIONS.get(version),
            remote_address=None if remote is None else pci.normalise(text(remote.busId) or ""),
            remote_is_switch=kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH,
        )


def bandwidth(handle: Any, found: tuple[NvLink, ...]) -> int | None:
    """Return the speed of all active links together, in bytes/s of one direction; None unless all of them tell it.

    NVML gives MB/s of one direction (`nvidia-smi nvlink -s`).
    """
    active = [link.link for link in found if link.active]
    if not active:
        return None
    fields = [(pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, link) for link in active]
    values = optional(pynvml.nvmlDeviceGetFieldValues, handle, fields)
    speeds = [int(value.value.uiVal) for value in values or () if value.nvmlReturn == pynvml.NVML_SUCCESS]
    return sum(speeds) * _MB if len(speeds) == len(active) else None


def registration(handle: Any) -> Registration:
    """Return how far a GPU's registration with its fabric has come."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if optional(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        return Registration()
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return Registration()
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status:
        return Registration(complete=False)
    cluster = bytes(info.clusterUuid)
    if cluster == _NULL_CLUSTER:
        return Registration(complete=True)
    digits = cluster.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return Registration(complete=True, fabric=Fabric(cluster_uuid="-".join(parts), clique_id=int(info.cliqueId)))
