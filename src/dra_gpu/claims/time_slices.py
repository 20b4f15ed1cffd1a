"""Who has set the time slice of a GPU that several claims have at once. Pure."""

from dataclasses import dataclass

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval


@dataclass(frozen=True, slots=True)
class TimeSliceHolder:
    """A claim of this boot that has set the time slice of a GPU which it shares with other claims.

    Attributes:
        uid: of the claim.
        former: what was set before the first of them; None where that could not be read.
    """

    uid: str
    former: TimeSliceInterval | None
