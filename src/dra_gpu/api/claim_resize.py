"""`ClaimResize` (`resource.dra-gpu.dev/v1alpha1`): how much an allocated claim should have while its pods run.

It is named like its claim, so that there is one at most. The spec is the user's. Of the status, `node` belongs to the
node plugin of the claim's node and everything else to the controller; each writes its own part alone, by a merge patch,
and acts on what it reads of the other's (docs/adr/resize-protocol.md).
"""

import enum
from typing import Final

import msgspec

from dra_gpu.api.dra_gpu_v1alpha1 import API_VERSION
from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.api.resource_v1 import ObjectMeta

KIND: Final = "ClaimResize"
GROUP: Final = "resource.dra-gpu.dev"
PLURAL: Final = "claimresizes"
FINALIZER: Final = "resource.dra-gpu.dev/claim-resize"
"""Held by the controller until the claim has what it was allocated again, or is gone."""
GROWTH_LABEL: Final = "resource.dra-gpu.dev/claim-resize"
"""On claims and pods that stand in for a growth: the UID of the claim that grows. Such a claim is never prepared."""


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A camelCase wire object whose unset fields are not sent."""


class _Said(msgspec.Struct, rename="camel", frozen=True):
    """A part of the status: every field is sent, so that a merge patch of it leaves nothing of before.

    Of a map a merge patch takes no key away: amounts stand there with their zeros (`Amounts.wire(zeros=True)`).
    """


class Phase(enum.Enum):
    """How far a resize is, in a word. Everything but APPLIED and REFUSED is still worked on."""

    PENDING = "Pending"  # not looked at yet, or the node does not answer
    WAITING_FOR_WORKLOAD = "WaitingForWorkload"  # processes still have, or could take, more than the new limit
    GIVING_BACK = "GivingBack"  # the limit is lowered; what was given up is being offered to others
    TAKING_ON = "TakingOn"  # the scheduler is asked for more
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"  # it has no more on that device now; asked again when that changes
    APPLIED = "Applied"  # what is wanted is in force
    REFUSED = "Refused"  # never as it stands: see the message
    ENDED = "Ended"  # the claim is not used any more; what it gave back is being taken back


class AppliesTo(enum.Enum):
    """For whom a limit is in force."""

    RUNNING_PROCESSES = "RunningProcesses"
    NEW_PROCESSES = "NewProcesses"


class MpsSettings(_Wire, frozen=True):
    """Limits of each process on a whole GPU or partition that a claim shares among its own containers by MPS.

    Attributes:
        active_thread_percentage: percent of the SMs, 1 to 100; without it, it stays as it is.
        pinned_device_memory_limit: a quantity of at least 1Mi; without it, it stays as it is.
    """

    active_thread_percentage: int | None = None
    pinned_device_memory_limit: str | None = None


class ClaimResizeSpec(_Wire, frozen=True):
    """What is wanted. What is not named here is wanted as the claim was allocated it.

    Attributes:
        request: name of the request of the claim, `main` or `main/sub`; needed where the claim has several devices.
        capacity: wanted amounts of a share, as quantities or whole numbers, by the names of its capacities.
        time_slice: of a whole GPU that the claim shares among its containers by time slices.
        mps: of a whole GPU or partition that the claim shares among its containers by MPS.
    """

    request: str | None = None
    capacity: dict[str, str | int] = {}
    time_slice: TimeSliceInterval | None = None
    mps: MpsSettings | None = None


class Target(_Said, frozen=True):
    """The device of the claim that is resized.

    Attributes:
        claim_uid: the claim; an object of another claim of that name means nothing.
        driver: our driver's name.
        pool: name of the pool, which is the name of the node.
        device: name of the device.
        share_id: the share; none for a device that is had whole.
    """

    claim_uid: str
    driver: str
    pool: str
    device: str
    share_id: str | None = None


class Growth(_Said, frozen=True):
    """Capacity that the scheduler has allocated beyond the claim's own, as a claim of its own.

    Attributes:
        claim: its name, in the same namespace.
        uid: its UID.
        capacity: what it was allocated, as quantities.
        releasing: it is on its way back: no part of `permitted` any more.
    """

    claim: str
    uid: str
    capacity: dict[str, str] = {}
    releasing: bool = False


class HeldProcess(_Said, frozen=True):
    """A process that keeps a limit from coming into force.

    Attributes:
        pid: in the node's pid namespace.
        command: how it was started, shortened.
    """

    pid: int
    command: str = ""


class NodeStatus(_Said, frozen=True):
    """What the node plugin says.

    Attributes:
        observed_generation: of the object, as far as `wanted` in the same read came from it.
        claim_uid: the claim that it speaks of.
        permit: number of the `permitted` that is kept to. A number, since the same amounts may come twice: what was
            said of the first must not release a growth that the node still stands on after the second.
        permitted: that `permitted`: limit in force + given back ≤ it, and the server has that.
        in_force: amounts that the claim cannot exceed (any more).
        applies_to: for whom they are in force, by capacity.
        waiting_for: processes that keep a lower (or higher) limit from coming into force; at most ten.
        give_back: what it would publish beyond the hardware for this claim, as soon as `reservedRound` is `round`.
        given_back: what the server has of it.
        round: counts the times that it began to give back.
        released_round: the last round of which the server has nothing any more.
        prepared: the claim is prepared on this node.
        reason: why it is not as wanted, in a word; empty when it is.
        message: the same for people.
    """

    observed_generation: int = 0
    claim_uid: str = ""
    permit: int = 0
    permitted: dict[str, str] = {}
    in_force: dict[str, str] = {}
    applies_to: dict[str, AppliesTo] = {}
    waiting_for: list[HeldProcess] = []
    give_back: dict[str, str] = {}
    given_back: dict[str, str] = {}
    round: int = 0
    released_round: int = 0
    prepared: bool = False
    reason: str = ""
    message: str = ""


class ClaimResizeStatus(_Said, frozen=True):
    """How far it is.

    Attributes:
        observed_generation: of the spec that the rest is about.
        phase: in a word.
        reason: why, in a word.
        message: the same for people.
        node_name: the node whose plugin works on it; objects are selected by it.
        target: what is resized.
        allocated: the claim's own allocation, as quantities.
        growths: what it has been allocated beyond.
        permit: counts the changes of `permitted`; written together with it, from the last version of the object.
        permitted: allocated + growths that are not releasing: limit in force + given back may never exceed it.
        wanted: what the node is to bring into force as far as `permitted` allows; checked against the bounds.
        time_slice: to be set; without it, it stays.
        mps: to be set; without it, it stays.
        reserved_round: the node's round for which the claim's `status.reservedFor` has this object, so that a forced
            deletion of its pods cannot free what was given back; 0 for none.
        free: what the device has left, told with phase InsufficientCapacity.
        node: what the node plugin says.
    """

    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    node_name: str = ""
    target: Target | None = None
    allocated: dict[str, str] = {}
    growths: list[Growth] = []
    permit: int = 0
    permitted: dict[str, str] = {}
    wanted: dict[str, str] = {}
    time_slice: TimeSliceInterval | None = None
    mps: MpsSettings | None = None
    reserved_round: int = 0
    free: dict[str, str] = {}
    node: NodeStatus = NodeStatus()


class ClaimResizeMeta(ObjectMeta, rename="camel", omit_defaults=True, frozen=True):
    """The part of metadata that matters here."""

    generation: int = 0
    finalizers: list[str] = []  # noqa: RUF012 - msgspec copies it for each object
    deletion_timestamp: str | None = None


class ClaimResize(_Wire, frozen=True):
    """How much an allocated ResourceClaim should have while its pods run; it has the name of the claim."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ClaimResizeMeta = ClaimResizeMeta()
    spec: ClaimResizeSpec = ClaimResizeSpec()
    status: ClaimResizeStatus = ClaimResizeStatus()
