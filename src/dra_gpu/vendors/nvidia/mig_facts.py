"""What NVML tells of partitions: a GPU's modes, the profiles it offers, the instances it has. Everything here blocks.

A profile is known by NVML's number of it: names and ids change with drivers. Profiles and their places are told whether
or not MIG mode is on, to whoever may configure MIG. Instances are read with their MIG device: what a process may use is
a compute instance, and only one that spans its GPU instance is a partition of its own.
Source: NVML API reference r580, "Multi Instance GPU Management".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from dra_gpu.inventory.model import MigInstance, MigPlacement, MigProfile
from dra_gpu.vendors.nvidia.queries import text

_MIB = 2**20
# Modes and instances change while they are read, by claims of our own at that.
_ATTEMPTS = 2
# More than any GPU has of one profile, and more than a profile has places.
_MOST_INSTANCES = 64
_NAME_PREFIX = "MIG "
#: A number that this GPU, or this driver, does not know.
NO_SUCH_PROFILE = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
# What a handle answers whose instance has been destroyed meanwhile, and a number that no MIG device has.
_GONE = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class MigMode:
    """Whether a GPU is in MIG mode, now and after its next reset."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class MigFacts:
    """A GPU's mode, what it offers and has; no mode where it cannot be partitioned.

    Both others are empty where either could not be read.
    """

    mode: MigMode | None = None
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class _MigDevice:
    gpu_instance: int
    compute_instance: int
    spans: bool
    uuid: str


def read(handle: Any) -> MigFacts:
    """Return what NVML tells of a GPU's partitions. Failing costs these facts alone, never the GPU."""
    now: MigMode | None = None
    for _ in range(_ATTEMPTS):
        try:
            now = mode(handle)
            offered = tuple(profiles(handle))
            return MigFacts(now, offered, instances(handle, offered) if now.current else ())
        except (pynvml.NVMLError, AttributeError, ValueError):  # the latter two: see `queries.optional`
            if now is None:
                return MigFacts()
    return MigFacts(now)


def mode(handle: Any) -> MigMode:
    """Return a GPU's MIG mode.

    Raises:
        pynvml.NVMLError: it cannot be partitioned (NOT_SUPPORTED), or NVML does not tell.
    """
    current, pending = pynvml.nvmlDeviceGetMigMode(handle)
    return MigMode(current == pynvml.NVML_DEVICE_MIG_ENABLE, pending == pynvml.NVML_DEVICE_MIG_ENABLE)


def profiles(handle: Any) -> Iterator[MigProfile]:
    """Yield every profile that a GPU offers.

    Raises:
        pynvml.NVMLError: NVML does not tell, most often for want of rights.
    """
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        found = profile(handle, number)
        if found is not None:
            yield replace(found, placements=tuple(_placements(handle, number, found.profile_id)))


def profile(handle: Any, number: int) -> MigProfile | None:
    """Return one profile, without its places, by NVML's number of it; None where the GPU does not have it.

    Raises:
        pynvml.NVMLError: NVML does not tell.
    """
    try:
        info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
    except pynvml.NVMLError as error:
        if error.value in NO_SUCH_PROFILE:
            return None
        raise
    return MigProfile(
        profile=number,
        profile_id=int(info.id),
        name=(text(info.name) or "").removeprefix(_NAME_PREFIX),
        slices=int(info.sliceCount),
        memory_bytes=int(info.memorySizeMB) * _MIB,
        multiprocessors=int(info.multiprocessorCount),
        copy_engines=int(info.copyEngineCount),
        decoders=int(info.decoderCount),
        encoders=int(info.encoderCount),
        jpeg_engines=int(info.jpegCount),
        ofa_engines=int(info.ofaCount),
        max_instances=int(info.instanceCount),
    )


def _placements(handle: Any, number: int, profile_id: int) -> list[MigPlacement]:
    places = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST_INSTANCES)()
    count = pynvml.c_uint(_MOST_INSTANCES)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, places, pynvml.byref(count))
    found = [MigPlacement(number, int(place.start), int(place.size)) for place in places[: count.value]]
    return sorted(found, key=lambda place: place.start)


def instances(handle: Any, offered: tuple[MigProfile, ...]) -> tuple[MigInstance, ...]:
    """Return every GPU instance of a GPU in MIG mode, by their places.

    Args:
        handle: of the GPU.
        offered: the profiles to look for.

    Raises:
        pynvml.NVMLError: NVML does not tell.
    """
    devices = list(_mig_devices(handle))
    found = [
        _instance(placement, gpu_instance, devices)
        for one in offered
        for _, gpu_instance, placement in gpu_instances(handle, one)
    ]
    return tuple(sorted(found, key=lambda one: (one.placement.start, one.placement.size)))


def gpu_instances(handle: Any, of: MigProfile) -> Iterator[tuple[Any, int, MigPlacement]]:
    """Yield handle, id and place of each GPU instance of one profile; the GPU must be in MIG mode.

    Raises:
        pynvml.NVMLError: NVML does not tell; NOT_SUPPORTED while the GPU is not in MIG mode.
    """
    handles = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
    count = pynvml.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstances(handle, of.profile_id, handles, pynvml.byref(count))
    for one in handles[: count.value]:
        try:
            info = pynvml.nvmlGpuInstanceGetInfo(one)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                continue
            raise
        place = info.placement
        yield one, int(info.id), MigPlacement(of.profile, int(place.start), int(place.size))


def with_device(handle: Any, placement: MigPlacement, gpu_instance: int) -> MigInstance:
    """Return a GPU instance with what is known of its MIG device.

    Raises:
        pynvml.NVMLError: NVML does not tell.
    """
    return _instance(placement, gpu_instance, list(_mig_devices(handle, gpu_instance)))


def _instance(placement: MigPlacement, gpu_instance: int, devices: list[_MigDevice]) -> MigInstance:
    inside = [device for device in devices if device.gpu_instance == gpu_instance]
    if len(inside) != 1 or not inside[0].spans:
        return MigInstance(placement, gpu_instance)
    return MigInstance(placement, gpu_instance, inside[0].compute_instance, inside[0].uuid)


def _mig_devices(handle: Any, only_of: int | None = None) -> Iterator[_MigDevice]:
    """Yield the MIG devices of a GPU, or those of one of its GPU instances."""
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            gpu_instance = int(pynvml.nvmlDeviceGetGpuInstanceId(device))
            if only_of in (None, gpu_instance):
                yield _mig_device(device, gpu_instance)
        except pynvml.NVMLError as error:
            if error.value not in _GONE:  # numbers have gaps
                raise


def _mig_device(device: Any, gpu_instance: int) -> _MigDevice:
    attributes = pynvml.nvmlDeviceGetAttributes(device)
    return _MigDevice(
        gpu_instance,
        int(pynvml.nvmlDeviceGetComputeInstanceId(device)),
        attributes.computeInstanceSliceCount == attributes.gpuInstanceSliceCount,
        text(pynvml.nvmlDeviceGetUUID(device)) or "",
    )
