"""What comes next for a resize: one step at a time, each safe to be the last one. Pure.

The object's status is the ledger, and each write of it names the version that was read, so that of two who decide at
once one is refused. Nothing is counted into `permitted` but claims that the server says are allocated and stay so; none
of them is let go before the node keeps to a `permitted` without it. So always: L + B ≤ A + the growths allocated.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from dra_gpu.api.claim_resize import ClaimResizeStatus, Growth, Phase
from dra_gpu.controller.resizes import objects, phases, starting
from dra_gpu.controller.resizes.objects import Claim
from dra_gpu.controller.resizes.starting import UNHEARD_SECONDS, ZEROS, Rules
from dra_gpu.controller.resizes.steps import (
    Ask,
    Carry,
    DeleteGrowth,
    DeletePod,
    DeleteResize,
    Refresh,
    Reserve,
    Rest,
    Step,
    Unmark,
    Unreserve,
    Write,
)
from dra_gpu.controller.resizes.target import Found, Refusal, Wanted, find, is_share, least, own, wanted
from dra_gpu.controller.resizes.view import View
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts

MOST_GROWTHS: Final = 16
_NOTHING: Final = Amounts()
OBSTACLE_SECONDS: Final = 30.0
_UNSETTLED_SECONDS: Final = 60.0
_NAME_LENGTH: Final = 52


def decide(view: View, rules: Rules) -> Step:
    """Return the next step for a resize."""
    if view.target is None:
        return starting.begin(view, rules)
    return starting.mark(view) or _Work.of(view, rules).step()


@dataclass(frozen=True, slots=True)
class _Work:
    """A resize whose device is known.

    Attributes:
        view: what is known.
        found: the claim's device; None where it is not the claim's any more.
        allocated: A.
        wants: T; the former one where the spec is refused.
        refusal: why it is.
        kept: growths that count.
        leaving: growths that are let go.
        unsure: a growth of the ledger of which the server has to be asked.
    """

    view: View
    found: Found | None
    allocated: Amounts
    wants: Wanted
    refusal: Refusal | None
    kept: tuple[Growth, ...]
    leaving: tuple[Growth, ...]
    unsure: Growth | None

    @classmethod
    def of(cls, view: View, rules: Rules) -> "_Work":
        """Look at a resize whose target is known."""
        target, status = view.target, view.resize.status
        assert target is not None
        result = objects.result_of(view.claim, target) if view.is_current and view.claim is not None else None
        found = Found(target, result) if result is not None else None
        allocated = own(result) if result is not None else amounts.parse(status.allocated)
        wants = _wants(view, found, rules) if found is not None and not view.deleting else Wanted(allocated)
        refusal = wants if isinstance(wants, Refusal) else None
        if isinstance(wants, Refusal):
            wants = Wanted(amounts.parse(status.wanted, allocated), status.time_slice, status.mps)
        held = [one for one in view.ledger if _holds(view, one.uid)]
        unsure = next((one for one in view.ledger if one not in held and one.uid not in view.fresh), None)
        kept = tuple(one for one in held if not one.releasing)
        leaving = tuple(one for one in held if one.releasing)
        return cls(view, found, allocated, wants, refusal, kept, leaving, unsure)

    def step(self) -> Step:
        """Return the next step."""
        if self.unsure is not None:
            return Refresh(self.unsure.claim, self.unsure.uid)
        entry = self._entry()
        if entry is not None:
            return entry
        kept, leaving = list(self.kept), list(self.leaving)
        for one in self._uncounted():
            counts = self._is_growing and bool(self._need)
            if not counts and not self.view.is_unused and not self._is_growing:
                continue  # the node is asked first
            if one.metadata.uid not in self.view.fresh:
                return Refresh(one.metadata.name, one.metadata.uid)
            target = self.view.target
            assert target is not None
            amount = objects.growth_of(one, target)
            growth = Growth(one.metadata.name, one.metadata.uid, (amount or _NOTHING).wire())
            if counts and amount is not None and len(kept) == len(self.kept):
                kept.append(growth)
            elif not counts or amount is None:
                leaving.append(replace(growth, releasing=True))
        if len(kept) == len(self.kept):
            gone = self._let_go()
            kept = [one for one in kept if one not in gone]
            leaving += [replace(one, releasing=True) for one in gone]
        status = self._status(kept, leaving)
        if status != self.view.resize.status:
            return Write(status)
        return next(self._actions(), None) or self._rest(status)

    # What is asked of the node and the claim

    @property
    def _owes(self) -> bool:
        """The node has, or wants to have, something of this claim published."""
        node = self.view.node
        return node is not None and node.round != node.released_round and not self.view.lost

    def _entry(self) -> Step | None:
        """Enter the resize where something must stay allocated for it."""
        view, claim = self.view, self.view.claim
        if self._owes and self.found is not None and claim is not None and not view.has_entry and not _is_ending(claim):
            return Reserve(claim)
        carried = self._carried()
        if carried is not None and self._is_growing and self._at_target(carried):
            return Reserve(carried)
        return None

    @property
    def _is_growing(self) -> bool:
        """The node's word and ours are about the same, so that what is missing is known."""
        view = self.view
        node = view.node
        return self.found is not None and not view.lost and view.is_agreed and node is not None and node.prepared

    @property
    def _permitted(self) -> Amounts:
        return sum((amounts.parse(one.capacity) for one in self.kept), self.allocated)

    @property
    def _need(self) -> Amounts:
        """What is missing of what is wanted."""
        return (self.wants.amounts - (self._permitted - self.view.given_back)).at_least(_NOTHING)

    @property
    def _request(self) -> Amounts:
        """What a growth has to ask for."""
        assert self.found is not None
        return self._need.at_least(least(self.found.result))

    # Growths

    def _uncounted(self) -> Iterator[Claim]:
        """Yield growths that stay allocated for this resize and are in no ledger."""
        known = {one.uid for one in self.view.ledger}
        for one in self.view.growths:
            if one.metadata.uid not in known and objects.is_held(one, self.view.name):
                yield one

    def _in_flight(self) -> Iterator[Claim]:
        """Yield growths that are on their way through the scheduler."""
        known = {one.uid for one in self.view.ledger}
        for one in sorted(self.view.growths, key=lambda each: each.metadata.name):
            held = objects.is_held(one, self.view.name)
            if one.metadata.uid not in known and not held and not _is_ending(one):
                yield one

    def _carried(self) -> Claim | None:
        """Return the growth that is waited for."""
        if not self._is_growing:
            return None
        if not self._need:
            return None
        fitting = (one for one in self._in_flight() if objects.requested(one).within(self._request))
        return next((one for one in fitting if not objects.results(one) or self._at_target(one)), None)

    def _at_target(self, growth: Claim) -> bool:
        return self.view.target is not None and objects.growth_of(growth, self.view.target) is not None

    def _let_go(self) -> list[Growth]:
        """Return the growths that nothing needs any more."""
        view = self.view
        if view.lost or (view.is_unused and view.is_agreed):
            return list(self.kept)
        in_force = view.in_force
        if not self._is_growing or in_force is None or not self.wants.amounts.within(in_force):
            return []
        left, found = view.given_back, []
        for one in self.kept:
            amount = amounts.parse(one.capacity)
            if amount.within(left):
                left -= amount
                found.append(one)
        return found

    # The status

    def _status(self, kept: list[Growth], leaving: list[Growth]) -> ClaimResizeStatus:
        view, before = self.view, self.view.resize.status
        permitted = sum((amounts.parse(one.capacity) for one in kept), self.allocated)
        changed = permitted != amounts.parse(before.permitted)
        said = phases.say(view, self._situation(permitted))
        free = view.free if said.phase is Phase.INSUFFICIENT_CAPACITY and view.free is not None else _NOTHING
        if view.node is None:
            reserved = before.reserved_round
        else:
            reserved = view.node.round if self._owes and view.has_entry else 0
        return replace(
            before,
            observed_generation=view.resize.metadata.generation,
            phase=said.phase,
            reason=said.reason,
            message=said.message,
            allocated=self.allocated.wire(zeros=True),
            growths=[*kept, *leaving],
            permit=before.permit + 1 if changed else before.permit,
            permitted=permitted.wire(zeros=True),
            wanted=self.wants.amounts.wire(zeros=True),
            time_slice=self.wants.time_slice,
            mps=self.wants.mps,
            reserved_round=reserved,
            free=free.wire(zeros=True),
        )

    def _situation(self, permitted: Amounts) -> phases.Situation:
        carried = self._carried()
        pod = self.view.pod_of(carried) if carried is not None else None
        return phases.Situation(
            refusal=self.refusal,
            over=self.found is None,
            whole=self.found is not None and not is_share(self.found.result),
            wants=self.wants.amounts,
            permitted=permitted,
            need=self._need if self._is_growing else _NOTHING,
            request=self._request if self._is_growing else _NOTHING,
            unschedulable=objects.unschedulable(pod) if pod is not None else None,
            full=len(self.view.ledger) >= MOST_GROWTHS,
        )

    # What follows once the status says it

    def _actions(self) -> Iterator[Step]:
        view = self.view
        if view.is_agreed or view.lost:
            for one in self.leaving:
                claim = view.growth(one.uid)
                if claim is not None:
                    yield Unreserve(claim)
        if view.has_entry and view.claim is not None and not self._owes and (view.node is not None or view.lost):
            yield Unreserve(view.claim)
        carried = self._carried()
        waits = self.found is not None and not view.is_unused and not self._is_growing
        for growth in self._in_flight():
            if growth is not carried and not waits:
                yield DeleteGrowth(growth)
        yield from self._pods(carried, waits=waits)
        yield from self._grow(carried)
        yield from self._end()

    def _pods(self, carried: Claim | None, *, waits: bool) -> Iterator[Step]:
        """Delete pods that have carried their growth, or have none to carry any more."""
        arrived = {one.claim for one in self.view.ledger}
        for pod in self.view.pods:
            name = pod.metadata.name
            needed = name not in arrived and (waits or (carried is not None and name == carried.metadata.name))
            if pod.metadata.deletion_timestamp is None and (not needed or objects.has_ended(pod)):
                yield DeletePod(pod)

    def _grow(self, carried: Claim | None) -> Iterator[Step]:
        view = self.view
        if not self._is_growing or not self._need or len(view.ledger) >= MOST_GROWTHS:
            return
        if view.obstacle:
            yield Rest(OBSTACLE_SECONDS)
        elif carried is None:
            yield Ask(self._growth_name(), self._request)
        elif not objects.results(carried) and view.pod_of(carried) is None:
            yield Carry(carried)

    def _growth_name(self) -> str:
        """Return the name of the next growth: the same as long as nothing has changed, so that it is asked for once."""
        resize = self.view.resize
        seed = f"{resize.metadata.uid} {resize.status.permit} {self._request}"
        ending = hashlib.sha256(seed.encode()).hexdigest()[:5]
        return f"{resize.metadata.name[:_NAME_LENGTH].rstrip('-.')}-grow-{ending}"

    def _end(self) -> Iterator[Step]:
        view = self.view
        if not self._is_clean():
            return
        if view.deleting:
            yield Unmark()
        elif self.found is None or view.lost:
            target = view.target
            assert target is not None
            if view.claim is None or view.claim.metadata.uid != target.claim_uid:
                yield DeleteResize()
            elif self.found is None:
                yield Write(
                    replace(
                        view.resize.status,
                        phase=Phase.PENDING,
                        reason="ClaimNotAllocated",
                        message="the claim is not allocated any more: it is resized when a pod with it is scheduled",
                        node_name="",
                        target=None,
                        allocated=ZEROS,
                        permitted=ZEROS,
                        wanted=ZEROS,
                        time_slice=None,
                        mps=None,
                    ),
                    anew=True,
                )

    def _is_clean(self) -> bool:
        """Tell whether nothing is left of what was moved."""
        view, node = self.view, self.view.node
        if view.ledger or view.has_entry or any(not _is_ending(one) for one in view.growths):
            return False
        if any(objects.is_held(one, view.name) for one in view.growths):
            return False
        if view.lost or (node is None and self.found is None):
            return True
        if self.found is not None and not is_share(self.found.result):
            settled = node is None or not node.reason or not node.prepared
            return settled and (node is None or node.observed_generation >= view.resize.metadata.generation)
        if node is None or not view.is_agreed or self._owes or view.given_back:
            return False
        return not node.prepared or view.in_force == self.allocated

    def _rest(self, status: ClaimResizeStatus) -> Step:
        match status.phase:
            case Phase.APPLIED if not (status.growths or self._owes):
                return Rest()
            case Phase.REFUSED:
                return Rest()
            case Phase.PENDING | Phase.ENDED:
                return Rest(UNHEARD_SECONDS)
            case Phase.INSUFFICIENT_CAPACITY:
                return Rest(OBSTACLE_SECONDS)
            case _:
                return Rest(_UNSETTLED_SECONDS)


def _wants(view: View, found: Found, rules: Rules) -> Wanted | Refusal:
    assert view.claim is not None
    named = find(view.claim, view.resize.spec, rules.drivers)
    if isinstance(named, Refusal):
        return named
    if named.target != found.target:
        return Refusal(
            "OtherDevice",
            f"spec.request means {named.target.device} now, and {found.target.device} is being resized: delete this "
            "ClaimResize, wait until it is gone, and make it anew",
        )
    return wanted(found, view.resize.spec, beyond=rules.beyond)


def _holds(view: View, uid: str) -> bool:
    claim = view.growth(uid)
    return claim is not None and objects.is_held(claim, view.name)


def _is_ending(claim: Claim) -> bool:
    return claim.metadata.deletion_timestamp is not None
