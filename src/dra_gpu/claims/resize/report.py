"""What the node says of a resize in the object's status. Pure."""

from dra_gpu.api.claim_resize import AppliesTo, ClaimResize, HeldProcess, NodeStatus
from dra_gpu.claims.record import Record
from dra_gpu.claims.resize import decide
from dra_gpu.claims.resize.decide import Facts, Presence
from dra_gpu.claims.resize.state import Resize
from dra_gpu.claims.resize.wish import Wish
from dra_gpu.claims.shares import HeldShare
from dra_gpu.inventory import capacities
from dra_gpu.inventory.sharing import Mechanism

_LONGEST_MESSAGE = 1024


def report(resize: Resize, wish: Wish, facts: Facts, seen: ClaimResize, record: Record | None) -> NodeStatus:
    """Return the node's part of the status.

    Args:
        resize: what the journal has.
        wish: what the object asks.
        facts: what was seen.
        seen: the object as it was read.
        record: the claim; None where it is not prepared.
    """
    before = seen.status.node
    given_back = facts.at_server if facts.at_server is not None else resize.given_back
    unknown = facts.at_server is None and before.claim_uid == resize.uid
    reason, message, processes = _why(facts)
    return NodeStatus(
        observed_generation=seen.status.observed_generation,
        claim_uid=resize.uid,
        permit=resize.permit,
        permitted=resize.permitted.wire(zeros=True),
        in_force=resize.limit.wire(zeros=True),
        applies_to=_applies_to(resize, record),
        waiting_for=list(processes),
        give_back=decide.surplus(resize, wish, facts.presence).wire(zeros=True),
        given_back=before.given_back if unknown else given_back.wire(zeros=True),
        round=resize.round,
        released_round=resize.released_round,
        prepared=facts.presence is not Presence.GONE,
        reason=reason,
        message=message[:_LONGEST_MESSAGE],
    )


def _why(facts: Facts) -> tuple[str, str, tuple[HeldProcess, ...]]:
    if facts.presence is Presence.UNCLEAR:
        return "NotPrepared", "the claim is being prepared, or its record was set aside: see the pod's events", ()
    if facts.refused is not None:
        return "ShareNotFree", facts.refusal, ()
    if facts.enforced is not None and facts.enforced.reason:
        return facts.enforced.reason, facts.enforced.message, facts.enforced.waiting_for
    return "", "", ()


def _applies_to(resize: Resize, record: Record | None) -> dict[str, AppliesTo]:
    share = None if record is None else _share(record, resize)
    if share is None:
        return {}
    mechanisms = {capacities.COMPUTE_PERCENT: share.compute, capacities.MEMORY: share.memory}
    late = resize.mps is not None and resize.applied != resize.goal
    return {
        name: AppliesTo.NEW_PROCESSES
        if mechanism is Mechanism.COOPERATIVE or (late and mechanism is Mechanism.NAMESPACE)
        else AppliesTo.RUNNING_PROCESSES
        for name, mechanism in mechanisms.items()
    }


def _share(record: Record, resize: Resize) -> HeldShare | None:
    key = (resize.device, resize.share_id)
    return next((one for one in record.planned if (one.device, one.share_id) == key), None)
