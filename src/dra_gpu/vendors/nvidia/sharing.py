"""What NVIDIA's GPUs and drivers can do for shares, as facts; which of it a claim gets is decided elsewhere.

Source: MPS documentation r615 ("MPS v3 Interface", "MPS v3 Memory Partitioning") and the MIG User Guide r580: protocol
3 and memory limits on cgroups came with driver 615 and exclude MIG; MPS as it is used here needs Volta.
"""

from dra_gpu.inventory import versions
from dra_gpu.inventory.model import DriverVersions, Gpu

_NAMESPACES_SINCE = 615
_VOLTA = (7, 0)


def has_mps(gpu: Gpu) -> bool:
    """Tell whether MPS limits each client of this GPU."""
    return gpu.compute_capability is not None and gpu.compute_capability >= _VOLTA


def has_namespaces(gpu: Gpu, driver: DriverVersions) -> bool:
    """Tell whether an MPS daemon of this GPU can limit a client by the directory it connects to (protocol 3)."""
    return has_mps(gpu) and not gpu.mig_enabled and _major(driver) >= _NAMESPACES_SINCE


def has_memory_limits(gpu: Gpu, driver: DriverVersions, *, cgroup_v2: bool) -> bool:
    """Tell whether the driver limits the device memory of a cgroup."""
    return cgroup_v2 and not gpu.mig_enabled and _major(driver) >= _NAMESPACES_SINCE


def isolation(gpu: Gpu, driver: DriverVersions, *, cgroup_v2: bool) -> str | None:
    """Return the weaker of the two mechanisms that limit a share's SMs and memory; None where nothing is shared.

    With protocol 3 but no limit on the cgroup, memory is limited by MPS alone, which a container can lift.
    """
    if gpu.mig_enabled:
        return None
    if not has_mps(gpu):
        return "time-slice"
    if has_namespaces(gpu, driver) and has_memory_limits(gpu, driver, cgroup_v2=cgroup_v2):
        return "namespace"
    return "cooperative"


def _major(driver: DriverVersions) -> int:
    version = versions.semver(driver.driver)
    return 0 if version is None else int(version.split(".")[0])
