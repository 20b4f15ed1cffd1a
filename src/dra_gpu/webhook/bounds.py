"""How much an object may hold, before anybody looks closer: what is beyond Kubernetes' own limits costs no time. Pure.

The API server checks most of these before it asks; whoever else reaches the port has not been checked by anybody.
Source: Kubernetes v1.37, k8s.io/api/resource/v1/types.go.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dra_gpu.validation.problem import Problem
from dra_gpu.validation.requests import objects
from dra_gpu.validation.shapes import GROUP

_LISTS = {"requests": 32, "constraints": 32, "config": 32, "selectors": 32}
_ALTERNATIVES = 8
_OF_A_REQUEST = {"selectors": 32, "tolerations": 16, "derivedAttributes": 32}
_CAPACITIES = 32  # a device has at most 32 attributes and capacities
_PARAMETERS_BYTES = 10 * 1024
_PARAMETERS_VALUES = 256  # a config with a limit for each of the 32 devices that a claim may have has 40


def exceeded(document: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return what is too much about a claim, template or class; nothing for other kinds."""
    if not str(document.get("apiVersion")).startswith(f"{GROUP}/"):
        return ()
    return tuple(_spec(document.get("spec"), "spec"))


def _spec(spec: object, path: str) -> Iterator[Problem]:
    if not isinstance(spec, dict):
        return
    if isinstance(spec.get("spec"), dict):
        yield from _spec({**spec["spec"], "spec": None}, f"{path}.spec")
        return
    for holder, place in ((spec, path), (spec.get("devices"), f"{path}.devices")):
        if not isinstance(holder, dict):
            continue
        found = list(_lists(holder, place, _LISTS))
        yield from found
        if not found:
            yield from _inside(holder, place)


def _lists(holder: Mapping[str, Any], path: str, limits: Mapping[str, int]) -> Iterator[Problem]:
    for name, most in limits.items():
        value = holder.get(name)
        if isinstance(value, list | dict) and len(value) > most:
            yield Problem(f"{path}.{name}", f"has {len(value)} entries", f"write at most {most}")


def _inside(holder: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for index, request in enumerate(objects(holder.get("requests"))):
        place = f"{path}.requests[{index}]"
        alternatives = objects(request.get("firstAvailable"))
        yield from _lists(request, place, {"firstAvailable": _ALTERNATIVES})
        asks = [(place, request), (f"{place}.exactly", request.get("exactly"))]
        asks += [(f"{place}.firstAvailable[{n}]", one) for n, one in enumerate(alternatives[:_ALTERNATIVES])]
        for where, ask in asks:
            if isinstance(ask, dict):
                yield from _lists(ask, where, _OF_A_REQUEST)
                capacity = ask.get("capacity")
                if isinstance(capacity, dict):
                    yield from _lists(capacity, f"{where}.capacity", {"requests": _CAPACITIES})
    for name in ("config", "constraints"):
        for index, entry in enumerate(objects(holder.get(name))):
            yield from _lists(entry, f"{path}.{name}[{index}]", {"requests": _LISTS["requests"]})
            inner = entry.get("opaque")
            if name == "config" and isinstance(inner, dict):
                yield from _parameters(inner.get("parameters"), f"{path}.{name}[{index}].opaque.parameters")


def _parameters(value: object, path: str) -> Iterator[Problem]:
    size = len(msgspec.json.encode(value))
    if size > _PARAMETERS_BYTES:
        yield Problem(path, f"has {size} bytes", f"write at most {_PARAMETERS_BYTES}")
    elif (number := _values(value)) > _PARAMETERS_VALUES:
        yield Problem(path, f"has {number} values", f"write at most {_PARAMETERS_VALUES}: no config has that many")


def _values(value: object) -> int:
    """Count the values inside a value, without recursion."""
    number, left = 0, [value]
    while left:
        one = left.pop()
        number += 1
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
    return number
