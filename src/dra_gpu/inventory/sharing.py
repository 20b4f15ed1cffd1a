"""What can enforce the limits of a GPU's shares, as values that every part of the driver speaks of."""

import enum
from dataclasses import dataclass


class Mechanism(enum.Enum):
    """What makes a limit hold, strongest first; the values stand in claims' status and in the attribute `isolation`."""

    HARDWARE = "hardware"  # the GPU, or a partition of it
    CGROUP = "cgroup"  # the kernel driver counts all processes of a pod
    NAMESPACE = "namespace"  # the MPS daemon, by the directory that a process connects to
    COOPERATIVE = "cooperative"  # MPS, by what stands in the process's own environment
    TIME_SLICE = "time-slice"  # processes take turns; no limit on how much each gets
    ACCOUNTING = "accounting"  # the scheduler counts it, nothing on the node limits it

    @property
    def binds(self) -> bool:
        """Whether a container cannot lift the limit."""
        return self in (Mechanism.HARDWARE, Mechanism.CGROUP, Mechanism.NAMESPACE)


class MpsProtocol(enum.Enum):
    """How limits reach a client of MPS."""

    CLASSIC = "classic"  # protocol 2: variables of the client's environment, which it can change
    NAMESPACE = "namespace"  # protocol 3, driver 615 and later: the daemon's own, per pipe directory


@dataclass(frozen=True, slots=True)
class SharingAbility:
    """What one GPU and its driver can do for shares.

    Attributes:
        mps: how MPS limits its clients; None where MPS cannot serve the GPU.
        memory_limits: the driver can limit the device memory of a cgroup on this GPU.
    """

    mps: MpsProtocol | None
    memory_limits: bool = False
