"""Partitions of GPUs in end-to-end tests: what a claim asks for, and which partitions the hardware really has."""

from lab.simulated import SimulatedGpus

from dra_gpu_sim import checker
from tests.e2e.harness.objects import Json, device_request

MIG_CLASS = "mig.nvidia.com"
SHARED_MIG_CLASS = "shared.mig.nvidia.com"


def of_profile(profile: str) -> str:
    """Return a selector for partitions of a profile."""
    return f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"


def of_parent(uuid: str) -> str:
    """Return a selector for partitions of one GPU."""
    return f"device.attributes['gpu.nvidia.com'].parentUUID == '{uuid}'"


def partition_request(profile: str, parent: str = "", name: str = "gpu") -> Json:
    """Return the request of a partition, of one GPU or of any."""
    chosen = [of_profile(profile), *([of_parent(parent)] if parent else [])]
    return device_request(name, MIG_CLASS, selector=" && ".join(chosen))


def instances_of(gpus: SimulatedGpus) -> dict[int, list[str]]:
    """Return GPU index -> profiles of the GPU instances that exist there, sorted; GPUs without any are left out."""
    found = checker.snapshot(gpus.root).gpus
    return {gpu.index: sorted(one.profile for one in gpu.instances) for gpu in found if gpu.instances}
