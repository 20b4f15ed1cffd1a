"""How far a resize is, in a word and for people. Pure."""

from dataclasses import dataclass

from dra_gpu.api.claim_resize import AppliesTo, NodeStatus, Phase
from dra_gpu.controller.resizes.target import Refusal
from dra_gpu.controller.resizes.view import View
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts

_NOTHING = Amounts()


@dataclass(frozen=True, slots=True)
class Situation:
    """What was found out about a resize beside what the server has of it.

    Attributes:
        refusal: why the spec cannot be.
        over: the claim does not have the device any more.
        whole: the device is had whole.
        wants: T.
        permitted: P.
        need: what is missing.
        request: what the scheduler is asked for: no less than the least that a request may ask for.
        unschedulable: what it says of that.
        full: there are as many growths as there may be.
    """

    refusal: Refusal | None
    over: bool
    whole: bool
    wants: Amounts
    permitted: Amounts
    need: Amounts
    request: Amounts
    unschedulable: str | None
    full: bool


@dataclass(frozen=True, slots=True)
class Said:
    """A phase, why in a word, and the same for people."""

    phase: Phase
    reason: str = ""
    message: str = ""


def say(view: View, situation: Situation) -> Said:
    """Return how far a resize is."""
    if situation.refusal is not None:
        return Said(Phase.REFUSED, situation.refusal.reason, situation.refusal.message)
    return _of_end(view, situation) or _of_node(view, situation) or _of_amounts(view, situation)


def _of_end(view: View, situation: Situation) -> Said | None:
    name = view.resize.status.node_name
    if view.lost:
        return Said(Phase.ENDED, "NodeGone", f"node {name} does not exist any more: what was moved there is let go")
    if situation.over:
        return Said(
            Phase.ENDED, "ClaimEnded", "the claim does not have the device any more: what it gave is taken back"
        )
    node = view.node
    if node is not None and view.is_unused and (view.ledger or node.round != node.released_round):
        return Said(Phase.ENDED, "NotUsed", "no pod uses the claim any more: what it gave is taken back")
    return None


def _of_node(view: View, situation: Situation) -> Said | None:
    name, node = view.resize.status.node_name, view.node
    if node is None:
        return Said(
            Phase.PENDING,
            "WaitingForNode",
            f"node {name} has not answered yet: if it does not, see whether the driver runs there",
        )
    if not node.prepared:
        return Said(Phase.PENDING, "NotPrepared", f"the claim is not prepared on node {name}: its pod has not started")
    if situation.whole:
        if node.observed_generation < view.resize.metadata.generation:
            return Said(Phase.PENDING, "WaitingForNode", f"node {name} has not answered yet")
        if node.reason:
            return Said(Phase.WAITING_FOR_WORKLOAD, node.reason, node.message)
        return Said(Phase.APPLIED, "", "the settings are in force")
    return None


def _of_amounts(view: View, situation: Situation) -> Said:
    node, in_force = view.node, view.in_force
    assert node is not None
    assert in_force is not None
    wants = situation.wants
    if node.waiting_for:
        return Said(Phase.WAITING_FOR_WORKLOAD, node.reason or "ProcessesHoldMore", node.message or _holders(node))
    if not wants.within(in_force):
        return _of_growth(view, situation)
    if not in_force.within(wants):
        if node.reason:
            return Said(Phase.WAITING_FOR_WORKLOAD, node.reason, node.message)
        more = (in_force - wants).at_least(_NOTHING).text()
        return Said(Phase.GIVING_BACK, "LimitsFall", f"the limit falls by {more}")
    over = (situation.permitted - in_force).at_least(_NOTHING)
    if not over.within(view.given_back):
        left = (over - view.given_back).at_least(_NOTHING).text()
        if view.claim is not None and view.claim.metadata.deletion_timestamp is not None and not view.has_entry:
            return Said(Phase.ENDED, "ClaimDeleted", f"the claim is being deleted: {left} is free when its pods end")
        return Said(Phase.GIVING_BACK, "Offering", f"{left} is being offered to others")
    return Said(Phase.APPLIED, "", _in_force(node))


def _of_growth(view: View, situation: Situation) -> Said:
    need = situation.need.text()
    target = view.target
    assert target is not None
    where = f"{target.device} of node {target.pool}"
    if situation.full:
        return Said(
            Phase.INSUFFICIENT_CAPACITY,
            "TooManyGrowths",
            f"it has grown {len(view.ledger)} times: delete the ClaimResize, wait until it is gone, and make it anew",
        )
    if view.obstacle:
        return Said(Phase.INSUFFICIENT_CAPACITY, "NotAdmitted", f"{need} more cannot be asked for: {view.obstacle}")
    if situation.unschedulable is not None and view.free is not None and situation.request.within(view.free):
        return Said(
            Phase.INSUFFICIENT_CAPACITY,
            "NotScheduled",
            f"{need} more is wanted and free on {where}, but the scheduler does not give it (a taint, or the node's "
            f"pods and processors?): {situation.unschedulable}",
        )
    if situation.unschedulable is not None:
        free = f"{view.free.text()} is free on" if view.free is not None else "there is too little on"
        return Said(
            Phase.INSUFFICIENT_CAPACITY,
            "NoRoom",
            f"{need} more is wanted and {free} {where}: it is taken as soon as it is there",
        )
    if view.node is not None and view.node.reason:
        return Said(Phase.TAKING_ON, view.node.reason, view.node.message)
    if situation.need:
        return Said(Phase.TAKING_ON, "Scheduling", f"the scheduler is asked for {need} more on {where}")
    return Said(Phase.TAKING_ON, "LimitsRise", f"the limit is being raised on {where}")


def _holders(node: NodeStatus) -> str:
    named = ", ".join(f"{one.command or 'a process'} (pid {one.pid})" for one in node.waiting_for)
    return f"{named} could still take more than the new limit"


def _in_force(node: NodeStatus) -> str:
    text = f"in force: {amounts.parse(node.in_force).text()}"
    later = [name for name, applies in sorted(node.applies_to.items()) if applies is AppliesTo.NEW_PROCESSES]
    return f"{text}; {' and '.join(later)} for processes started from now on" if later else text
