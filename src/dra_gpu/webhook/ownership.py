"""Which objects are this driver's business. Total: it says yes or no to anything that JSON can say. Pure.

The conditions under which the API server asks at all (deploy/webhook.yaml) say the same in CEL.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dra_gpu.api import opaque
from dra_gpu.validation.classes import CLASSES
from dra_gpu.validation.requests import objects
from dra_gpu.validation.shapes import GROUP, ClaimKind

OWN_GROUPS = frozenset({"resource.nvidia.com", "resource.dra-gpu.dev"})


def is_ours(document: Mapping[str, Any]) -> bool:
    """Tell whether an object is of a kind of ours, is or names one of our classes, or has a config for our drivers."""
    group = str(document.get("apiVersion")).rpartition("/")[0]
    if group in OWN_GROUPS:
        return True
    if group != GROUP:
        return False
    spec = _object(document.get("spec"))
    match document.get("kind"):
        case ClaimKind.CLASS.value:
            return _is_class(_object(document.get("metadata")).get("name")) or _has_config(spec)
        case ClaimKind.TEMPLATE.value:
            return _is_our_claim(_object(spec.get("spec")))
        case ClaimKind.CLAIM.value:
            return _is_our_claim(spec)
        case _:
            return False


def _is_our_claim(spec: Mapping[str, Any]) -> bool:
    devices = _object(spec.get("devices"))
    return _has_config(devices) or any(_is_class(name) for name in _class_names(devices))


def _class_names(devices: Mapping[str, Any]) -> Iterator[object]:
    for request in objects(devices.get("requests")):
        yield request.get("deviceClassName")  # v1beta1
        yield _object(request.get("exactly")).get("deviceClassName")
        for alternative in objects(request.get("firstAvailable")):
            yield alternative.get("deviceClassName")


def _is_class(name: object) -> bool:
    return isinstance(name, str) and name in CLASSES


def _has_config(holder: Mapping[str, Any]) -> bool:
    drivers = (_object(entry.get("opaque")).get("driver") for entry in objects(holder.get("config")))
    return any(isinstance(driver, str) and driver in opaque.KINDS for driver in drivers)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
