"""Why a device was not given to a request: one small type a reason, each with a sentence for a reader."""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_gpu.scheduler.capacity import CapacityShortage
from dra_gpu.scheduler.counters import Shortage
from dra_gpu.scheduler.model import DeviceId


@dataclass(frozen=True, slots=True)
class InUse:
    """Claims hold it whole; none are named when it is taken by the very claims that are being decided."""

    holders: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"in use by {', '.join(self.holders)}" if self.holders else "in use by another request of this pod"


@dataclass(frozen=True, slots=True)
class NotSelected:
    """A selector of the class (by its name) or of the request (no name) says no."""

    expression: str
    device_class: str = ""

    def __str__(self) -> str:
        source = f"class {self.device_class}" if self.device_class else "the request"
        return f"not selected by {source}: {self.expression}"


@dataclass(frozen=True, slots=True)
class NotOnNode:
    """The device, in a slice that leaves this to its devices, does not reach the node."""

    def __str__(self) -> str:
        return "does not reach this node"


@dataclass(frozen=True, slots=True)
class TooLittleCapacity:
    """A capacity is missing, used up, or excludes the amount."""

    shortage: CapacityShortage

    def __str__(self) -> str:
        name, wanted, free = self.shortage.capacity, self.shortage.wanted, self.shortage.free
        if wanted is None:
            return f"publishes no capacity {name!r}"
        if free is None:
            return f"capacity {name!r} is not given out in amounts of {wanted}"
        return f"capacity {name!r}: {wanted} wanted, {free} free"


@dataclass(frozen=True, slots=True)
class TooFewCounters:
    """The hardware behind the device is used by other devices."""

    shortage: Shortage

    def __str__(self) -> str:
        short = self.shortage
        return f"counter {short.counter} of {short.counter_set}: {short.wanted} wanted, {short.available} free"


@dataclass(frozen=True, slots=True)
class Tainted:
    """A taint that the request does not tolerate."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"taint {self.key}{'=' + self.value if self.value else ''}:{self.effect} is not tolerated"


@dataclass(frozen=True, slots=True)
class ConstraintUnmet:
    """A constraint of the claim, by its index, excludes it beside the devices chosen before."""

    index: int
    attribute: str

    def __str__(self) -> str:
        return f"constraint {self.index} on attribute {self.attribute} excludes it"


Reason = InUse | NotSelected | NotOnNode | TooLittleCapacity | TooFewCounters | Tainted | ConstraintUnmet


@dataclass(frozen=True, slots=True)
class RequestReport:
    """Why a request did not get all its devices.

    Attributes:
        claim: `namespace/name`.
        request: `main` or `main/sub`.
        devices: for each device that was looked at and refused, the first reason, in the order they were tried.
    """

    claim: str
    request: str
    devices: Mapping[DeviceId, Reason]
