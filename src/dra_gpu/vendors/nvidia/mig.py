"""Partitioning NVIDIA's GPUs, by NVML: MIG mode, and one GPU instance with one compute instance for each partition.

Everything here blocks, NVML must be open, and every call may be repeated: it looks first at what is there.
Source: NVML API reference r580, "Multi Instance GPU Management"; MIG User Guide r580.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia import holders, mig_facts, mig_instances
from dra_gpu.vendors.nvidia.nvml import failure, handle_of

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
        profile = mig_instances.profile_of(gpu, handle, placement)
        if not _mode(gpu, handle).current:
            raise VendorError(
                FailureKind.TRANSIENT,
                f"GPU {gpu.uuid}: it is not in MIG mode, so no {profile.name} can be made on it; was the mode changed "
                "meanwhile?",
            )
        instance = mig_instances.find(gpu, handle, profile, placement)
        made = instance is None
        if instance is None:
            instance = mig_instances.make(gpu, handle, profile, placement)
        try:
            return mig_instances.completed(gpu, handle, profile, placement, instance, new=made)
        except VendorError:
            if made:
                with suppress(VendorError):  # else the next attempt completes it, or whoever undoes this destroys it
                    mig_instances.destroy(gpu, profile, instance[0])
            raise

    def destroy(self, gpu: Gpu, placement: MigPlacement) -> None:
        """See `vendors.base.Vendor.destroy_mig_instance`."""
        handle = handle_of(gpu)
        if not _mode(gpu, handle).current:
            return
        profile = mig_instances.profile_of(gpu, handle, placement)
        found = mig_instances.find(gpu, handle, profile, placement)
        if found is None:
            return
        try:
            mig_instances.destroy(gpu, profile, found[0])
        except VendorError as error:
            if error.kind is not FailureKind.IN_USE:
                raise
            named = self._holders_of_instance(gpu, handle, found[1])
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
        found = mig_instances.find(gpu, handle, mig_instances.profile_of(gpu, handle, placement), placement)
        return None if found is None else mig_instances.described(gpu, handle, placement, found[1])

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


def _running(handle: Any, gpu_instance: int | None = None) -> Iterator[int]:
    """Yield the ids of the processes with a context on a GPU, or on one of its instances."""
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            running = ask(handle)
        except (pynvml.NVMLError, AttributeError):
            continue
        yield from (int(one.pid) for one in running if gpu_instance in (None, one.gpuInstanceId))
