"""What NVIDIA's GPUs and drivers can do for shares, as facts; which of it a claim gets is decided elsewhere.

Source: MPS documentation r615 ("MPS v3 Interface", "MPS v3 Memory Partitioning") and the MIG User Guide r580: protocol
3 and memory limits on cgroups came with driver 615 and exclude MIG; MPS as it is used here needs Volta.
"""

from dra_gpu.inventory import versions
from dra_gpu.inventory.model import DriverVersions, Gpu
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol, SharingAbility

_NAMESPACES_SINCE = 615
_VOLTA = (7, 0)


def ability(gpu: Gpu, driver: DriverVersions, *, cgroup_v2: bool) -> SharingAbility:
    """Return what this GPU under this driver can do for shares of it.

    Args:
        gpu: the whole GPU; one that keeps being partitioned has no shares of its own.
        driver: the installed versions.
        cgroup_v2: the node has the unified cgroup hierarchy, without which no memory is limited.
    """
    if _stays_partitioned(gpu):
        return SharingAbility(mps=None)
    mps = None
    if has_mps(gpu):
        mps = MpsProtocol.NAMESPACE if has_namespaces(gpu, driver) else MpsProtocol.CLASSIC
    return SharingAbility(mps=mps, memory_limits=_is_recent(driver) and cgroup_v2)


def ability_of_partition(gpu: Gpu) -> SharingAbility:
    """Return what can be done for shares of a partition of this GPU: MPS as of old, which a container can evade."""
    return SharingAbility(mps=MpsProtocol.CLASSIC if has_mps(gpu) else None)


def has_mps(gpu: Gpu) -> bool:
    """Tell whether MPS limits each client of this GPU."""
    return gpu.compute_capability is not None and gpu.compute_capability >= _VOLTA


def has_namespaces(gpu: Gpu, driver: DriverVersions) -> bool:
    """Tell whether an MPS daemon of this GPU can limit a client by the directory it connects to (protocol 3)."""
    return has_mps(gpu) and not _stays_partitioned(gpu) and _is_recent(driver)


def isolation(gpu: Gpu, able: SharingAbility) -> str | None:
    """Return the weaker of the two mechanisms that limit a share's SMs and memory; None where nothing is shared.

    With protocol 3 but no limit on the cgroup, memory is limited by MPS alone, which a container can lift.
    """
    if _stays_partitioned(gpu):
        return None
    match able.mps:
        case None:
            return Mechanism.TIME_SLICE.value
        case MpsProtocol.NAMESPACE if able.memory_limits:
            return Mechanism.NAMESPACE.value
        case _:
            return Mechanism.COOPERATIVE.value


def _stays_partitioned(gpu: Gpu) -> bool:
    """Tell whether a GPU is in MIG mode until somebody resets it; one that can leave it at any time is as if it had."""
    return bool(gpu.mig_enabled) and not gpu.mig_live


def _is_recent(driver: DriverVersions) -> bool:
    version = versions.semver(driver.driver)
    return version is not None and int(version.split(".")[0]) >= _NAMESPACES_SINCE
