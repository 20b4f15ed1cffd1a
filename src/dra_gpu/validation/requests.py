"""What a claim asks for, one alternative at a time, and what is wrong with each."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_gpu.api import quantity, strict
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.resource_claim_v1 import AllocationMode
from dra_gpu.inventory import capacities
from dra_gpu.inventory.model import View
from dra_gpu.validation.classes import CLASSES, ClassFacts
from dra_gpu.validation.problem import Problem, warning
from dra_gpu.validation.shapes import Alternative, Ask, Exactly

_MEBI, _GIBI = 2**20, 2**30
_MAX_CLIENTS = 60
_MAX_PARTITIONS = 7  # of any GPU; MIG User Guide r580
_WHOLE_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """One way in which a request can be met.

    Attributes:
        path: where it stands.
        request: name of the request.
        name: the request's name, or `request/alternative`.
        ask: what is asked for.
        facts: what is known of the class; None for a class that this driver does not bring.
        admin: it has admin access.
    """

    path: str
    request: str
    name: str
    ask: Ask
    facts: ClassFacts | None
    admin: bool = False

    @property
    def count(self) -> int | None:
        """How many devices; None for all of a node."""
        return None if self.ask.allocation_mode is AllocationMode.ALL else self.ask.count or 1


def wanted(devices: Mapping[str, Any], path: str) -> tuple[tuple[Wanted, ...], ...]:
    """Return the alternatives of each request, as far as they can be read.

    Args:
        devices: `spec.devices` of a claim of any version.
        path: where it stands.
    """
    found = []
    for index, request in enumerate(objects(devices.get("requests"))):
        place = f"{path}.requests[{index}]"
        name = request.get("name")
        if not isinstance(name, str):
            continue
        alternatives = objects(request.get("firstAvailable"))
        if alternatives:
            ways = [
                _way(f"{place}.firstAvailable[{number}]", name, alternative, Alternative)
                for number, alternative in enumerate(alternatives)
            ]
        elif isinstance(request.get("exactly"), dict):
            ways = [_way(f"{place}.exactly", name, request["exactly"], Exactly)]
        else:  # v1beta1
            ways = [_way(place, name, {key: value for key, value in request.items() if key != "name"}, Exactly)]
        found.append(tuple(way for way in ways if way is not None))
    return tuple(found)


def without_ask(devices: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Yield requests that ask for nothing, or in two ways at once."""
    for index, request in enumerate(objects(devices.get("requests"))):
        ways = [name for name in ("exactly", "deviceClassName", "firstAvailable") if request.get(name)]
        if not ways:
            yield Problem(f"{path}.requests[{index}]", "asks for no device", "write `exactly`, or `firstAvailable`")
        elif len(ways) > 1:
            yield Problem(f"{path}.requests[{index}]", f"has {' and '.join(ways)}", "write one of them")


def objects(value: object) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a list; nothing where it is none. Places of what is no object are kept by empty ones."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []


def _way(path: str, request: str, value: Mapping[str, Any], shape: type[Exactly | Alternative]) -> Wanted | None:
    known = {name: value[name] for name in value if name in shape.__struct_encode_fields__}
    try:
        ask = strict.convert(known, shape)
    except InvalidConfigError:
        return None  # its shape's problems have been told
    name = f"{request}/{ask.name}" if isinstance(ask, Alternative) else request
    admin = isinstance(ask, Exactly) and bool(ask.admin_access)
    return Wanted(path, request, name, ask, CLASSES.get(ask.device_class_name), admin)


def check(way: Wanted) -> Iterator[Problem]:
    """Yield what is wrong with one way to meet a request."""
    if way.ask.count is not None and way.ask.count < 1:
        yield Problem(f"{way.path}.count", f"is {way.ask.count}", "write 1 or more, or leave it out")
    yield from _access(way)
    if way.facts is None:
        return
    yield from _capacity(way, way.facts)


def partitions(asked: Sequence[Sequence[Wanted]], path: str) -> Iterator[Problem]:
    """Yield whether a claim asks for more partitions than a GPU has, as the policy in deploy/policies.yaml counts them.

    Of alternatives the one with the most counts, and a request for all of a node as one.

    Args:
        asked: the alternatives of each request.
        path: where the requests stand.
    """
    most = [
        max((way for way in ways if way.facts is not None and way.facts.partition), key=_partitions, default=None)
        for ways in asked
    ]
    found = [way for way in most if way is not None]
    number = sum(_partitions(way) for way in found)
    if number > _MAX_PARTITIONS:
        yield Problem(
            f"{found[0].path}.count" if len(found) == 1 else path,
            f"{'is' if len(found) == 1 else 'ask for'} {number}, and a GPU has at most {_MAX_PARTITIONS} partitions: "
            "where they do not fit, the scheduler tries their placements one by one until its time is up (10 s)",
            f"make several claims of at most {_MAX_PARTITIONS}",
        )


def _partitions(way: Wanted) -> int:
    return 1 if way.ask.count is None else max(0, way.ask.count)


def _access(way: Wanted) -> Iterator[Problem]:
    view = None if way.facts is None else way.facts.view
    if view is View.MONITOR and not way.admin:
        alternative = isinstance(way.ask, Alternative)
        yield Problem(
            f"{way.path}.deviceClassName" if alternative else f"{way.path}.adminAccess",
            "is monitor.nvidia.com, which is for admin access, and an alternative cannot have that"
            if alternative
            else "is not set, and monitor.nvidia.com is for watching GPUs that others use",
            "write a request with `exactly` and adminAccess: true, or use class gpu.nvidia.com"
            if alternative
            else 'write adminAccess: true (the namespace needs the label resource.kubernetes.io/admin-access: "true"), '
            "or use class gpu.nvidia.com",
        )
    elif way.admin and view in (View.MIG, View.SHARED_MIG):
        yield Problem(
            f"{way.path}.adminAccess",
            "is true for a partition, which is only there while a claim uses it: there is nothing to watch",
            "use class monitor.nvidia.com, which shows the whole GPU",
        )
    elif way.admin and view not in (None, View.MONITOR):
        yield warning(
            f"{way.path}.adminAccess",
            f"is true for class {way.ask.device_class_name}, whose devices can only be had while their GPU is free: "
            "counters bind admin access, too",
            "use class monitor.nvidia.com to see GPUs that others use",
        )


def _capacity(way: Wanted, facts: ClassFacts) -> Iterator[Problem]:
    asked = (way.ask.capacity.requests if way.ask.capacity else None) or {}
    for name, text in asked.items():
        field = f"{way.path}.capacity.requests[{name[:80]!r}]"
        if name not in facts.capacities:
            yield Problem(
                field,
                f"is no capacity of class {way.ask.device_class_name}, so that no device fits",
                _way_out(name, facts),
            )
            continue
        try:
            amount = quantity.parse(text)
        except quantity.InvalidQuantityError:
            yield Problem(
                field, f"is {text[:40]!r}, which is no quantity", 'write a number with a unit, such as "10Gi"'
            )
            continue
        if amount < 0:
            yield Problem(field, f"is {text[:40]}", "write no negative amount")
        elif facts.shared:
            whole = math.ceil(amount)
            yield from _percent(field, text, whole, exact=whole == amount) if name == capacities.COMPUTE_PERCENT else ()
            yield from _memory(field, text, whole) if name == capacities.MEMORY else ()
            if name == capacities.CLIENTS and whole > _MAX_CLIENTS:
                yield Problem(field, f"is {text[:40]}", f"write at most {_MAX_CLIENTS} (48 before CUDA 13.1)")


def _way_out(name: str, facts: ClassFacts) -> str:
    short = name.rpartition("/")[2]
    if short in facts.capacities:
        return f"write {short}: it has to be spelled as the devices publish it"
    if short in CLASSES["shared.gpu.nvidia.com"].capacities and not facts.shared:
        return "remove it, or use class shared.gpu.nvidia.com to get a part of a GPU"
    known = ", ".join(facts.capacities)
    return f"remove it; the class has {known}" if known else "remove it; the class has none"


def _percent(field: str, text: str, percent: int, *, exact: bool) -> Iterator[Problem]:
    if percent > _WHOLE_PERCENT:
        yield Problem(field, f"is {text[:40]}", f"write at most {_WHOLE_PERCENT}")
    elif percent == 0:
        yield warning(field, f"is {text[:40]}, and a share has at least 1", "write what it needs")
    elif not exact:
        yield warning(field, f"is {text[:40]}, of which the scheduler makes {percent}", "write a whole percentage")


def _memory(field: str, text: str, amount: int) -> Iterator[Problem]:
    if amount < _MEBI:
        yield Problem(field, f"is {text[:40]}, in bytes", "write a unit and at least 1Gi, such as 10Gi")
    elif amount < _GIBI:
        yield warning(field, f"is {text[:40]}, of which the scheduler makes 1Gi, the least of a share", "write 1Gi")
