"""What the controller may do for a resize, each a single change at the API server that may be the last one. Pure."""

from dataclasses import dataclass

from dra_gpu.api.claim_resize import ClaimResizeStatus
from dra_gpu.controller.resizes.objects import Claim, Pod
from dra_gpu.inventory.amounts import Amounts


@dataclass(frozen=True, slots=True)
class Mark:
    """Put the finalizer on the object, and the claim as its owner."""

    owner_uid: str | None


@dataclass(frozen=True, slots=True)
class Refresh:
    """Read a growth's claim anew: what a watch says of it is not enough to count on."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Reserve:
    """Enter the ClaimResize in `status.reservedFor` of its claim, or of a growth of it."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Unreserve:
    """Take it out again."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Write:
    """Write the status; `anew` forgets what the node said, because another device is worked on from now on."""

    status: ClaimResizeStatus
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Make the claim of a growth."""

    name: str
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Carry:
    """Make the pod that carries a growth's claim through the scheduler."""

    growth: Claim


@dataclass(frozen=True, slots=True)
class DeleteGrowth:
    """Delete the claim of a growth."""

    growth: Claim


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod of a growth."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class DeleteResize:
    """Delete the object: its claim is gone."""


@dataclass(frozen=True, slots=True)
class Unmark:
    """Take the finalizer off: nothing is left."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing can be done now; `again` is when to look without having heard of anything, in seconds."""

    again: float | None = None


Beside = Refresh | Reserve | Unreserve | Ask | Carry | DeleteGrowth | DeletePod
"""Steps that are about other objects than the resize."""
Step = Mark | Unmark | Write | DeleteResize | Rest | Beside
