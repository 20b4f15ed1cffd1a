"""GPU instances and the compute instance in each, by NVML: found, made, completed, destroyed. Everything here blocks.

Source: NVML API reference r580, "Multi Instance GPU Management".
"""

from collections.abc import Iterator
from typing import Any

import pynvml

from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, MigProfile
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia import mig_facts
from dra_gpu.vendors.nvidia.nvml import failure

# More than a GPU instance has compute instances of one profile.
_MOST_INSTANCES = 16
_WHOLE_ENGINES = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


def profile_of(gpu: Gpu, handle: Any, placement: MigPlacement) -> MigProfile:
    """Return the profile as NVML tells it now: its id may have changed with the driver."""
    try:
        found = mig_facts.profile(handle, placement.profile)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetGpuInstanceProfileInfoV", error) from error
    if found is None:
        raise VendorError(
            FailureKind.UNSUPPORTED, f"GPU {gpu.uuid}: it does not offer NVML's MIG profile {placement.profile}"
        )
    return found


def find(gpu: Gpu, handle: Any, profile: MigProfile, placement: MigPlacement) -> tuple[Any, int] | None:
    """Return handle and id of the GPU instance that lies exactly there."""
    try:
        present = mig_facts.gpu_instances(handle, profile)
        return next(((one, number) for one, number, at in present if at == placement), None)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetGpuInstances", error) from error


def make(gpu: Gpu, handle: Any, profile: MigProfile, placement: MigPlacement) -> tuple[Any, int]:
    """Make a GPU instance at exactly that place, and return its handle and id."""
    place = pynvml.byref(pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size))
    try:
        made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.profile_id, place)
        return made, int(pynvml.nvmlGpuInstanceGetInfo(made).id)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
            raise VendorError(
                FailureKind.IN_USE,
                f"GPU {gpu.uuid}: no room for a {profile.name} at {placement.start}: {_neighbours(handle)}",
            ) from error
        raise failure(f"GPU {gpu.uuid}", f"nvmlDeviceCreateGpuInstanceWithPlacement({profile.name})", error) from error


def _neighbours(handle: Any) -> str:
    """Say what lies on a GPU."""
    try:
        profiles = tuple(mig_facts.profiles(handle))
        present = mig_facts.instances(handle, profiles)
    except pynvml.NVMLError:
        return "what lies on the GPU cannot be read"
    names = {profile.profile: profile.name for profile in profiles}
    listed = ", ".join(f"{names[one.placement.profile]} at {one.placement.start}" for one in present)
    return f"the GPU has {listed}" if listed else "the GPU has no instances, but the profile does not fit there"


def completed(
    gpu: Gpu, handle: Any, profile: MigProfile, placement: MigPlacement, instance: tuple[Any, int], *, new: bool
) -> MigInstance:
    """Return the instance with a compute instance that spans it; one is made if it is new, or has none at all."""
    subject = f"GPU {gpu.uuid}: {profile.name} at {placement.start}"
    try:
        present = 0 if new else sum(1 for _ in _compute_instances(instance[0]))
        if not present:
            number = _spanning_profile(subject, instance[0], profile)
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance[0], number)
    except pynvml.NVMLError as error:
        raise failure(subject, "nvmlGpuInstanceCreateComputeInstance", error) from error
    found = described(gpu, handle, placement, instance[1])
    if found.uuid is not None:
        return found
    if present:
        raise VendorError(
            FailureKind.REFUSED,
            f"{subject}: somebody has cut it into compute instances, so nobody can be given it as a whole; destroy "
            f"them (`nvidia-smi mig -i {gpu.uuid} -gi {found.gpu_instance} -dci`)",
        )
    raise VendorError(
        FailureKind.TRANSIENT, f"{subject}: NVML does not list its MIG device yet; are /dev/nvidia-caps nodes made?"
    )


def described(gpu: Gpu, handle: Any, placement: MigPlacement, gpu_instance: int) -> MigInstance:
    """Return a GPU instance with its MIG device."""
    try:
        return mig_facts.with_device(handle, placement, gpu_instance)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetMigDeviceHandleByIndex", error) from error


def _spanning_profile(subject: str, instance: Any, profile: MigProfile) -> int:
    """Return the id of the compute instance profile that takes all of a GPU instance."""
    for info in _compute_profiles(instance):
        if info.sliceCount == profile.slices:
            return int(info.id)
    raise VendorError(FailureKind.UNSUPPORTED, f"{subject}: NVML has no compute instance profile that spans it")


def _compute_profiles(instance: Any) -> Iterator[Any]:
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, _WHOLE_ENGINES)
        except pynvml.NVMLError as error:
            if error.value not in mig_facts.NO_SUCH_PROFILE:
                raise


def _compute_instances(instance: Any) -> Iterator[Any]:
    for info in _compute_profiles(instance):
        found = (pynvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)()
        count = pynvml.c_uint(0)
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, found, pynvml.byref(count))
        yield from found[: count.value]


def destroy(gpu: Gpu, profile: MigProfile, instance: Any) -> None:
    """Destroy a GPU instance with all its compute instances."""
    try:
        for one in list(_compute_instances(instance)):
            pynvml.nvmlComputeInstanceDestroy(one)
        pynvml.nvmlGpuInstanceDestroy(instance)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}: {profile.name}", "nvmlGpuInstanceDestroy", error) from error
