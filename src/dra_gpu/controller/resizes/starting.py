"""How work on a resize begins: the object is marked, and the device of its claim is found. Pure."""

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from dra_gpu.api.claim_resize import FINALIZER, Phase
from dra_gpu.controller.resizes import objects
from dra_gpu.controller.resizes.steps import Mark, Rest, Step, Unmark, Unreserve, Write
from dra_gpu.controller.resizes.target import Refusal, Wanted, find, own, wanted
from dra_gpu.controller.resizes.view import View
from dra_gpu.inventory.amounts import Amounts

UNHEARD_SECONDS: Final = 5.0  # of claims nobody tells us: they are read again
ZEROS: Final = Amounts().wire(zeros=True)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator chose.

    Attributes:
        drivers: names of our drivers.
        beyond: claims may have more than they were allocated.
    """

    drivers: frozenset[str]
    beyond: bool = False


def mark(view: View) -> Step | None:
    """Put finalizer and owner on the object, where they are not there; None where they are."""
    meta = view.resize.metadata
    claim_uid = view.claim.metadata.uid if view.claim is not None else None
    if view.target is not None and view.target.claim_uid != claim_uid:
        claim_uid = None
    owned = claim_uid is None or any(one.uid == claim_uid for one in meta.owner_references)
    if FINALIZER in meta.finalizers:
        return None if owned or view.deleting else Mark(claim_uid)
    return Rest() if view.deleting else Mark(None if owned else claim_uid)


def begin(view: View, rules: Rules) -> Step:
    """Find the device, or say why there is none."""
    left = [one for one in view.growths if objects.is_held(one, view.name)]
    if view.deleting and not view.has_entry and (view.claim is None or not left):
        return Unreserve(left[0]) if left else _unmark(view)
    claim = view.claim
    name = f"{view.resize.metadata.namespace}/{view.name}"
    if claim is None:
        return _said(view, Phase.PENDING, "ClaimNotFound", f"there is no ResourceClaim {name}: it is waited for")
    if claim.status.allocation is None:
        message = f"ResourceClaim {name} is not allocated: it is resized when a pod with it is scheduled"
        return _said(view, Phase.PENDING, "ClaimNotAllocated", message)
    spec = view.resize.spec
    found = find(claim, spec, rules.drivers)
    wants = found if isinstance(found, Refusal) else wanted(found, spec, beyond=rules.beyond)
    if isinstance(found, Refusal) or (isinstance(wants, Refusal) and not view.deleting):
        assert isinstance(wants, Refusal)
        return _said(view, Phase.REFUSED, wants.reason, wants.message)
    marked = mark(view)
    if marked is not None:
        return marked
    if not isinstance(wants, Wanted):
        wants = Wanted(own(found.result))
    allocated = own(found.result)
    status = replace(
        view.resize.status,
        observed_generation=view.resize.metadata.generation,
        phase=Phase.PENDING,
        reason="WaitingForNode",
        message=f"node {found.target.pool} has not answered yet",
        node_name=found.target.pool,
        target=found.target,
        allocated=allocated.wire(zeros=True),
        growths=[],
        permit=view.resize.status.permit + 1,
        permitted=allocated.wire(zeros=True),
        wanted=(allocated if view.deleting else wants.amounts).wire(zeros=True),
        time_slice=None if view.deleting else wants.time_slice,
        mps=None if view.deleting else wants.mps,
        reserved_round=0,
        free=ZEROS,
    )
    return Write(status, anew=True)


def _said(view: View, phase: Phase, reason: str, message: str) -> Step:
    nothing_begun = not view.has_entry and not any(objects.is_held(one, view.name) for one in view.growths)
    if nothing_begun and FINALIZER in view.resize.metadata.finalizers:
        return _unmark(view)  # who removes the driver finds no object that nobody lets go
    status = replace(
        view.resize.status,
        observed_generation=view.resize.metadata.generation,
        phase=phase,
        reason=reason,
        message=message,
    )
    again = None if phase is Phase.REFUSED else UNHEARD_SECONDS
    return Write(status) if status != view.resize.status else Rest(again)


def _unmark(view: View) -> Step:
    return Unmark() if FINALIZER in view.resize.metadata.finalizers else Rest()
