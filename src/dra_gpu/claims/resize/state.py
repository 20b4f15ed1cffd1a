"""What the journal keeps about the resize of a share, or about other settings of what is had whole. Pure.

It outlives the claim's record, a reboot and the object: what was given back is published until the server has less.
"""

from dataclasses import dataclass

import msgspec

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.mps.service import Limits


@dataclass(frozen=True, slots=True)
class ShareKey:
    """Which share of which claim.

    Attributes:
        uid: of the claim.
        device: name of the device in the pool.
        share_id: the scheduler's id of the share; empty for a device that is had whole.
    """

    uid: str
    device: str
    share_id: str


class Resize(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="share"):
    """How far the resize of a share has come.

    Attributes:
        uid: of the claim.
        device: name of the device in the pool.
        share_id: the scheduler's id of the share.
        namespace: of the claim and of the object.
        name: of the claim and of the object.
        object: UID of the ClaimResize that `permit` is about.
        allocated: A, what the claim was allocated.
        limit: L, what its processes cannot exceed: what Prepare and the scheduler's growths count with.
        goal: what its limits are being set to, at most `limit`; below it as long as processes may still have more.
        applied: the goal for which everything was set last; nothing where that is not known.
        mps: what the MPS service accepted last; None for what the claim was prepared with.
        given_back: B, the most that the server may have of it beyond the hardware.
        offered: what is to be published beyond the hardware, at most `given_back`.
        round: counts the times that something began to be given back.
        released_round: the last of them of which nothing is left at the server.
        permit: number of the P that is kept to.
        permitted: that P.
    """

    uid: str
    device: str
    share_id: str
    namespace: str
    name: str
    object: str
    allocated: Amounts
    limit: Amounts
    goal: Amounts
    applied: Amounts
    mps: Limits | None = None
    given_back: Amounts = NOTHING
    offered: Amounts = NOTHING
    round: int = 0
    released_round: int = 0
    permit: int = 0
    permitted: Amounts = NOTHING

    @property
    def key(self) -> ShareKey:
        """Which share it is about."""
        return ShareKey(self.uid, self.device, self.share_id)

    @property
    def settled(self) -> bool:
        """Whether its limits are set and nothing has more."""
        return self.applied == self.goal == self.limit


class Settings(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="whole"):
    """How a GPU or partition that a claim has whole is shared among its containers, other than it was planned.

    Attributes:
        uid: of the claim.
        device: name of the device in the pool.
        namespace: of the claim and of the object.
        name: of the claim and of the object.
        time_slice: to be set; None for what was planned.
        former: what was set before the claim, where nothing of the kind was planned.
        planned: the limits of each process that were planned; None where the claim does not share it by MPS.
        mps: limits of each process; None for what was planned.
        accepted: what the MPS service accepted last; None for what was planned.
        applied: everything is set.
    """

    uid: str
    device: str
    namespace: str
    name: str
    time_slice: TimeSliceInterval | None = None
    former: TimeSliceInterval | None = None
    planned: Limits | None = None
    mps: Limits | None = None
    accepted: Limits | None = None
    applied: bool = False

    @property
    def key(self) -> ShareKey:
        """Which device of which claim."""
        return ShareKey(self.uid, self.device, "")

    @property
    def as_planned(self) -> bool:
        """Whether nothing is other than it was planned."""
        return self.time_slice is None and self.mps is None


Kept = Resize | Settings


def encode(kept: Kept) -> str:
    """Return the JSON that the journal keeps."""
    return msgspec.json.encode(kept).decode()


def decode(raw: str | bytes) -> Kept | None:
    """Read what the journal keeps; None for what a newer release wrote in a way that this one does not understand."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


_decoder: msgspec.json.Decoder[Kept] = msgspec.json.Decoder(Kept)
