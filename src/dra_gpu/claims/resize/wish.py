"""What a ClaimResize asks of the node, read and checked. Pure."""

from dataclasses import dataclass

from dra_gpu.api.claim_resize import ClaimResize, NodeStatus
from dra_gpu.api.quantity import InvalidQuantityError
from dra_gpu.claims.resize.state import Resize, ShareKey
from dra_gpu.claims.shares import MEBI
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import NOTHING, Amounts


@dataclass(frozen=True, slots=True)
class Told:
    """What the node has said, as the server has it.

    Attributes:
        in_force: L; None where it has said nothing of this claim.
        give_back: what it would publish.
        round: its round.
        released_round: the last round of which nothing is left.
        permit: number of the P that it keeps to.
        permitted: that P.
    """

    in_force: Amounts | None = None
    give_back: Amounts = NOTHING
    round: int = 0
    released_round: int = 0
    permit: int = 0
    permitted: Amounts = NOTHING


@dataclass(frozen=True, slots=True)
class Wish:
    """What the controller and the user want of a share.

    Attributes:
        key: which share.
        namespace: of the object and its claim.
        name: of the object and its claim.
        object: UID of the object.
        allocated: A.
        permitted: P.
        permit: its number.
        wanted: T.
        reserved_round: the node's round for which the claim cannot be freed.
        told: what the node has said before.
    """

    key: ShareKey
    namespace: str
    name: str
    object: str
    allocated: Amounts
    permitted: Amounts
    permit: int
    wanted: Amounts
    reserved_round: int = 0
    told: Told = Told()


def of(resize: ClaimResize, driver: str, pool: str) -> Wish | None:
    """Return what an object asks of this node; None where it asks nothing of a share here (yet).

    Amounts that are no amounts ask nothing: the controller writes them, and writes them again.
    """
    status, target = resize.status, resize.status.target
    if target is None or (target.driver, target.pool) != (driver, pool) or target.share_id is None:
        return None
    try:
        allocated, permitted = amounts.parse(status.allocated), amounts.parse(status.permitted)
        wanted = amounts.parse(status.wanted, allocated)
        told = _told(status.node) if status.node.claim_uid == target.claim_uid else Told()
    except InvalidQuantityError:
        return None
    least = Amounts(compute_percent=1, memory=MEBI)
    if not status.permitted or not all(least.within(one) for one in (allocated, permitted, wanted)):
        return None
    meta = resize.metadata
    return Wish(
        ShareKey(target.claim_uid, target.device, target.share_id),
        meta.namespace,
        meta.name,
        meta.uid,
        allocated,
        permitted,
        status.permit,
        wanted,
        status.reserved_round,
        told,
    )


def begun(wish: Wish, held: Amounts | None = None) -> Resize:
    """Return what the journal keeps from the first sight of an object on.

    Where the node has told something of this claim before, the journal was lost, and what was told is the best that is
    known: it was told before anything was published for it, so that nothing of it is better than it was.

    Args:
        wish: what the object asks, and what was told before.
        held: what the claim was prepared with meanwhile, as if nobody had resized it; None where it was not.
    """
    told = wish.told
    goal = wish.allocated if told.in_force is None else told.in_force
    published = told.give_back if told.round == wish.reserved_round != told.released_round else NOTHING
    limit = goal if held is None or published else goal.at_least(held)
    return Resize(
        uid=wish.key.uid,
        device=wish.key.device,
        share_id=wish.key.share_id,
        namespace=wish.namespace,
        name=wish.name,
        object=wish.object,
        allocated=wish.allocated,
        limit=limit,
        goal=limit,
        applied=limit if told.in_force is None else Amounts(),
        given_back=published,
        offered=published,
        round=told.round,
        released_round=told.released_round,
        permit=told.permit,
        permitted=told.permitted,
    )


def _told(node: NodeStatus) -> Told:
    return Told(
        amounts.parse(node.in_force),
        amounts.parse(node.give_back),
        node.round,
        node.released_round,
        node.permit,
        amounts.parse(node.permitted),
    )
