"""Capacities of each view, and what a request for a part of one means.

All capacities of a shareable device can be asked for in part, so that one resource has one unit. Each has a small
default: what a claim does not ask for would else be taken whole. None has a maximum and none but the percentage a step:
the API server refuses a slice in which a maximum, a minimum or minimum + step is above the value, and the value moves
when capacity moves between claims. Source: Kubernetes v1.37, validation of CapacityRequestPolicy.
"""

from dra_gpu.api import quantity
from dra_gpu.api.resource_v1 import CapacityRange, CapacityRequestPolicy, DeviceCapacity
from dra_gpu.inventory import versions
from dra_gpu.inventory.model import DriverVersions, Gpu, MigProfile
from dra_gpu.inventory.options import ConsumableShares

COMPUTE_PERCENT = "computePercent"
MEMORY = "memory"
CLIENTS = "clients"
NVLINK_BANDWIDTH = "nvlinkBandwidth"
SHARES = "shares"
# Client processes of one GPU under MPS on Volta and later; from CUDA 13.1 on more (MPS documentation r615).
_CLIENTS = 48
_CLIENTS_SINCE_CUDA_13_1 = 60
_CUDA_13_1 = (13, 1)


def of_whole_gpu(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """Return the capacities of the `gpu` view; memory in binary units, exact to the MiB."""
    if gpu.memory_bytes is None:
        return {}
    return {MEMORY: DeviceCapacity(value=quantity.format_bytes(gpu.memory_bytes))}


def counted(capacities: dict[str, DeviceCapacity], shares: ConsumableShares) -> dict[str, DeviceCapacity]:
    """Return the capacities of a GPU or partition that several claims have at once, each as a whole.

    Of what is not counted a claim takes nothing unless it asks for it, so that the next one finds it all.
    """
    found = {name: _shareable(it.value, default="0", minimum="0") for name, it in capacities.items()}
    memory = capacities.get(MEMORY)
    if shares.counts_memory and memory is not None:
        found[MEMORY] = _shareable(memory.value, default=memory.value, minimum="1Mi", step="1Mi")
    if shares.number is not None:
        step = "1" if shares.number > 1 else None  # a step beyond the value is refused
        found[SHARES] = _shareable(str(shares.number), default="1", minimum="1", step=step)
    return found


def of_shared(gpu: Gpu, driver: DriverVersions) -> dict[str, DeviceCapacity]:
    """Return the capacities of the `shared` view; one that the GPU lacks is left out."""
    capacities = {
        COMPUTE_PERCENT: _shareable("100", default="1", minimum="1", step="1"),
        CLIENTS: _shareable(str(max_clients(driver)), default="1", minimum="1"),
    }
    if gpu.memory_bytes is not None:
        capacities[MEMORY] = _shareable(quantity.format_bytes(gpu.memory_bytes), default="1Gi", minimum="1Gi")
    if gpu.nvlink_bandwidth:
        capacities[NVLINK_BANDWIDTH] = _shareable(str(gpu.nvlink_bandwidth), default="0", minimum="0")
    return capacities


def of_mig(profile: MigProfile) -> dict[str, DeviceCapacity]:
    """Return the capacities of the `mig` view; an engine of which there is none stands there as 0."""
    return {
        MEMORY: DeviceCapacity(value=quantity.format_bytes(profile.memory_bytes)),
        "multiprocessors": DeviceCapacity(value=str(profile.multiprocessors)),
        "copyEngines": DeviceCapacity(value=str(profile.copy_engines)),
        "decoders": DeviceCapacity(value=str(profile.decoders)),
        "encoders": DeviceCapacity(value=str(profile.encoders)),
        "jpegEngines": DeviceCapacity(value=str(profile.jpeg_engines)),
        "ofaEngines": DeviceCapacity(value=str(profile.ofa_engines)),
    }


def of_shared_mig(gpu: Gpu, profile: MigProfile, driver: DriverVersions) -> dict[str, DeviceCapacity]:
    """Return the capacities of the `shared-mig` view: those of `shared`, of the size of the partition."""
    clients = partition_clients(gpu, profile, driver)
    return {
        COMPUTE_PERCENT: _shareable("100", default="1", minimum="1", step="1"),
        CLIENTS: _shareable(str(clients), default="1", minimum="1"),
        MEMORY: _shareable(quantity.format_bytes(profile.memory_bytes), default="1Gi", minimum="1Gi"),
    }


def partition_clients(gpu: Gpu, profile: MigProfile, driver: DriverVersions) -> int:
    """Return how many client processes a partition serves under MPS: in proportion to its compute slices, at least 1.

    Source: MPS documentation, "MPS on MIG": the limit of a GPU is divided among its instances.
    """
    return max(1, max_clients(driver) * profile.slices // max(1, gpu.mig_slices))


def max_clients(driver: DriverVersions) -> int:
    """Return how many client processes one GPU serves under MPS."""
    version = versions.semver(driver.compute_api)
    if version is None:
        return _CLIENTS
    major, minor = (int(number) for number in version.split(".")[:2])
    return _CLIENTS_SINCE_CUDA_13_1 if (major, minor) >= _CUDA_13_1 else _CLIENTS


def _shareable(value: str, *, default: str, minimum: str, step: str | None = None) -> DeviceCapacity:
    policy = CapacityRequestPolicy(default=default, valid_range=CapacityRange(min=minimum, step=step))
    return DeviceCapacity(value=value, request_policy=policy)
