"""When two ResourceSlices say the same, and what a server silently left out of one. Pure.

Quantities are compared by amount (`80Gi` is `85899345920`), taint times within a second (the server keeps whole
seconds; an absent time means "any"), the order of devices counts because the scheduler takes the first that fits.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from dra_gpu.api import quantity
from dra_gpu.api.resource_v1 import (
    CapacityRange,
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourceSliceSpec,
)
from dra_gpu.inventory.slices import SliceContent

V = TypeVar("V")

GATE_OF_FIELD: Mapping[str, str] = {
    "sharedCounters": "DRAPartitionableDevices",
    "consumesCounters": "DRAPartitionableDevices",
    "taints": "DRADeviceTaints",
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
}
"""Which feature gate of the API server decides about a field. Source: K8s v1.37
pkg/registry/resource/resourceslice/strategy.go."""

UNSAFE_FIELDS = frozenset({"sharedCounters", "consumesCounters"})
"""Without these the views of one GPU are independent of each other, and two pods would get the same GPU."""


def content_of(spec: ResourceSliceSpec) -> SliceContent:
    """Return what a slice carries, without pool and node."""
    return SliceContent(tuple(spec.devices), tuple(spec.shared_counters))


def same_content(left: SliceContent, right: SliceContent) -> bool:
    """Tell whether two slices say the same to the scheduler."""
    return (
        len(left.devices) == len(right.devices)
        and all(same_device(*pair) for pair in zip(left.devices, right.devices, strict=True))
        and _same_counter_sets(left.counter_sets, right.counter_sets)
    )


def same_accounting(left: SliceContent, right: SliceContent) -> bool:
    """Tell whether two slices hold the same devices and charge the same counters, in whatever order.

    Taints, attributes and capacities may differ: they can change in place, one slice after the other, without a
    moment in which the scheduler could give the same hardware away twice.
    """
    mine, theirs = ({device.name: device for device in content.devices} for content in (left, right))
    return (
        mine.keys() == theirs.keys()
        and all(_same_consumption(mine[name].consumes_counters, theirs[name].consumes_counters) for name in mine)
        and _same_counter_sets(left.counter_sets, right.counter_sets)
    )


def same_device(left: Device, right: Device) -> bool:
    """Tell whether two devices say the same."""
    return (
        left.name == right.name
        and left.attributes == right.attributes
        and bool(left.allow_multiple_allocations) == bool(right.allow_multiple_allocations)
        and left.capacity.keys() == right.capacity.keys()
        and all(_same_capacity(left.capacity[name], right.capacity[name]) for name in left.capacity)
        and _same_consumption(left.consumes_counters, right.consumes_counters)
        and len(left.taints) == len(right.taints)
        and all(_same_taint(*pair) for pair in zip(left.taints, right.taints, strict=True))
    )


def keep_taint_times(content: SliceContent, published: Mapping[str, Device]) -> SliceContent:
    """Give taints without a time the one under which they are published already, found by device name.

    The server sets an absent time to now on every write, which would start each pod's tolerationSeconds anew.
    """
    return SliceContent(
        tuple(_keep_times(device, published.get(device.name)) for device in content.devices), content.counter_sets
    )


def dropped_fields(sent: SliceContent, stored: SliceContent) -> frozenset[str]:
    """Return the fields that were sent and are not stored; `other` for a difference that has no known gate."""
    dropped: set[str] = set()
    if sent.counter_sets and not _same_counter_sets(sent.counter_sets, stored.counter_sets):
        dropped.add("sharedCounters")
    kept = {device.name: device for device in stored.devices}
    for device in sent.devices:
        other = kept.get(device.name)
        if other is None:
            dropped.add("other")
            continue
        if not _same_consumption(device.consumes_counters, other.consumes_counters):
            dropped.add("consumesCounters")
        if len(device.taints) > len(other.taints):
            dropped.add("taints")
        if device.allow_multiple_allocations and not other.allow_multiple_allocations:
            dropped.add("allowMultipleAllocations")
        if any(
            capacity.request_policy is not None
            and name in other.capacity
            and other.capacity[name].request_policy is None
            for name, capacity in device.capacity.items()
        ):
            dropped.add("requestPolicy")
    if not dropped and not same_content(sent, stored):
        dropped.add("other")
    return frozenset(dropped)


def _keep_times(device: Device, published: Device | None) -> Device:
    if published is None or all(taint.time_added is not None for taint in device.taints):
        return device
    times = {(taint.key, taint.value, taint.effect): taint.time_added for taint in published.taints}
    taints = [
        taint
        if taint.time_added is not None
        else DeviceTaint(taint.key, taint.effect, taint.value, times.get((taint.key, taint.value, taint.effect)))
        for taint in device.taints
    ]
    return Device(
        device.name,
        attributes=device.attributes,
        capacity=device.capacity,
        consumes_counters=device.consumes_counters,
        taints=taints,
        allow_multiple_allocations=device.allow_multiple_allocations,
    )


def _same_amount(left: str | None, right: str | None) -> bool:
    if left is None or right is None:
        return left is right
    try:
        return quantity.equal(left, right)
    except quantity.InvalidQuantityError:
        return False  # different texts, one of them nonsense: not the same


def _same_counters(left: Mapping[str, Counter], right: Mapping[str, Counter]) -> bool:
    return left.keys() == right.keys() and all(_same_amount(left[name].value, right[name].value) for name in left)


def _same_counter_sets(left: Sequence[CounterSet], right: Sequence[CounterSet]) -> bool:
    mine, theirs = ({entry.name: entry for entry in sets} for sets in (left, right))
    return mine.keys() == theirs.keys() and all(
        _same_counters(mine[name].counters, theirs[name].counters) for name in mine
    )


def _same_consumption(left: Sequence[DeviceCounterConsumption], right: Sequence[DeviceCounterConsumption]) -> bool:
    mine, theirs = ({entry.counter_set: entry for entry in entries} for entries in (left, right))
    return mine.keys() == theirs.keys() and all(
        _same_counters(mine[name].counters, theirs[name].counters) for name in mine
    )


def _same_capacity(left: DeviceCapacity, right: DeviceCapacity) -> bool:
    return _same_amount(left.value, right.value) and _same_policy(left.request_policy, right.request_policy)


def _same_policy(left: CapacityRequestPolicy | None, right: CapacityRequestPolicy | None) -> bool:
    if left is None or right is None:
        return left is right
    return (
        _same_amount(left.default, right.default)
        and len(left.valid_values or ()) == len(right.valid_values or ())
        and all(_same_amount(*pair) for pair in zip(left.valid_values or (), right.valid_values or (), strict=True))
        and _same_range(left.valid_range, right.valid_range)
    )


def _same_range(left: CapacityRange | None, right: CapacityRange | None) -> bool:
    if left is None or right is None:
        return left is right
    return (
        _same_amount(left.min, right.min) and _same_amount(left.max, right.max) and _same_amount(left.step, right.step)
    )


def _same_taint(left: DeviceTaint, right: DeviceTaint) -> bool:
    if (left.key, left.value, left.effect) != (right.key, right.value, right.effect):
        return False
    if left.time_added is None or right.time_added is None or left.time_added == right.time_added:
        return True
    try:
        seconds = (_time(left.time_added) - _time(right.time_added)).total_seconds()
    except (ValueError, TypeError):
        return False
    return abs(seconds) <= 1.0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
