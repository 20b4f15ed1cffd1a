"""What will keep a share to its limits on one GPU, or why nothing can that the claim accepts. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from dra_gpu.api.dra_gpu_v1alpha1 import Enforcement, SharedGpuConfig, SharedStrategy
from dra_gpu.claims.outcome import RefusedError
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol, SharingAbility

_WAY_OUT = (
    "write enforcement: BestEffort to take limits that a container could lift, or ask for a whole GPU or for MIG "
    "(mig.nvidia.com)"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan needs to know of the node beside its devices.

    Attributes:
        ability: what the GPU, or the partition, behind a device and its driver can do for shares.
        mps_served: the node plugin has an MPS service to ask.
        pods: UIDs of the pods that may use the claim.
        cgroup_of: the cgroup of a pod; None where it was not found.
        in_mig_mode: a GPU is known to be in MIG mode.
        unlimited: why the driver limits no memory in pods' cgroups although it should; empty as long as it does.
    """

    ability: Callable[[PublishedDevice], SharingAbility]
    mps_served: bool = True
    pods: tuple[str, ...] = ()
    cgroup_of: Callable[[str], str | None] = lambda _pod: None
    in_mig_mode: Callable[[Gpu], bool] = lambda gpu: bool(gpu.mig_enabled)
    unlimited: str = ""

    def cgroups(self) -> tuple[str, ...]:
        """Return the cgroups of those pods that have one now."""
        found = (self.cgroup_of(pod) for pod in self.pods) if not self.unlimited else ()
        return tuple(cgroup for cgroup in found if cgroup is not None)


@dataclass(frozen=True, slots=True)
class Terms:
    """How the limits of a share are kept.

    Attributes:
        strategy: MPS or TIME_SLICING.
        protocol: of MPS; None with time slices.
        compute: what enforces the percentage of SMs.
        memory: what enforces the amount of memory.
        cgroups: where the memory limit is set, when `memory` is CGROUP.
        notes: what a reader of the claim's status should know.
    """

    strategy: SharedStrategy
    protocol: MpsProtocol | None
    compute: Mechanism
    memory: Mechanism
    cgroups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def protocol_of(device: PublishedDevice, around: Surroundings) -> MpsProtocol | None:
    """Return how MPS would limit the clients of a device here; None where it cannot."""
    return around.ability(device).mps if around.mps_served else None


def why_no_mps(device: PublishedDevice, around: Surroundings) -> str:
    """Say why MPS cannot serve a device."""
    if not around.mps_served:
        return "the MPS service (`dra-gpu mps`) is not enabled on this node"
    gpu = device.gpu
    capability = "unknown" if gpu.compute_capability is None else ".".join(map(str, gpu.compute_capability))
    return f"MPS cannot serve it (compute capability {capability}, of which MPS needs 7.0; and no MIG mode)"


def terms_of(where: str, device: PublishedDevice, config: SharedGpuConfig, around: Surroundings) -> Terms:
    """Return how a share of a GPU, or of a partition, will be kept to its limits.

    Args:
        where: claim and device, for messages.
        device: what it is a share of.
        config: what the claim accepts.
        around: what the node can do.

    Raises:
        RefusedError: the strategy is impossible here, or Required limits are.
    """
    protocol = None if config.strategy is SharedStrategy.TIME_SLICING else protocol_of(device, around)
    if protocol is None and config.strategy is SharedStrategy.MPS:
        raise RefusedError(
            f"{where}: strategy MPS cannot be used on GPU {device.gpu.uuid}: {why_no_mps(device, around)}; write "
            "strategy Auto or TimeSlicing, or choose another GPU by a selector",
            retryable=False,
        )
    compute = {
        MpsProtocol.NAMESPACE: Mechanism.NAMESPACE,
        MpsProtocol.CLASSIC: Mechanism.COOPERATIVE,
        None: Mechanism.TIME_SLICE,
    }[protocol]
    cgroups = around.cgroups() if around.ability(device).memory_limits else ()
    memory = Mechanism.ACCOUNTING if protocol is None else Mechanism.COOPERATIVE
    if cgroups:
        memory = Mechanism.CGROUP
    if config.enforcement is Enforcement.REQUIRED:
        _insist(where, device, around, compute, memory)
    strategy = SharedStrategy.TIME_SLICING if protocol is None else SharedStrategy.MPS
    return Terms(strategy, protocol, compute, memory, cgroups, _notes(device, config, around, memory, protocol))


def _insist(where: str, device: PublishedDevice, around: Surroundings, compute: Mechanism, memory: Mechanism) -> None:
    """Refuse limits that a container could lift."""
    if not compute.binds:
        raise RefusedError(
            f"{where}: enforcement Required refuses computePercent by `{compute.value}`: on GPU {device.gpu.uuid} "
            f"{_why_weak_compute(device, around)}; {_WAY_OUT}",
            retryable=False,
        )
    if not memory.binds:
        limits = around.ability(device).memory_limits
        reason = "the driver cannot limit a pod's memory (it takes driver 615, cgroup v2, and no partition)"
        if limits:
            reason = around.unlimited or "the cgroup of its pod was not found, in which the driver would limit memory"
        raise RefusedError(
            f"{where}: enforcement Required refuses memory by `{memory.value}`: on GPU {device.gpu.uuid} {reason}; "
            f"{_WAY_OUT}",
            retryable=limits,
        )


def _why_weak_compute(device: PublishedDevice, around: Surroundings) -> str:
    if protocol_of(device, around) is None:
        return why_no_mps(device, around)
    if device.placement is not None:
        return "MPS takes its limits from the container's environment inside a partition, whatever the driver"
    return "MPS takes its limits from the container's environment (the driver is older than 615)"


def _notes(
    device: PublishedDevice,
    config: SharedGpuConfig,
    around: Surroundings,
    memory: Mechanism,
    protocol: MpsProtocol | None,
) -> tuple[str, ...]:
    notes = []
    if protocol is None and config.strategy is SharedStrategy.AUTO:
        notes.append(f"time slices instead of MPS: {why_no_mps(device, around)}")
    if protocol is not None:
        what = "GPU" if device.placement is None else "partition"
        notes.append(f"a fatal GPU fault of one process ends the processes of all shares of this {what}")
    if memory is Mechanism.CGROUP:
        notes.append("memory is limited for each pod, all its processes together; managed memory is not counted")
    elif around.ability(device).memory_limits:
        why = around.unlimited or "the cgroup of its pod was not found, so that the driver does not limit its memory"
        notes.append(why)
    if memory is Mechanism.COOPERATIVE:
        notes.append("memory is limited for each process, not for all of them together")
    if len(around.pods) > 1:
        notes.append(f"{len(around.pods)} pods use this share: limits hold for each pod or process, not for their sum")
    return tuple(notes)
