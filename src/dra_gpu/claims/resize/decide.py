"""What comes next for a resize: one step at a time, each safe to be the last one. Pure.

Always, whatever is lost in between: L + B ≤ A + the growths that are allocated. The order of the steps makes it so:
limits fall before anything is published for them, what is published falls before P is said to be kept to, and L rises
only into what has not been published.
"""

from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from dra_gpu.api.claim_resize import HeldProcess
from dra_gpu.claims.resize.state import Resize
from dra_gpu.claims.resize.wish import Wish
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.mps.service import Limits


class Presence(Enum):
    """How a claim is there on this node."""

    GONE = auto()  # not prepared: nothing of it runs
    AWAY = auto()  # prepared before a reboot: nothing of it runs, and it comes back
    HERE = auto()  # prepared
    UNCLEAR = auto()  # half prepared, taken over without its limits, or set aside: they are not touched


@dataclass(frozen=True, slots=True)
class Enforced:
    """What came of setting the limits of a share to its goal.

    Attributes:
        held: what its processes cannot exceed any more: of each capacity the goal, or still the limit.
        complete: everything is set.
        mps: what the MPS service has accepted by now; None where it was not asked.
        waiting_for: processes that are in the way.
        reason: what is in the way, in a word; empty when nothing is.
        message: the same for people.
    """

    held: Amounts
    complete: bool
    mps: Limits | None = None
    waiting_for: tuple[HeldProcess, ...] = ()
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside journal and object.

    Attributes:
        presence: of the claim.
        at_server: what the server has of it beyond the hardware; None while that is not known.
        enforced: what came of setting its limits to the goal; None while nobody has tried.
        refused: a limit that the node's other claims leave no room for now.
        refusal: who has the rest, for people.
    """

    presence: Presence
    at_server: Amounts | None = None
    enforced: Enforced | None = None
    refused: Amounts | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """Write this to the journal and go on; what it offers is then what is published."""

    resize: Resize


@dataclass(frozen=True, slots=True)
class Raise:
    """Write this to the journal if the claims on the GPU leave room for its limit, and go on."""

    resize: Resize


@dataclass(frozen=True, slots=True)
class Enforce:
    """Set limits to the goal, and look what holds."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete it from the journal: there is nothing to remember."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing can be done now.

    Attributes:
        waiting: it is worth looking again by and by.
    """

    waiting: bool = False


Move = Keep | Raise | Enforce | Drop | Rest


def decide(resize: Resize, wish: Wish | None, facts: Facts) -> Move:
    """Return the next step.

    Args:
        resize: what the journal has.
        wish: what the object asks; None where there is none.
        facts: what was seen.
    """
    if wish is not None and wish.object == resize.object and wish.permit < resize.permit:
        return Rest(waiting=True)  # an object from before: it knows less than the journal
    return (
        _acknowledge(resize, facts)
        or _follow(resize, wish)
        or _lower(resize, wish, facts)
        or _raise(resize, wish, facts)
        or _return(resize, wish, facts)
        or _enforce(resize, facts)
        or _offer(resize, wish, facts)
        or _release(resize, wish, facts)
        or _permit(resize, wish)
        or _drop(resize, wish, facts)
        or Rest(waiting=_unsettled(resize, facts) or facts.refused is not None)
    )


def surplus(resize: Resize, wish: Wish | None, presence: Presence) -> Amounts:
    """Return what should be published beyond the hardware: B's goal.

    Never more than P - L. What is offered already stays so even when it is wanted again, since others may have it;
    what is wanted and was not offered is kept for the limit, which may have to wait for room.
    """
    if presence is Presence.GONE:
        return NOTHING
    if wish is None:
        return resize.offered
    room = (wish.permitted - resize.limit).at_least(NOTHING)
    spare = (wish.permitted - wish.wanted.at_least(resize.limit)).at_least(NOTHING)
    return room.at_most(resize.offered.at_least(spare))


def _acknowledge(resize: Resize, facts: Facts) -> Move | None:
    if facts.at_server == resize.offered != resize.given_back:
        return Keep(replace(resize, given_back=resize.offered))
    return None


def _follow(resize: Resize, wish: Wish | None) -> Move | None:
    """Take another object of the claim for the present one; numbers of the former one mean nothing in it."""
    if wish is None or wish.object == resize.object:
        return None
    return Keep(replace(resize, object=wish.object, permit=0, permitted=NOTHING))


def _lower(resize: Resize, wish: Wish | None, facts: Facts) -> Move | None:
    if wish is None or facts.presence is Presence.UNCLEAR:
        return None
    goal = resize.limit.at_most(wish.wanted).at_most(wish.permitted)
    if facts.presence in (Presence.GONE, Presence.AWAY):
        lowered = replace(resize, limit=goal, goal=goal, applied=goal)
    elif goal == resize.goal:
        return None
    else:
        lowered = _towards(resize, goal)
    return Keep(lowered) if lowered != resize else None


def _towards(resize: Resize, goal: Amounts) -> Resize:
    """Take another goal; of the former one nobody knows how much was set, so that nothing counts as set."""
    return replace(resize, goal=goal, applied=NOTHING)


def _raise(resize: Resize, wish: Wish | None, facts: Facts) -> Move | None:
    if wish is None or facts.presence is Presence.UNCLEAR:
        return None
    limit = wish.wanted.at_most(wish.permitted - resize.given_back).at_least(resize.limit)
    if limit in (resize.limit, facts.refused):
        return None
    if facts.presence is not Presence.HERE:
        return Keep(replace(resize, limit=limit, goal=limit, applied=limit))
    return Raise(replace(resize, limit=limit, goal=_raised(resize, limit)))


def _return(resize: Resize, wish: Wish | None, facts: Facts) -> Move | None:
    """Go back to what was allocated where nobody asks for less any more, and nobody else has anything of it.

    An object that is deleted comes to that before it goes; one whose finalizer was removed by force does not, and is
    made again only where a claim is kept allocated for it.
    """
    if wish is not None or facts.presence is not Presence.HERE or resize.given_back or resize.offered:
        return None
    goal = resize.goal.at_least(resize.limit.at_most(resize.allocated))
    if goal != resize.goal:
        return Keep(_towards(resize, goal))
    limit = resize.limit.at_least(resize.allocated)
    if limit in (resize.limit, facts.refused):
        return None
    return Raise(replace(resize, limit=limit, goal=_raised(resize, limit)))


def _raised(resize: Resize, limit: Amounts) -> Amounts:
    """Return the goal with what has been raised, and no more."""
    return resize.goal + (limit - resize.limit).at_least(NOTHING)


def _enforce(resize: Resize, facts: Facts) -> Move | None:
    if not _unsettled(resize, facts):
        return None
    done = facts.enforced
    if done is None:
        return Enforce()
    applied = resize.goal if done.complete else resize.applied
    found = replace(resize, limit=done.held, applied=applied, mps=done.mps or resize.mps)
    return Keep(found) if found != resize else None


def _offer(resize: Resize, wish: Wish | None, facts: Facts) -> Move | None:
    goal = surplus(resize, wish, facts.presence)
    less = resize.offered.at_most(goal)
    if less != resize.offered:
        return Keep(replace(resize, offered=less))
    if wish is None or goal == resize.offered:
        return None
    if resize.round == resize.released_round:
        return Keep(replace(resize, round=resize.round + 1))
    told = wish.told
    known = (
        wish.reserved_round == told.round == resize.round
        and told.in_force is not None
        and (told.in_force + goal).within(wish.permitted)
        and goal.within(told.give_back)
    )
    if not known:
        return None  # first the server has to know the limit, and the claim that it cannot be freed
    return Keep(replace(resize, offered=goal, given_back=resize.given_back.at_least(goal)))


def _release(resize: Resize, wish: Wish | None, facts: Facts) -> Move | None:
    nothing = not (surplus(resize, wish, facts.presence) or resize.offered or resize.given_back)
    if nothing and resize.round != resize.released_round:
        return Keep(replace(resize, released_round=resize.round))
    return None


def _permit(resize: Resize, wish: Wish | None) -> Move | None:
    if wish is None or wish.permit == resize.permit or not (resize.limit + resize.given_back).within(wish.permitted):
        return None
    return Keep(replace(resize, permit=wish.permit, permitted=wish.permitted))


def _drop(resize: Resize, wish: Wish | None, facts: Facts) -> Move | None:
    if wish is not None or resize.given_back or resize.offered:
        return None
    as_allocated = resize.settled and resize.limit == resize.allocated
    return Drop() if facts.presence is Presence.GONE or as_allocated else None


def _unsettled(resize: Resize, facts: Facts) -> bool:
    return facts.presence is Presence.HERE and not resize.settled
