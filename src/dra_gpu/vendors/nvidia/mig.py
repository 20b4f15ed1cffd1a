"""Partitioning NVIDIA's GPUs, by NVML: MIG mode, and one GPU instance with one compute instance for each partition.

Everything here blocks, NVML must be open, and every call may be repeated: it looks first at what is there.
Source: NVML API reference r580, "Multi Instance GPU Management"; MIG User Guide r580.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, MigProfile
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia import holders, mig_facts
from dra_gpu.vendors.nvidia.nvml import failure, handle_of

# More than a GPU instance has compute instances of one profile.
_MOST_INSTANCES = 16
_WHOLE_ENGINES = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
_RESET = "reset the GPU (`nvidia-smi --gpu-reset`) or reboot the node"


class Partitioning:
    """Partitions GPUs, and names who stands in the way.

    Args:
        processes: where procfs is mounted that shows who has device nodes open.
        node_of: returns the place of a GPU's device node.
        capabilities_of: returns the places of the device nodes of one of its GPU instances.
    """

    def __init__(
        self,
        processes: Path,
        node_of: Callable[[Gpu], Path | None],
        capabilities_of: Callable[[Gpu, int], Collection[Path]],
    ) -> None:
        self._processes = processes
        self._node_of = node_of
        self._capabilities_of = capabilities_of

    def mode(self, gpu: Gpu) -> bool:
        """See `vendors.base.Vendor.mig_mode`."""
        return _mode(gpu, handle_of(gpu)).current

    def set_mode(self, gpu: Gpu, *, enabled: bool) -> None:
        """See `vendors.base.Vendor.set_mig_mode`. A change that NVML leaves pending is withdrawn again."""
        handle = handle_of(gpu)
        found = _mode(gpu, handle)
        if found.current == enabled and (found.pending == enabled or not gpu.mig_live):
            return
        if not gpu.mig_live:
            raise VendorError(
                FailureKind.REFUSED,
                f"GPU {gpu.uuid}: its MIG mode changes with a reset only, so this driver leaves it "
                f"{'on' if found.current else 'off'}; to change it: `nvidia-smi -i {gpu.uuid} -mig {int(enabled)}`, "
                f"then {_RESET}",
            )
        if found.current and not enabled:
            self._check_no_instances(gpu, handle)
        activation = _switch(gpu, handle, enabled=enabled)
        after = _mode(gpu, handle)
        if after.current == enabled:
            return
        in_use = activation == pynvml.NVML_ERROR_IN_USE
        found_holders = self._holders_of_gpu(gpu, handle) if in_use else ""
        if after.pending != after.current:
            _switch(gpu, handle, enabled=after.current)
        raise self._not_switched(gpu, found_holders, enabled=enabled, in_use=in_use)

    def create(self, gpu: Gpu, placement: MigPlacement) -> MigInstance:
        """See `vendors.base.Vendor.create_mig_instance`."""
        handle = handle_of(gpu)
        profile = _profile(gpu, handle, placement)
        if not _mode(gpu, handle).current:
            raise VendorError(
                FailureKind.TRANSIENT,
                f"GPU {gpu.uuid}: it is not in MIG mode, so no {profile.name} can be made on it; was the mode changed "
                "meanwhile?",
            )
        instance = _find(gpu, handle, profile, placement)
        made = instance is None
        if instance is None:
            instance = _make_gpu_instance(gpu, handle, profile, placement)
        try:
            return _completed(gpu, handle, profile, placement, instance)
        except VendorError:
            if made:
                with suppress(
                    VendorError
                ):  # then it is completed by the next attempt, or destroyed when that is undone
                    _destroy_instance(gpu, profile, instance)
            raise

    def destroy(self, gpu: Gpu, placement: MigPlacement) -> None:
        """See `vendors.base.Vendor.destroy_mig_instance`."""
        handle = handle_of(gpu)
        if not _mode(gpu, handle).current:
            return
        profile = _profile(gpu, handle, placement)
        instance = _find(gpu, handle, profile, placement)
        if instance is None:
            return
        gpu_instance = int(pynvml.nvmlGpuInstanceGetInfo(instance).id)
        try:
            _destroy_instance(gpu, profile, instance)
        except VendorError as error:
            if error.kind is not FailureKind.IN_USE:
                raise
            named = self._holders_of_instance(gpu, handle, gpu_instance)
            raise VendorError(
                FailureKind.IN_USE,
                f"GPU {gpu.uuid}: its {profile.name} at {placement.start} is in use by {named}, so it is not "
                "destroyed yet; it is as soon as it is let go",
            ) from error

    def instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance | None:
        """See `vendors.base.Vendor.mig_instance`."""
        handle = handle_of(gpu)
        if not _mode(gpu, handle).current:
            return None
        found = _find(gpu, handle, _profile(gpu, handle, placement), placement)
        return None if found is None else _described(gpu, handle, placement, found)

    def _check_no_instances(self, gpu: Gpu, handle: Any) -> None:
        try:
            left = mig_facts.instances(handle, tuple(mig_facts.profiles(handle)))
        except pynvml.NVMLError as error:
            raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetGpuInstances", error) from error
        if left:
            ids = ", ".join(f"{one.gpu_instance} (units {one.placement.start} on)" for one in left)
            raise VendorError(
                FailureKind.REFUSED,
                f"GPU {gpu.uuid}: it stays in MIG mode because it has GPU instances: {ids}; those of nobody's claim "
                f"are destroyed by `nvidia-smi mig -i {gpu.uuid} -dci` and `-dgi`",
            )

    @staticmethod
    def _not_switched(gpu: Gpu, held_by: str, *, enabled: bool, in_use: bool) -> VendorError:
        what = f"GPU {gpu.uuid}: MIG mode cannot be turned {'on' if enabled else 'off'}"
        if in_use:
            return VendorError(
                FailureKind.IN_USE, f"{what} while {held_by} holds it open; it is as soon as it is let go"
            )
        return VendorError(FailureKind.REFUSED, f"{what} without a reset here; {_RESET}")

    def _holders_of_gpu(self, gpu: Gpu, handle: Any) -> str:
        node = self._node_of(gpu)
        pids = set(_running(handle)) | holders.holders(self._processes, [node] if node else [])
        return self._described(gpu, pids)

    def _holders_of_instance(self, gpu: Gpu, handle: Any, gpu_instance: int) -> str:
        """Name whoever uses an instance, or else whoever holds its GPU, such as a monitor."""
        pids = set(_running(handle, gpu_instance))
        pids |= holders.holders(self._processes, self._capabilities_of(gpu, gpu_instance))
        return self._described(gpu, pids) if pids else self._holders_of_gpu(gpu, handle)

    def _described(self, gpu: Gpu, pids: Collection[int]) -> str:
        named = holders.described(self._processes, pids)
        return named or f"a process that cannot be seen from here (`fuser -v /dev/nvidia{gpu.minor}` on the node)"


def _mode(gpu: Gpu, handle: Any) -> mig_facts.MigMode:
    try:
        return mig_facts.mode(handle)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetMigMode", error) from error


def _switch(gpu: Gpu, handle: Any, *, enabled: bool) -> int:
    """Ask for a mode, and return why it is not in force yet (`NVML_SUCCESS` where it is)."""
    wanted = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE
    try:
        return int(pynvml.nvmlDeviceSetMigMode(handle, wanted))
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_IN_USE:
            return int(error.value)
        raise failure(f"GPU {gpu.uuid}", f"nvmlDeviceSetMigMode({wanted})", error) from error


def _profile(gpu: Gpu, handle: Any, placement: MigPlacement) -> MigProfile:
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


def _find(gpu: Gpu, handle: Any, profile: MigProfile, placement: MigPlacement) -> Any | None:
    """Return the handle of the GPU instance that lies exactly there."""
    try:
        return next((one for one, _, at in mig_facts.gpu_instances(handle, profile) if at == placement), None)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetGpuInstances", error) from error


def _make_gpu_instance(gpu: Gpu, handle: Any, profile: MigProfile, placement: MigPlacement) -> Any:
    place = pynvml.byref(pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size))
    try:
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.profile_id, place)
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


def _completed(gpu: Gpu, handle: Any, profile: MigProfile, placement: MigPlacement, instance: Any) -> MigInstance:
    """Return the instance with a compute instance that spans it; one is made if there is none at all."""
    subject = f"GPU {gpu.uuid}: {profile.name} at {placement.start}"
    try:
        present = sum(1 for _ in _compute_instances(instance))
        if not present:
            pynvml.nvmlGpuInstanceCreateComputeInstance(instance, _spanning_profile(subject, instance, profile))
    except pynvml.NVMLError as error:
        raise failure(subject, "nvmlGpuInstanceCreateComputeInstance", error) from error
    found = _described(gpu, handle, placement, instance)
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


def _described(gpu: Gpu, handle: Any, placement: MigPlacement, instance: Any) -> MigInstance:
    try:
        return mig_facts.with_device(handle, placement, int(pynvml.nvmlGpuInstanceGetInfo(instance).id))
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlGpuInstanceGetInfo", error) from error


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


def _destroy_instance(gpu: Gpu, profile: MigProfile, instance: Any) -> None:
    try:
        for one in list(_compute_instances(instance)):
            pynvml.nvmlComputeInstanceDestroy(one)
        pynvml.nvmlGpuInstanceDestroy(instance)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}: {profile.name}", "nvmlGpuInstanceDestroy", error) from error


def _running(handle: Any, gpu_instance: int | None = None) -> Iterator[int]:
    """Yield the ids of the processes with a context on a GPU, or on one of its instances."""
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            running = ask(handle)
        except (pynvml.NVMLError, AttributeError):
            continue
        yield from (int(one.pid) for one in running if gpu_instance in (None, one.gpuInstanceId))
