"""Partitions of NVIDIA GPUs (MIG), by NVML. Everything here blocks, and NVML must be open."""

from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement
from dra_gpu.vendors.base import FailureKind, VendorError


def mode(gpu: Gpu) -> bool:
    """Tell whether a GPU is in MIG mode now."""
    return bool(gpu.mig_enabled)


def set_mode(gpu: Gpu, *, enabled: bool) -> None:
    """Put a GPU into MIG mode or out of it."""
    if mode(gpu) != enabled:
        raise _not_yet(gpu)


def create(gpu: Gpu, placement: MigPlacement) -> MigInstance:  # noqa: ARG001 - not yet
    """Have an instance at that place."""
    raise _not_yet(gpu)


def destroy(gpu: Gpu, placement: MigPlacement) -> None:  # noqa: ARG001 - not yet
    """Have no instance at that place."""
    raise _not_yet(gpu)


def instance(gpu: Gpu, placement: MigPlacement) -> MigInstance | None:
    """Return the instance at that place."""
    return next((found for found in gpu.mig_instances if found.placement == placement), None)


def _not_yet(gpu: Gpu) -> VendorError:
    return VendorError(FailureKind.UNSUPPORTED, f"GPU {gpu.uuid}: this release cannot partition it")
