"""Which device of a claim a ClaimResize is about, and how much of it is wanted. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dra_gpu.api.claim_resize import ClaimResizeSpec, MpsSettings, Target
from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.api.quantity import InvalidQuantityError
from dra_gpu.api.resource_v1 import DeviceRequestAllocationResult
from dra_gpu.controller.resizes import objects
from dra_gpu.controller.resizes.objects import Claim
from dra_gpu.inventory import amounts, capacities
from dra_gpu.inventory.amounts import Amounts

_GIBI = 2**30
_WHOLE = 100
NAMES = (capacities.COMPUTE_PERCENT, capacities.MEMORY, capacities.CLIENTS, capacities.NVLINK_BANDWIDTH)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a ClaimResize cannot be done as it stands: one word, and a sentence with the way out."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of a device.

    Attributes:
        amounts: T, of a share; nothing of a device that is had whole.
        time_slice: of a whole GPU; None leaves it.
        mps: of a whole GPU or partition; None leaves it.
    """

    amounts: Amounts = field(default_factory=Amounts)
    time_slice: TimeSliceInterval | None = None
    mps: MpsSettings | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The device that is meant, and the claim's own allocation of it."""

    target: Target
    result: DeviceRequestAllocationResult


def find(claim: Claim, spec: ClaimResizeSpec, drivers: frozenset[str]) -> Found | Refusal:
    """Return the device of an allocated claim that a spec means."""
    name = f"{claim.metadata.namespace}/{claim.metadata.name}"
    ours = [one for one in objects.results(claim) if one.driver in drivers and not one.admin_access]
    if not ours:
        return Refusal(
            "NoDevice",
            f"claim {name} has no device that can be resized: only shares and whole GPUs of "
            f"{', '.join(sorted(drivers))} can, and not those with admin access",
        )
    meant = [one for one in ours if spec.request is None or _names(spec.request, one.request)]
    if len(meant) == 1:
        (one,) = meant
        return Found(Target(claim.metadata.uid, one.driver, one.pool, one.device, one.share_id), one)
    known = ", ".join(sorted({one.request for one in ours}))
    if not meant:
        return Refusal(
            "NoSuchRequest", f"claim {name} has no request {spec.request!r} with a device of ours: it has {known}"
        )
    if spec.request is None and len({one.request for one in ours}) > 1:
        return Refusal(
            "RequestNeeded", f"claim {name} has several devices: name in spec.request which one; it has {known}"
        )
    return Refusal(
        "SeveralDevices",
        f"request {meant[0].request!r} of claim {name} has {len(meant)} devices, which cannot be resized one by one: "
        "give each its own request",
    )


def wanted(found: Found, spec: ClaimResizeSpec, *, beyond: bool) -> Wanted | Refusal:
    """Return what a spec wants of a device.

    Args:
        found: the device.
        spec: what the user wrote.
        beyond: more than the claim was allocated is allowed.
    """
    return next(_refusals(found, spec, beyond=beyond), None) or Wanted(
        as_wanted(spec, own(found.result)), spec.time_slice, spec.mps
    )


def own(result: DeviceRequestAllocationResult) -> Amounts:
    """Return A: what a claim was allocated of a shared device; nothing of one that it has whole."""
    return amounts.parse(result.consumed_capacity) if is_share(result) else Amounts()


def is_share(result: DeviceRequestAllocationResult) -> bool:
    """Tell whether a result is a share in the capacities of a GPU or partition, not the whole of it."""
    return result.share_id is not None and capacities.COMPUTE_PERCENT in result.consumed_capacity


def least(result: DeviceRequestAllocationResult) -> Amounts:
    """Return the least that a request for a share of this device can ask for: the minimum of what it has."""
    minima = {capacities.COMPUTE_PERCENT: 1, capacities.MEMORY: _GIBI, capacities.CLIENTS: 1}
    return amounts.parse({name: amount for name, amount in minima.items() if name in result.consumed_capacity})


def as_wanted(spec: ClaimResizeSpec, allocated: Amounts) -> Amounts:
    """Return T; what the spec does not name is as allocated."""
    return amounts.parse(spec.capacity, allocated)


def _refusals(found: Found, spec: ClaimResizeSpec, *, beyond: bool) -> Iterator[Refusal]:
    result = found.result
    if not is_share(result):
        yield from _of_whole(result, spec)
        return
    if spec.time_slice is not None or spec.mps is not None:
        yield Refusal(
            "IsShare",
            f"{result.device} is had in shares: spec.timeSlice and spec.mps are for whole GPUs; write spec.capacity",
        )
    unknown = sorted(set(spec.capacity) - (set(result.consumed_capacity) & set(NAMES)))
    if unknown:
        has = ", ".join(one for one in NAMES if one in result.consumed_capacity)
        yield Refusal("NoSuchCapacity", f"{result.device} has no {', '.join(unknown)}: it has {has}")
        return
    try:
        wants, allocated = as_wanted(spec, own(result)), own(result)
    except InvalidQuantityError as error:
        yield Refusal("InvalidAmount", f"spec.capacity: {error}")
        return
    if not (least(result).within(wants) and wants.compute_percent <= _WHOLE):
        yield Refusal(
            "InvalidAmount",
            f"spec.capacity: {wants.text()} cannot be: computePercent is 1 to {_WHOLE}, memory at least 1Gi, "
            "clients at least 1",
        )
    if not beyond and not wants.within(allocated):
        more = (wants - allocated).at_least(Amounts())
        yield Refusal(
            "BeyondRequest",
            f"{more.text()} more is wanted than the claim was allocated ({allocated.text()}): ask for less, make a new "
            "claim, or have the operator allow it (chart value controller.resize.allowGrowth: Any)",
        )


def _of_whole(result: DeviceRequestAllocationResult, spec: ClaimResizeSpec) -> Iterator[Refusal]:
    if spec.capacity:
        yield Refusal(
            "IsWhole",
            f"{result.device} is had whole: there is no capacity to move. Claims of class shared.gpu.nvidia.com or "
            "shared.mig.nvidia.com have shares; of a whole GPU spec.timeSlice and spec.mps can be changed",
        )
    if spec.time_slice is not None and spec.mps is not None:
        yield Refusal("SharedTwice", "spec.timeSlice and spec.mps exclude each other: keep one")
    if spec.time_slice is not None and "-mig-" in result.device:
        yield Refusal("NoTimeSlice", f"{result.device} is a partition, which has no time slice: remove spec.timeSlice")


def _names(named: str, request: str) -> bool:
    """Tell whether a user's word, `main` or `main/sub`, means the request of a result."""
    return request == named or request.partition("/")[0] == named
