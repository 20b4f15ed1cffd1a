"""What the API server would refuse, or a scheduler would silently ignore, found before a slice is written.

One bad attribute costs itself, one bad device costs itself; the rest of the pool is published. Each finding is a
`Problem` for logs, events and a counter. Only a pool that could not work as a whole is not written
(`InvalidPoolError`). Source of the rules: Kubernetes v1.37, pkg/apis/resource/validation/validation.go, and for what
admission does not catch (unknown counter sets, duplicate names across slices)
k8s.io/dynamic-resource-allocation v0.37, structured/internal pools.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dra_gpu.api import quantity, resource_v1
from dra_gpu.api.resource_v1 import DeviceAttribute
from dra_gpu.inventory import versions
from dra_gpu.inventory.slices import MAX_COUNTER_SETS, MAX_DEVICES, SliceContent

MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_COUNTERS = 32
MAX_CONSUMED_SETS = 2
MAX_TAINTS = 16
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
_MAX_DOMAIN = 63
_MAX_POOL_NAME = 253


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was left out of a pool: where it was, and why."""

    where: str
    reason: str


class InvalidPoolError(ValueError):
    """A pool cannot be published at all. The message names the field, the reason and the remedy."""


def check(driver: str, pool: str, contents: Sequence[SliceContent]) -> tuple[tuple[SliceContent, ...], list[Problem]]:
    """Return the contents without what would be refused, and what was left out.

    Raises:
        InvalidPoolError: the names of driver or pool are illegal, or a slice is over a limit.
    """
    if len(driver) > _MAX_DOMAIN or _DNS_SUBDOMAIN.fullmatch(driver) is None:
        raise InvalidPoolError(
            f"driver name {driver[:80]!r} must be a lower-case DNS subdomain of at most 63 characters"
        )
    if len(pool) > _MAX_POOL_NAME or any(_DNS_SUBDOMAIN.fullmatch(part) is None for part in pool.split("/")):
        raise InvalidPoolError(
            f"pool name {pool[:80]!r} must be lower-case DNS subdomains separated by /, at most 253 characters"
        )
    problems: list[Problem] = []
    sets: dict[str, resource_v1.CounterSet] = {}
    checked_sets = [_counter_sets(content, sets, problems) for content in contents]
    names: set[str] = set()
    checked: list[SliceContent] = []
    for number, (content, counter_sets) in enumerate(zip(contents, checked_sets, strict=True)):
        if content.devices and content.counter_sets:
            raise InvalidPoolError(
                f"slice {number} has both devices and counter sets: put counter sets in one of their own"
            )
        if len(content.devices) > MAX_DEVICES or len(content.counter_sets) > MAX_COUNTER_SETS:
            raise InvalidPoolError(
                f"slice {number} is over {MAX_DEVICES} devices or {MAX_COUNTER_SETS} counter sets: split it"
            )
        devices = tuple(
            kept for device in content.devices if (kept := _device(device, sets, names, problems)) is not None
        )
        checked.append(SliceContent(devices, counter_sets))
    return tuple(checked), problems


def _counter_sets(
    content: SliceContent, seen: dict[str, resource_v1.CounterSet], problems: list[Problem]
) -> tuple[resource_v1.CounterSet, ...]:
    kept = []
    for counter_set in content.counter_sets:
        reason = _counter_set_fault(counter_set, seen)
        if reason is not None:
            problems.append(Problem(f"counter set {counter_set.name}", reason))
            continue
        seen[counter_set.name] = counter_set
        kept.append(counter_set)
    return tuple(kept)


def _counter_set_fault(counter_set: resource_v1.CounterSet, seen: dict[str, resource_v1.CounterSet]) -> str | None:
    if _DNS_LABEL.fullmatch(counter_set.name) is None:
        return "its name is not a DNS label"
    if counter_set.name in seen:
        return "its name is taken by another counter set of the pool"
    if not 0 < len(counter_set.counters) <= MAX_COUNTERS:
        return f"it has {len(counter_set.counters)} counters; 1 to {MAX_COUNTERS} are allowed"
    for name, counter in counter_set.counters.items():
        if _DNS_LABEL.fullmatch(name) is None:
            return f"counter {name!r} is not a DNS label"
        if not _is_amount(counter.value):
            return f"counter {name!r} has the value {counter.value!r}, which is not a quantity of at least 0"
    return None


def _device(
    device: resource_v1.Device, sets: dict[str, resource_v1.CounterSet], names: set[str], problems: list[Problem]
) -> resource_v1.Device | None:
    reason = _device_fault(device, sets, names)
    if reason is not None:
        problems.append(Problem(f"device {device.name}", reason))
        return None
    names.add(device.name)
    attributes: dict[str, DeviceAttribute] = {}
    for name, attribute in device.attributes.items():
        fault = _name_fault(name) or _value_fault(attribute)
        if fault is None and len(attributes) + len(device.capacity) >= MAX_ATTRIBUTES_AND_CAPACITIES:
            fault = f"the device has more than {MAX_ATTRIBUTES_AND_CAPACITIES} attributes and capacities"
        if fault is None:
            attributes[name] = attribute
        else:
            problems.append(Problem(f"device {device.name}, attribute {name}", fault))
    if attributes == device.attributes:
        return device
    return resource_v1.Device(
        name=device.name,
        attributes=attributes,
        capacity=device.capacity,
        consumes_counters=device.consumes_counters,
        taints=device.taints,
        allow_multiple_allocations=device.allow_multiple_allocations,
    )


def _device_fault(device: resource_v1.Device, sets: dict[str, resource_v1.CounterSet], names: set[str]) -> str | None:
    if _DNS_LABEL.fullmatch(device.name) is None:
        return "its name is not a DNS label"
    if device.name in names:
        return "its name is taken by another device of the pool"
    if len(device.taints) > MAX_TAINTS:
        return f"it has {len(device.taints)} taints; at most {MAX_TAINTS} are allowed"
    if len(device.consumes_counters) > MAX_CONSUMED_SETS:
        return f"it draws on {len(device.consumes_counters)} counter sets; at most {MAX_CONSUMED_SETS} are allowed"
    for name, capacity in device.capacity.items():
        if _name_fault(name) or not _is_amount(capacity.value):
            return f"capacity {name!r} = {capacity.value!r} is not a C identifier with a quantity"
    for consumption in device.consumes_counters:
        fault = _consumption_fault(consumption, sets)
        if fault is not None:
            return fault
    return None


def _consumption_fault(
    consumption: resource_v1.DeviceCounterConsumption, sets: dict[str, resource_v1.CounterSet]
) -> str | None:
    counter_set = sets.get(consumption.counter_set)
    if counter_set is None:
        return f"it draws on the counter set {consumption.counter_set!r}, which the pool does not have"
    for name, counter in consumption.counters.items():
        if name not in counter_set.counters:
            return f"it draws on the counter {name!r}, which {consumption.counter_set} does not have"
        if not _is_amount(counter.value):
            return f"it draws {counter.value!r} of {name!r}, which is not a quantity of at least 0"
        if quantity.parse(counter.value) > quantity.parse(counter_set.counters[name].value):
            return f"it draws {counter.value} of {name!r}, more than {consumption.counter_set} has"
    return None


def _name_fault(name: str) -> str | None:
    domain, slash, identifier = name.rpartition("/")
    if slash and (len(domain) > _MAX_DOMAIN or _DNS_SUBDOMAIN.fullmatch(domain) is None):
        return "the domain in front of / is not a DNS subdomain of at most 63 characters"
    if _C_IDENTIFIER.fullmatch(identifier) is None:
        return "the name is not a C identifier of at most 32 characters"
    return None


def _value_fault(attribute: DeviceAttribute) -> str | None:
    values = (attribute.int_, attribute.bool_, attribute.string, attribute.version, attribute.ints, attribute.strings)
    if sum(value is not None for value in values) != 1:
        return "it must have exactly one value"
    for text in (attribute.string, attribute.version, *(attribute.strings or ())):
        if text is not None and len(text.encode()) > versions.MAX_TEXT_BYTES:
            return f"its text is longer than {versions.MAX_TEXT_BYTES} bytes"
    if attribute.version is not None and versions.semver(attribute.version) != attribute.version:
        return f"{attribute.version!r} is not a version by semver 2.0.0"
    return None


def _is_amount(text: str) -> bool:
    try:
        return quantity.parse(text) >= 0
    except quantity.InvalidQuantityError:
        return False
