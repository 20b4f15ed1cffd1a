"""Requests of a claim in the form that the search wants: each a list of alternatives, usually one.

Source: allocator_incubating.go `requestAccessor`, `validateDeviceRequest`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_gpu.api.resource_claim_v1 import (
    AllocationMode,
    DeviceClass,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_gpu.api.resource_v1 import DeviceToleration
from dra_gpu.scheduler.model import Candidate


class InvalidClaimError(ValueError):
    """The scheduler gives up on the pod, on every node, until a claim or class is changed."""


@dataclass(slots=True, eq=False)
class Alternative:
    """A request, or one of its subrequests.

    Attributes:
        name: `main` or `main/sub`: what the allocation calls it.
        parent: `main`.
        device_class: the class it names.
        selectors: its own conditions.
        mode: a count, or all devices there are.
        count: how many devices; found out for `All`.
        admin_access: as asked for, None if not mentioned.
        tolerations: taints it puts up with.
        capacity: amounts by capacity.
        everything: for `All`, the devices.
    """

    name: str
    parent: str
    device_class: DeviceClass
    selectors: tuple[str, ...]
    mode: AllocationMode
    count: int
    admin_access: bool | None
    tolerations: list[DeviceToleration]
    capacity: Mapping[str, str]
    everything: list[Candidate] = field(default_factory=list)

    @property
    def admin(self) -> bool:
        """Whether it looks at devices without using them."""
        return self.admin_access is True


@dataclass(slots=True, eq=False)
class RequestState:
    """A request during a search: its alternatives, and which of them was chosen."""

    prioritized: bool
    alternatives: list[Alternative]
    chosen: int = 0

    @property
    def selected(self) -> Alternative:
        """The alternative that was chosen."""
        return self.alternatives[self.chosen]


def full_name(claim: ResourceClaim) -> str:
    """Return `namespace/name`."""
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def build(claim: ResourceClaim, request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> RequestState:
    """Return a request with its class looked up.

    Raises:
        InvalidClaimError: no such class, or a request of a kind that this version does not know.
    """
    if request.first_available:
        alternatives = [
            _alternative(claim, f"{request.name}/{sub.name}", request.name, sub, classes)
            for sub in request.first_available
        ]
        return RequestState(prioritized=True, alternatives=alternatives)
    exactly = request.exactly or ExactDeviceRequest()
    return RequestState(
        prioritized=False, alternatives=[_alternative(claim, request.name, request.name, exactly, classes)]
    )


def _alternative(
    claim: ResourceClaim,
    name: str,
    parent: str,
    asked: ExactDeviceRequest | DeviceSubRequest,
    classes: Mapping[str, DeviceClass],
) -> Alternative:
    where = f"claim {full_name(claim)}, request {name}"
    if any(selector.cel is None for selector in asked.selectors):
        raise InvalidClaimError(f"{where}: CEL expression empty (unsupported selector type?)")
    if not asked.device_class_name:
        raise InvalidClaimError(f"{where}: missing device class name (unsupported request type?)")
    device_class = classes.get(asked.device_class_name)
    if device_class is None:
        known = ", ".join(sorted(classes)) or "none"
        raise InvalidClaimError(
            f"{where}: device class {asked.device_class_name} does not exist; create it or name one of: {known}"
        )
    return Alternative(
        name=name,
        parent=parent,
        device_class=device_class,
        selectors=tuple(selector.cel.expression for selector in asked.selectors if selector.cel is not None),
        mode=asked.allocation_mode,
        count=asked.count,
        admin_access=asked.admin_access if isinstance(asked, ExactDeviceRequest) else None,
        tolerations=asked.tolerations,
        capacity=asked.capacity.requests if asked.capacity is not None else {},
    )
