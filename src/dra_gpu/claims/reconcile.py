"""What to do about a record of the journal, given what is known about the node and its claim. Pure.

Nothing is done about a claim because of its age, and nothing on a mere lack of knowledge: an API server that does not
answer, or GPUs that could not be enumerated, leave records as they are.
"""

import enum
from dataclasses import dataclass

from dra_gpu.api.resource_v1 import ResourceClaim
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.record import Record, State


class Presence(enum.Enum):
    """What the API server says about a claim."""

    ALLOCATED = "allocated"  # it exists with that UID and has devices
    IDLE = "idle"  # it exists with that UID, without devices
    GONE = "gone"  # it does not exist, or another one has its name
    UNKNOWN = "unknown"  # no answer, or not asked


class Action(enum.Enum):
    """What is done about a record."""

    KEEP = "keep"
    VERIFY = "verify"  # check every step and apply what is missing
    PREPARE = "prepare"  # do all of it again, from the claim
    ERASE = "erase"  # undo what a crash left
    UNPREPARE = "unprepare"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class Decision:
    """An action and why, for the log and the pod's events."""

    action: Action
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known about the node.

    Attributes:
        boot_id: the present boot.
        working: UUIDs of the GPUs that work; None when they could not be enumerated.
        sick: UUIDs of GPUs that are there and do not work; nothing can be verified on them.
        complete: no GPU is there without its UUID being known; only then a GPU can be called gone.
    """

    boot_id: str
    working: frozenset[str] | None
    sick: frozenset[str] = frozenset()
    complete: bool = True

    def gone(self, record: Record) -> frozenset[str]:
        """Return the GPUs of a record that are certainly no longer in this node."""
        if self.working is None or not self.complete:
            return frozenset()
        return record.gpus - self.working - self.sick

    def work(self, record: Record) -> bool:
        """Tell whether all GPUs of a record work."""
        return self.working is not None and record.gpus <= self.working


def presence(ref: ClaimRef, claim: ResourceClaim | None) -> Presence:
    """Return what a read of the claim's name says about the claim of that UID."""
    if claim is None or claim.metadata.uid != ref.uid:
        return Presence.GONE
    return Presence.IDLE if claim.status.allocation is None else Presence.ALLOCATED


def needs_claim(record: Record, facts: NodeFacts) -> bool:
    """Tell whether the decision depends on what the API server says."""
    return bool(record.ref.name) and not (record.state.in_between and record.boot_id == facts.boot_id)


def decide(record: Record, facts: NodeFacts, claim: Presence) -> Decision:
    """Return what to do about a record."""
    if record.boot_id != facts.boot_id:
        return _decide_earlier_boot(record, facts, claim)
    if claim is Presence.GONE and record.undoable:
        return Decision(Action.UNPREPARE, "its claim does not exist any more")
    if record.fault:
        return _set_aside(record, record.fault)
    if record.state.in_between:
        return Decision(Action.ERASE, f"it was left {record.state.value}")
    gone = sorted(facts.gone(record))
    if gone:
        return _set_aside(record, f"{gone[0]}, on which it was prepared, is no longer in this node")
    if not facts.work(record) or (record.adopted and claim is not Presence.ALLOCATED):
        return Decision(Action.KEEP)
    if record.adopted:
        return Decision(Action.PREPARE, "it was adopted without its configs")
    return Decision(Action.VERIFY)


def _decide_earlier_boot(record: Record, facts: NodeFacts, claim: Presence) -> Decision:
    """Decide about a record whose effects died with their boot."""
    if claim in (Presence.GONE, Presence.IDLE):
        return Decision(Action.UNPREPARE, "it is of an earlier boot, and its claim is not allocated any more")
    if facts.gone(record):
        return Decision(Action.UNPREPARE, "it is of an earlier boot, and its GPU is no longer in this node")
    if claim is Presence.ALLOCATED and record.state is not State.UNPREPARING:
        return Decision(Action.PREPARE, "it is of an earlier boot, and its claim is still allocated")
    return Decision(Action.KEEP)


def _set_aside(record: Record, reason: str) -> Decision:
    if record.state is State.QUARANTINED:
        return Decision(Action.KEEP, reason)
    return Decision(Action.QUARANTINE, reason)
