"""The search: claims of one pod, on one node, first fit with backtracking, in kube-scheduler's order.

Claims, requests and devices of a request are taken in order; within a request devices only move forward; the first
complete solution is the answer. What the scheduler does in odd cases is kept: admin access counts against counters and
capacity, and a device looked at by an admin request is in use for the other requests of the pod.
Source: allocator_incubating.go (k8s.io/dynamic-resource-allocation v0.37) with the features on by default in v1.37.
"""

import enum
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dra_gpu.api.quantity import InvalidQuantityError
from dra_gpu.api.resource_claim_v1 import AllocationMode, DeviceClass, ResourceClaim
from dra_gpu.api.resource_v1 import AllocationResult, ResourceSlice
from dra_gpu.scheduler import allocation, capacity, constraints, pools, reasons, requests, taints
from dra_gpu.scheduler.allocation import Choice
from dra_gpu.scheduler.amount import Amount
from dra_gpu.scheduler.capacity import CapacityShortage, UnusableCapacityError
from dra_gpu.scheduler.cel import Evaluator, SelectorError
from dra_gpu.scheduler.constraints import Constraint
from dra_gpu.scheduler.counters import CounterLedger
from dra_gpu.scheduler.held import Held
from dra_gpu.scheduler.model import Candidate, DeviceId, Node, PoolId
from dra_gpu.scheduler.pools import Pool, PoolState
from dra_gpu.scheduler.reasons import Reason, RequestReport
from dra_gpu.scheduler.requests import Alternative, InvalidClaimError, RequestState

MAX_RESULTS = 32
"""Devices in the allocation of a claim. Source: k8s.io/api/resource/v1 `AllocationResultsMaxSize`."""

MAX_STEPS = 200_000
"""Steps after which a search is given up. One more device than there are, of n alike, takes 2^n steps."""


class Failure(enum.Enum):
    """Why there is no allocation."""

    NO_FIT = "NoFit"  # not on this node, not now
    INVALID_POOL = "InvalidPool"  # nothing fits, and a pool that contradicts itself was left out
    INVALID_INPUT = "InvalidInput"  # the scheduler gives up on the pod until a claim, class or slice is corrected
    TOO_MANY_STEPS = "TooManySteps"  # the scheduler would run into its time limit here


@dataclass(frozen=True, slots=True)
class Allocated:
    """Every claim got its devices.

    Attributes:
        allocations: one for each claim, in their order.
        steps: how much work it was.
    """

    allocations: tuple[AllocationResult, ...]
    steps: int = 0


@dataclass(frozen=True, slots=True)
class NotAllocated:
    """The claims did not get their devices.

    Attributes:
        failure: the kind of reason.
        message: one sentence.
        requests: for each request that was tried, why devices were refused.
        pools: pools that gave nothing, with what is wrong with them.
        steps: how much work it was.
    """

    failure: Failure
    message: str
    requests: tuple[RequestReport, ...] = ()
    pools: Mapping[PoolId, str] = field(default_factory=dict)
    steps: int = 0


def allocate(
    claims: Sequence[ResourceClaim],
    *,
    classes: Sequence[DeviceClass],
    slices: Sequence[ResourceSlice],
    held: Held,
    node: Node,
    new_share_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    max_steps: int = MAX_STEPS,
) -> Allocated | NotAllocated:
    """Decide about the claims of one pod together, on one node.

    Args:
        claims: claims without an allocation.
        classes: every DeviceClass.
        slices: every ResourceSlice, those of other nodes and older generations included.
        held: what other claims have.
        node: where the pod would run.
        new_share_id: makes the unique id of a share.
        max_steps: steps after which the search is given up.
    """
    found = pools.gather(slices, node)
    search = _Search(claims, found, held, node, new_share_id, max_steps)
    unusable = {pool.id: pool.problem for pool in found if pool.state is not PoolState.USABLE}
    try:
        search.prepare({device_class.metadata.name: device_class for device_class in classes})
        fits = search.run()
    except InvalidClaimError as error:
        return NotAllocated(Failure.INVALID_INPUT, str(error), search.report(), unusable, search.steps)
    except (_GivenUpError, RecursionError):
        message = f"no solution within {max_steps} steps: ask for fewer devices, or name them more exactly"
        return NotAllocated(Failure.TOO_MANY_STEPS, message, search.report(), unusable, search.steps)
    if fits:
        return Allocated(search.allocations(), search.steps)
    if any(pool.state is PoolState.INVALID for pool in found):
        message = "invalid resource pools were encountered"
        return NotAllocated(Failure.INVALID_POOL, message, search.report(), unusable, search.steps)
    return NotAllocated(Failure.NO_FIT, "cannot allocate all claims", search.report(), unusable, search.steps)


class _Verdict(enum.Enum):
    """How a branch of the search ended."""

    FITS = "fits"
    FAILS = "fails"
    TOO_MANY_DEVICES = "too many"  # over the limit of a claim's results: other devices for the same request cannot help


class _GivenUpError(Exception):
    """The search took more steps than it may."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Which device of which request is sought next.

    Attributes:
        claim: index of the claim.
        request: index of its request.
        sub: index of the alternative that is being tried; None if none has been picked.
        device: how many devices the request has already.
        start: index of the first candidate that may come next.
    """

    claim: int
    request: int = 0
    sub: int | None = None
    device: int = 0
    start: int = 0


class _Search:
    def __init__(
        self,
        claims: Sequence[ResourceClaim],
        found: Sequence[Pool],
        held: Held,
        node: Node,
        new_share_id: Callable[[], str],
        max_steps: int,
    ) -> None:
        self.steps = 0
        self._claims, self._pools, self._held, self._node = claims, found, held, node
        self._new_share_id, self._max_steps = new_share_id, max_steps
        self._candidates = [candidate for pool in found for candidate in pool.candidates]
        self._evaluator = Evaluator()
        self._counters = CounterLedger(found, held)
        self._requests: list[list[RequestState]] = []
        self._constraints: list[list[Constraint]] = []
        self._chosen: list[list[Choice]] = [[] for _ in claims]
        # Devices taken by this search, and by how many requests; a share counts as such and takes capacity.
        self._taken: dict[DeviceId, list[int]] = {}
        self._shares: dict[DeviceId, list[dict[str, Fraction]]] = {}
        self._selectable: dict[tuple[Alternative, DeviceId], Reason | None] = {}
        self._refused: dict[tuple[int, Alternative], dict[DeviceId, Reason]] = {}

    def prepare(self, classes: Mapping[str, DeviceClass]) -> None:
        """Look at every request before any device is chosen.

        Raises:
            InvalidClaimError: a claim asks for what cannot be, whatever is free.
        """
        for claim in self._claims:
            least = 0
            states = []
            for request in claim.spec.devices.requests:
                state = requests.build(claim, request, classes)
                for alternative in state.alternatives:
                    if alternative.mode is AllocationMode.ALL:
                        self._find_everything(claim, alternative)
                states.append(state)
                fewest = min(alternative.count for alternative in state.alternatives)
                if fewest > MAX_RESULTS - least:
                    raise InvalidClaimError(
                        f"claim {requests.full_name(claim)}, request {request.name}: {least + fewest} devices exceed "
                        f"the {MAX_RESULTS} that a claim may have; spread them over several claims"
                    )
                least += fewest
            self._requests.append(states)
            try:
                self._constraints.append([constraints.build(entry) for entry in claim.spec.devices.constraints])
            except constraints.EmptyConstraintError as error:
                raise InvalidClaimError(f"claim {requests.full_name(claim)}: {error}") from error

    def run(self) -> bool:
        """Search; True if every claim got its devices.

        Raises:
            InvalidClaimError: a selector failed, or a claim needs too many devices in every way there is.
        """
        verdict = self._next(_Place(claim=0))
        if verdict is _Verdict.TOO_MANY_DEVICES:
            raise InvalidClaimError(f"a claim would need more than {MAX_RESULTS} devices: spread them over claims")
        return verdict is _Verdict.FITS

    def allocations(self) -> tuple[AllocationResult, ...]:
        """Return what was chosen."""
        return tuple(
            allocation.assemble(claim, states, chosen, self._node)
            for claim, states, chosen in zip(self._claims, self._requests, self._chosen, strict=True)
        )

    def report(self) -> tuple[RequestReport, ...]:
        """Return why devices were refused, request by request."""
        return tuple(
            RequestReport(requests.full_name(self._claims[index]), alternative.name, refused)
            for (index, alternative), refused in self._refused.items()
        )

    def _find_everything(self, claim: ResourceClaim, alternative: Alternative) -> None:
        where = f"claim {requests.full_name(claim)}, request {alternative.name}"
        for pool in self._pools:
            if pool.state is not PoolState.USABLE:
                raise InvalidClaimError(
                    f"{where}: asks for all devices, but pool {pool.id} is {pool.state.value}: {pool.problem}"
                )
            for candidate in pool.candidates:
                if self._unselectable(claim, alternative, candidate) is None:
                    short, _ = self._shortage(claim, alternative, candidate, {})
                    if short is None:
                        alternative.everything.append(candidate)
        alternative.count = len(alternative.everything)

    def _next(self, place: _Place) -> _Verdict:
        """Satisfy what `place` names and everything after it."""
        self.steps += 1
        if self.steps > self._max_steps:
            raise _GivenUpError
        if place.claim >= len(self._claims):
            return _Verdict.FITS
        states = self._requests[place.claim]
        if place.request >= len(states):
            verdict = self._next(_Place(claim=place.claim + 1))
            return _Verdict.FAILS if verdict is _Verdict.TOO_MANY_DEVICES else verdict
        state = states[place.request]
        if place.sub is None:
            return self._one_of(place, state)
        return self._device(place, state.alternatives[place.sub])

    def _device(self, place: _Place, alternative: Alternative) -> _Verdict:
        """Find the next device of a request whose alternative has been picked, and satisfy what comes after it."""
        everything = alternative.mode is AllocationMode.ALL
        if everything and not alternative.everything:
            return _Verdict.FAILS
        if place.device >= alternative.count:
            return self._next(_Place(claim=place.claim, request=place.request + 1))
        if alternative.count - place.device > MAX_RESULTS - len(self._chosen[place.claim]):
            return _Verdict.TOO_MANY_DEVICES
        if everything:
            return self._with(place, alternative, alternative.everything[place.device], place.start, must=True)
        for index in range(place.start, len(self._candidates)):
            candidate = self._candidates[index]
            if self._passes_over(place, alternative, candidate):
                continue
            verdict = self._with(place, alternative, candidate, index + 1)
            if verdict is not _Verdict.FAILS:
                return verdict
        return _Verdict.FAILS

    def _one_of(self, place: _Place, state: RequestState) -> _Verdict:
        """Try the alternatives of a request in order."""
        all_too_many = True
        for index in range(len(state.alternatives)):
            verdict = self._next(_Place(claim=place.claim, request=place.request, sub=index))
            if verdict is _Verdict.FITS:
                state.chosen = index
                return verdict
            all_too_many = all_too_many and verdict is _Verdict.TOO_MANY_DEVICES
        return _Verdict.TOO_MANY_DEVICES if all_too_many else _Verdict.FAILS

    def _passes_over(self, place: _Place, alternative: Alternative, candidate: Candidate) -> bool:
        """Tell whether a candidate is out without touching anything: in use, not selected, too small."""
        claim = self._claims[place.claim]
        reason: Reason | None
        if alternative.admin:
            reason = reasons.InUse() if place.claim in self._taken.get(candidate.id, ()) else None
        else:
            reason = self._in_use(candidate)
        if reason is None:
            reason = self._unselectable(claim, alternative, candidate)
        if reason is None:
            short, _ = self._shortage(claim, alternative, candidate, self._used(candidate.id))
            reason = reasons.TooLittleCapacity(short) if short is not None else None
        if reason is not None:
            self._refuse(place, alternative, candidate, reason)
        return reason is not None

    def _with(
        self, place: _Place, alternative: Alternative, candidate: Candidate, start: int, *, must: bool = False
    ) -> _Verdict:
        """Take a candidate, go on with the rest, and put it back if that leads nowhere."""
        undo: list[Callable[[], object]] = []
        reason = self._take(place, alternative, candidate, undo)
        verdict = _Verdict.FAILS
        if reason is None:
            verdict = self._next(_Place(place.claim, place.request, place.sub, place.device + 1, start))
            if verdict is _Verdict.FITS:
                return verdict
        else:
            self._refuse(place, alternative, candidate, reason)
        for step in reversed(undo):
            step()
        if must and isinstance(reason, reasons.ConstraintUnmet):
            raise InvalidClaimError(
                f"claim {requests.full_name(self._claims[place.claim])}, request {alternative.name}: cannot add device "
                f"{candidate.id} because a claim constraint would not be satisfied"
            )
        return verdict

    def _take(
        self, place: _Place, alternative: Alternative, candidate: Candidate, undo: list[Callable[[], object]]
    ) -> Reason | None:
        """Charge a candidate to a request; return why not, leaving in `undo` what was done so far."""
        taken = self._taken.get(candidate.id, ())
        if alternative.admin and not candidate.shareable and place.claim in taken:
            return reasons.InUse()
        in_use = None if alternative.admin else self._in_use(candidate)
        if in_use is not None:
            return in_use
        # A device with shares has been charged to its counters by the first of them.
        if candidate.device.consumes_counters and not (candidate.shareable and self._shared(candidate.id)):
            short = self._counters.reserve(candidate)
            if short is not None:
                return reasons.TooFewCounters(short)
            undo.append(lambda: self._counters.release(candidate))
        taint = taints.preventing(candidate.device, alternative.tolerations)
        if taint is not None:
            return reasons.Tainted(taint.key, taint.value, taint.effect)
        for index, constraint in enumerate(self._constraints[place.claim]):
            if constraint.concerns(alternative.name, alternative.parent):
                if not constraint.join(candidate):
                    return reasons.ConstraintUnmet(index, constraint.attribute)
                undo.append(constraint.leave)
        claim, used = self._claims[place.claim], self._used(candidate.id)
        too_small, consumed = self._shortage(claim, alternative, candidate, used)
        if too_small is not None:
            return reasons.TooLittleCapacity(too_small)
        self._record(place, alternative, candidate, consumed, undo)
        return None

    def _record(
        self,
        place: _Place,
        alternative: Alternative,
        candidate: Candidate,
        consumed: dict[str, Amount],
        undo: list[Callable[[], object]],
    ) -> None:
        chosen = self._chosen[place.claim]
        if candidate.shareable:
            shares = self._shares.setdefault(candidate.id, [])
            shares.append({name: amount.value for name, amount in consumed.items()})
            undo.append(shares.pop)
            chosen.append(Choice(alternative, candidate, self._new_share_id(), consumed))
        else:
            taken = self._taken.setdefault(candidate.id, [])
            taken.append(place.claim)
            undo.append(taken.pop)
            chosen.append(Choice(alternative, candidate, None, {}))
        undo.append(chosen.pop)

    def _in_use(self, candidate: Candidate) -> Reason | None:
        if candidate.id in self._held.whole:
            return reasons.InUse(tuple(self._held.holders.get(candidate.id, ())))
        return reasons.InUse() if self._taken.get(candidate.id) else None

    def _shared(self, device: DeviceId) -> bool:
        return device in self._held.consumed or bool(self._shares.get(device))

    def _used(self, device: DeviceId) -> Mapping[str, Fraction]:
        """Return what shares of a device consume, those of this search included."""
        used = dict(self._held.consumed.get(device, {}))
        for share in self._shares.get(device, ()):
            for name, value in share.items():
                used[name] = used.get(name, Fraction(0)) + value
        return used

    def _shortage(
        self, claim: ResourceClaim, alternative: Alternative, candidate: Candidate, used: Mapping[str, Fraction]
    ) -> tuple[CapacityShortage | None, dict[str, Amount]]:
        try:
            return capacity.shortage(alternative.capacity, candidate.device, used)
        except (InvalidQuantityError, UnusableCapacityError) as error:
            where = f"claim {requests.full_name(claim)}, request {alternative.name}"
            raise InvalidClaimError(f"{where}: capacity of device {candidate.id}: {error}") from error

    def _unselectable(self, claim: ResourceClaim, alternative: Alternative, candidate: Candidate) -> Reason | None:
        """Return which selector excludes a candidate, None if none does; independent of what is in use."""
        key = (alternative, candidate.id)
        if key not in self._selectable:
            self._selectable[key] = self._select(claim, alternative, candidate)
        return self._selectable[key]

    def _select(self, claim: ResourceClaim, alternative: Alternative, candidate: Candidate) -> Reason | None:
        device_class = alternative.device_class
        name = device_class.metadata.name
        of_class = [(selector.cel.expression if selector.cel else "", name) for selector in device_class.spec.selectors]
        own = [(expression, "") for expression in alternative.selectors]
        for index, (expression, source) in enumerate((*of_class, *own)):
            try:
                if not self._evaluator.matches(expression, candidate):
                    return reasons.NotSelected(expression, source)
            except SelectorError as error:
                where = f"class {source}: selector #{index}" if source else ""
                where = where or f"claim {requests.full_name(claim)}: selector #{index - len(of_class)}"
                raise InvalidClaimError(f"{where} on device {candidate.id}: {error}") from error
        if candidate.published.spec.per_device_node_selection and not pools.device_reaches(
            candidate.device, self._node
        ):
            return reasons.NotOnNode()
        return None

    def _refuse(self, place: _Place, alternative: Alternative, candidate: Candidate, reason: Reason) -> None:
        """Remember the first reason for each request and device: later ones depend on what the search tried."""
        self._refused.setdefault((place.claim, alternative), {}).setdefault(candidate.id, reason)
