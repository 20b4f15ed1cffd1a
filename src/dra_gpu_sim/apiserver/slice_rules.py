"""What the API server refuses in a ResourceSlice, and what a server with a feature gate off drops from it.

Source: K8s v1.37 pkg/apis/resource/validation/validation.go, pkg/apis/resource/v1/defaults.go and
pkg/registry/resource/resourceslice/strategy.go. Written from the rules and not from the driver's own validator, so
that one can catch the other.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from dra_gpu_sim.apiserver.failures import ApiFailureError

MAX_DEVICES = 128
MAX_DEVICES_ADVANCED = 64
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
MAX_CONSUMPTIONS = 2
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_ATTRIBUTE_VALUES = 48
MAX_TAINTS = 16
MAX_VALUE_LENGTH = 64

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_SCALARS = ("int", "bool", "string", "version")
_LISTS = ("ints", "bools", "strings", "versions")
_EFFECTS = ("None", "NoSchedule", "NoExecute")

DROPPABLE: dict[str, Callable[[dict[str, Any]], None]] = {}
"""By feature gate: what disappears from a slice's spec, silently, when the gate is off."""


def _dropper(gate: str) -> Callable[[Callable[[dict[str, Any]], None]], Callable[[dict[str, Any]], None]]:
    def register(function: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        DROPPABLE[gate] = function
        return function

    return register


@_dropper("DRAPartitionableDevices")
def _drop_counters(spec: dict[str, Any]) -> None:
    spec.pop("sharedCounters", None)
    for device in spec.get("devices") or []:
        device.pop("consumesCounters", None)


@_dropper("DRADeviceTaints")
def _drop_taints(spec: dict[str, Any]) -> None:
    for device in spec.get("devices") or []:
        device.pop("taints", None)


@_dropper("DRAConsumableCapacity")
def _drop_sharing(spec: dict[str, Any]) -> None:
    for device in spec.get("devices") or []:
        device.pop("allowMultipleAllocations", None)
        for capacity in (device.get("capacity") or {}).values():
            capacity.pop("requestPolicy", None)


@_dropper("DRADeviceBindingConditions")
def _drop_binding(spec: dict[str, Any]) -> None:
    for device in spec.get("devices") or []:
        for field in ("bindsToNode", "bindingConditions", "bindingFailureConditions"):
            device.pop(field, None)


def default_taint_times(spec: Mapping[str, Any], now: str) -> None:
    """Give every taint without ``timeAdded`` the present, as the server does on every write."""
    for device in spec.get("devices") or []:
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", now)


def check_slice(obj: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> None:
    """Raise 422 with every broken rule of a slice, in Kubernetes' wording (``field: reason``)."""
    spec = obj.get("spec") or {}
    problems = [*_spec_problems(spec)]
    if old is not None:
        problems.extend(
            f"spec.{'.'.join(path)}: Invalid value: field is immutable"
            for path in (("driver",), ("nodeName",), ("pool", "name"))
            if _at(spec, path) != _at(old.get("spec") or {}, path)
        )
    if problems:
        name = obj.get("metadata", {}).get("name", "")
        raise ApiFailureError(422, f'ResourceSlice.resource.k8s.io "{name}" is invalid: ' + ", ".join(problems))


def _spec_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    if not _SUBDOMAIN.fullmatch(spec.get("driver") or "") or len(spec["driver"]) > 63:  # noqa: PLR2004 - the limit itself
        yield f"spec.driver: Invalid value: {spec.get('driver')!r}"
    pool = spec.get("pool") or {}
    if not all(_SUBDOMAIN.fullmatch(part) for part in (pool.get("name") or "").split("/")) or len(pool["name"]) > 253:  # noqa: PLR2004
        yield f"spec.pool.name: Invalid value: {pool.get('name')!r}"
    if pool.get("resourceSliceCount", 0) < 1:
        yield "spec.pool.resourceSliceCount: Invalid value: must be greater than zero"
    if pool.get("generation", 0) < 0:
        yield "spec.pool.generation: Invalid value: must be greater than or equal to zero"
    selections = [key for key in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection") if spec.get(key)]
    if len(selections) != 1:
        yield "spec: Invalid value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`"
    yield from _content_problems(spec.get("devices") or [], spec.get("sharedCounters") or [])


def _content_problems(devices: list[Mapping[str, Any]], sets: list[Mapping[str, Any]]) -> Iterator[str]:
    if devices and sets:
        yield "spec: Invalid value: only one of `devices` or `sharedCounters` is allowed"
    yield from _counter_set_problems(sets)
    advanced = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    limit = MAX_DEVICES_ADVANCED if advanced else MAX_DEVICES
    if len(devices) > limit:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {limit} items"
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        name = device.get("name") or ""
        if not _LABEL.fullmatch(name):
            yield f"{path}.name: Invalid value: {name!r}"
        if name in seen:
            yield f"{path}.name: Duplicate value: {name!r}"
        seen.add(name)
        yield from _device_problems(path, device)


def _counter_set_problems(sets: list[Mapping[str, Any]]) -> Iterator[str]:
    if len(sets) > MAX_COUNTER_SETS:
        yield f"spec.sharedCounters: Too many: {len(sets)}: must have at most {MAX_COUNTER_SETS} items"
    names = [entry.get("name") or "" for entry in sets]
    for index, entry in enumerate(sets):
        path = f"spec.sharedCounters[{index}]"
        if not _LABEL.fullmatch(names[index]):
            yield f"{path}.name: Invalid value: {names[index]!r}"
        if names[index] in names[:index]:
            yield f"{path}.name: Duplicate value: {names[index]!r}"
        yield from _counter_problems(f"{path}.counters", entry.get("counters") or {})


def _counter_problems(path: str, counters: Mapping[str, Any]) -> Iterator[str]:
    if not 0 < len(counters) <= MAX_COUNTERS:
        yield f"{path}: {len(counters)} counters: must have 1 to {MAX_COUNTERS}"
    for name, counter in counters.items():
        if not _LABEL.fullmatch(name):
            yield f"{path}: Invalid value: {name!r}"
        if not _is_quantity(counter.get("value")):
            yield f"{path}[{name}].value: Invalid value: {counter.get('value')!r}"


def _device_problems(path: str, device: Mapping[str, Any]) -> Iterator[str]:
    attributes, capacities = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacities) > MAX_ATTRIBUTES_AND_CAPACITIES:
        yield f"{path}: Too many: {len(attributes) + len(capacities)} attributes and capacities, at most 32"
    values = sum(len(attribute.get(field) or []) for attribute in attributes.values() for field in _LISTS)
    values += sum(1 for attribute in attributes.values() for field in _SCALARS if attribute.get(field) is not None)
    if values > MAX_ATTRIBUTE_VALUES:
        yield f"{path}.attributes: Too many: {values} values, at most {MAX_ATTRIBUTE_VALUES}"
    for name, attribute in attributes.items():
        yield from _name_problems(f"{path}.attributes", name)
        yield from _attribute_problems(f"{path}.attributes[{name}]", attribute)
    shareable = bool(device.get("allowMultipleAllocations"))
    for name, capacity in capacities.items():
        yield from _name_problems(f"{path}.capacity", name)
        yield from _capacity_problems(f"{path}.capacity[{name}]", capacity, shareable=shareable)
    yield from _consumption_and_taint_problems(path, device)


def _consumption_and_taint_problems(path: str, device: Mapping[str, Any]) -> Iterator[str]:
    consumptions = device.get("consumesCounters") or []
    if len(consumptions) > MAX_CONSUMPTIONS:
        yield f"{path}.consumesCounters: Too many: {len(consumptions)}: must have at most {MAX_CONSUMPTIONS} items"
    for index, consumption in enumerate(consumptions):
        yield from _counter_problems(f"{path}.consumesCounters[{index}].counters", consumption.get("counters") or {})
    taints = device.get("taints") or []
    if len(taints) > MAX_TAINTS:
        yield f"{path}.taints: Too many: {len(taints)}: must have at most {MAX_TAINTS} items"
    for index, taint in enumerate(taints):
        if taint.get("effect") not in _EFFECTS:
            yield f"{path}.taints[{index}].effect: Unsupported value: {taint.get('effect')!r}"
        if not taint.get("key"):
            yield f"{path}.taints[{index}].key: Required value"


def _name_problems(path: str, name: str) -> Iterator[str]:
    domain, slash, identifier = name.rpartition("/")
    if not _IDENTIFIER.fullmatch(identifier):
        yield f"{path}: Invalid value: {name!r}: a valid C identifier of at most 32 characters must be used"
    if slash and (not _SUBDOMAIN.fullmatch(domain) or len(domain) > 63):  # noqa: PLR2004 - the limit itself
        yield f"{path}: Invalid value: {name!r}: the domain must be a DNS subdomain of at most 63 characters"


def _attribute_problems(path: str, attribute: Mapping[str, Any]) -> Iterator[str]:
    given = [field for field in (*_SCALARS, *_LISTS) if attribute.get(field) is not None]
    if not given:
        yield f"{path}: Required value: must specify one of: `int`, `bool`, `string`, `version`"
    if len(given) > 1:
        yield f"{path}: Invalid value: exactly one value must be specified, got {', '.join(given)}"
    texts = [attribute[field] for field in ("string", "version") if field in given]
    texts += [text for field in ("strings", "versions") if field in given for text in attribute[field]]
    for text in texts:
        if len(text.encode()) > MAX_VALUE_LENGTH:
            yield f"{path}: Too long: may not be more than {MAX_VALUE_LENGTH} bytes"
    for version in [attribute["version"]] if "version" in given else attribute.get("versions") or []:
        if not _SEMVER.fullmatch(version):
            yield f"{path}.version: Invalid value: {version!r}: must be a string compatible with semver.org spec 2.0.0"


def _capacity_problems(path: str, capacity: Mapping[str, Any], *, shareable: bool) -> Iterator[str]:
    value = str(capacity.get("value") or "")
    if not _is_quantity(value):
        yield f"{path}.value: Invalid value: {value!r}"
        return
    policy = capacity.get("requestPolicy")
    if policy is None:
        return
    if not shareable:
        yield f"{path}.requestPolicy: Forbidden: only allowed on devices with allowMultipleAllocations"
        return
    bounds = policy.get("validRange")
    if policy.get("default") is None and (bounds or policy.get("validValues")):
        yield f"{path}.requestPolicy.default: Required value"
        return
    if bounds:
        yield from _range_problems(f"{path}.requestPolicy", value, policy["default"], bounds)


def _range_problems(path: str, value: str, default: str, bounds: Mapping[str, str]) -> Iterator[str]:
    if bounds.get("min") is None:
        yield f"{path}.validRange.min: Required value"
        return
    low, wanted, total = amount(bounds["min"]), amount(default), amount(value)
    step = amount(bounds["step"]) if bounds.get("step") else None
    high = amount(bounds["max"]) if bounds.get("max") else None
    if low > total or (high is not None and high > total) or (step is not None and low + step > total):
        yield f"{path}.validRange: Invalid value: min, max and min + step must not exceed the capacity's value {value}"
    if wanted < low or (high is not None and wanted > high):
        yield f"{path}.default: Invalid value: {default} is outside of the range"
    if step is not None and (wanted - low) % step:
        yield f"{path}.default: Invalid value: {default} is not min plus a multiple of step"


_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMALS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def amount(text: str) -> Fraction:
    """The exact value of a quantity."""
    match = re.fullmatch(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([KMGTPE]i|[numkMGTPE])?(?:[eE]([+-]?\d+))?", text)
    if match is None:
        raise ApiFailureError(400, f"quantities must match the regular expression, got {text!r}")
    number, unit, exponent = match.groups()
    scale = Fraction(_UNITS[unit]) if unit in _UNITS else Fraction(10) ** _DECIMALS.get(unit or "", 0)
    return Fraction(number) * scale * Fraction(10) ** int(exponent or 0)


def _is_quantity(text: object) -> bool:
    return isinstance(text, str) and _QUANTITY.fullmatch(text) is not None


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        obj = obj.get(part) if isinstance(obj, Mapping) else None
    return obj
