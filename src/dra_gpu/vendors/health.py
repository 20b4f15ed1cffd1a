"""What a vendor tells about the health of its GPUs: things that happen, and what a look finds. Pure.

A vendor reports facts alone; what follows from them is decided in `dra_gpu.health`.
"""

import enum
from dataclasses import dataclass


class RecoveryAction(enum.Enum):
    """What the driver says has to be done before a GPU works again.

    Source: NVML r580, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` (field 230), values 0 to 5 in this order.
    """

    NONE = "None"
    RESET = "Reset"
    REBOOT = "Reboot"
    DRAIN_P2P = "DrainP2P"
    DRAIN_AND_RESET = "DrainAndReset"
    RECOVER_IMEX = "RecoverImex"


class HealthEventKind(enum.Enum):
    """What happened."""

    XID = "xid"  # the driver reported an error by number
    ECC = "ecc"  # an uncorrectable memory error, counted by the hardware
    LOST = "lost"  # the library says that the GPU is gone
    RECOVERY_ACTION = "recovery action"  # the driver wants something else done than before: look at it


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """Something that happened to a GPU, or to one MIG instance of it.

    Attributes:
        gpu: UUID of the GPU.
        kind: what happened.
        xid: NVIDIA's number of the error; None for other kinds.
        gpu_instance: id of the MIG GPU instance it is confined to; None for the whole GPU.
        compute_instance: id of the compute instance; None for the whole GPU instance.
        detail: what else the vendor says, for messages.
        count: how often it happened, where it was told once for several times; 0 where nothing new has happened, and it
            is still so.
    """

    gpu: str
    kind: HealthEventKind
    xid: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    detail: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class HealthProbe:
    """What one look at a GPU finds.

    Attributes:
        gpu: UUID of the GPU.
        lost: the library says that it is gone, or it is no longer there.
        unresponsive: it did not answer by the deadline.
        problem: why it could not be read, or what else is wrong (memory to be remapped, no room to remap), for
            messages; empty when it is well.
        recovery_action: what the driver wants done; None where it does not tell.
        fabric_problem: what is wrong with its place in the NVLink fabric; empty when nothing is.
        reset_mark: differs from the one before when the GPU was reset, rebound, or its driver was reloaded since;
            empty where that cannot be told.
        counter: a counter of the GPU that only rises, until a reset lets it start anew; None where there is none. A
            reset leaves no other trace where the driver stays bound.
    """

    gpu: str
    lost: bool = False
    unresponsive: bool = False
    problem: str = ""
    recovery_action: RecoveryAction | None = None
    fabric_problem: str = ""
    reset_mark: str = ""
    counter: int | None = None

    def reset_since(self, reset_mark: str, counter: int | None) -> bool:
        """Whether the GPU was reset after an earlier look, which found this mark and this counter."""
        if self.reset_mark and reset_mark and self.reset_mark != reset_mark:
            return True
        return self.counter is not None and counter is not None and self.counter < counter

    @property
    def good(self) -> bool:
        """Whether nothing stands against using the GPU."""
        wanted = self.recovery_action not in (None, RecoveryAction.NONE)
        return not (self.lost or self.unresponsive or self.problem or self.fabric_problem or wanted)
