"""How much of a device's capacities a request consumes, and whether that is left.

A capacity that is not requested consumes its policy's default, without one all of it; a request below the range's
minimum is raised to it, one between steps or valid values is rounded up. Keys must be spelled as published.
Source: consumable_capacity.go (k8s.io/dynamic-resource-allocation v0.37), without DRAFractionalCapacityRange: steps are
whole units.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from dra_gpu.api.resource_v1 import CapacityRange, CapacityRequestPolicy, Device, DeviceCapacity
from dra_gpu.scheduler.amount import MAX_INT64, Amount


class UnusableCapacityError(ValueError):
    """A request or policy that the scheduler gives up on for the whole pod: beyond 64 bits, or negative."""


@dataclass(frozen=True, slots=True)
class CapacityShortage:
    """Why a device's capacity does not satisfy a request.

    Attributes:
        capacity: its name, as requested.
        wanted: what the request would consume; None if the device has no such capacity.
        free: what is left of it, by its published value; None where the policy excludes the amount anyway.
    """

    capacity: str
    wanted: Amount | None = None
    free: Amount | None = None


def consumption(requests: Mapping[str, str], device: Device) -> dict[str, Amount]:
    """Return what a share of the device would consume, for each of its capacities.

    Raises:
        UnusableCapacityError: an amount cannot be used by any scheduler.
        dra_gpu.api.quantity.InvalidQuantityError: a text is no quantity.
    """
    consumed = {}
    for name, capacity in device.capacity.items():
        amount = _consumed(name, requests.get(name), capacity)
        if amount.value < 0:
            raise UnusableCapacityError(f"capacity {name!r}: {amount} is negative")
        consumed[name] = amount
    return consumed


def shortage(
    requests: Mapping[str, str], device: Device, used: Mapping[str, Fraction]
) -> tuple[CapacityShortage | None, dict[str, Amount]]:
    """Tell what keeps a request from fitting into a device, and what it would consume.

    Args:
        requests: amounts by capacity.
        device: the device.
        used: what its shares consume already, those being allocated included.

    Raises:
        UnusableCapacityError: an amount cannot be used by any scheduler.
        dra_gpu.api.quantity.InvalidQuantityError: a text is no quantity.
    """
    unknown = next((name for name in requests if name not in device.capacity), None)
    if unknown is not None:
        return CapacityShortage(unknown), {}
    consumed = consumption(requests, device)
    for name, amount in consumed.items():
        capacity = device.capacity[name]
        if _violates(amount, capacity.request_policy):
            return CapacityShortage(name, amount), consumed
        value = Amount.parse(capacity.value)
        free = value.value - used.get(name, Fraction(0))
        if amount.value > free:
            return CapacityShortage(name, amount, Amount(free, value.notation)), consumed
    return None, consumed


def _consumed(name: str, requested: str | None, capacity: DeviceCapacity) -> Amount:
    policy = capacity.request_policy
    if requested is None:
        return Amount.parse(policy.default if policy is not None and policy.default is not None else capacity.value)
    amount = Amount.parse(requested)
    if policy is None:
        return amount
    if policy.valid_range is not None:
        return _in_range(name, amount, policy.valid_range)
    values = (Amount.parse(text) for text in policy.valid_values or ())
    return next((value for value in values if amount.value <= value.value), amount)


def _in_range(name: str, amount: Amount, allowed: CapacityRange) -> Amount:
    least = Amount.parse(allowed.min)
    if amount.value < least.value:
        return least
    if allowed.step is None:
        return amount
    step = Amount.parse(allowed.step)
    steps = -((least.whole() - amount.whole()) // step.whole())
    rounded = least.whole() + steps * step.whole()
    if amount.value > MAX_INT64 or rounded > MAX_INT64:
        raise UnusableCapacityError(
            f"capacity {name!r}: request {amount} rounded up to steps of {step} exceeds 64 bits"
        )
    return Amount(Fraction(rounded), step.notation)


def _violates(amount: Amount, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and amount.value == Amount.parse(policy.default).value):
        return False
    if policy.valid_range is not None:
        return _out_of_range(amount, policy.valid_range)
    values = policy.valid_values or []
    return bool(values) and all(amount.value != Amount.parse(text).value for text in values)


def _out_of_range(amount: Amount, allowed: CapacityRange) -> bool:
    if allowed.max is not None and amount.value > Amount.parse(allowed.max).value:
        return True
    if allowed.step is None:
        return False
    return (amount.whole() - Amount.parse(allowed.min).whole()) % Amount.parse(allowed.step).whole() != 0
