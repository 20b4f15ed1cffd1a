"""One object as it stands in a file or reaches a webhook: which kind it is, and everything that is wrong with it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_gpu.api import claim_resize, compute_domain, opaque, shape, strict
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.validation import configs, pipes, requests, resizes
from dra_gpu.validation.problem import Problem, Severity, under
from dra_gpu.validation.shapes import GROUP, SHAPES, ClaimKind

_NVIDIA = "resource.nvidia.com"
_OURS = "resource.dra-gpu.dev"
_CLAIM_KINDS = frozenset(one.value for one in ClaimKind)
_DOMAINS: Mapping[str, type[compute_domain.ComputeDomain | compute_domain.ComputeDomainV1beta2]] = {
    "resource.nvidia.com/v1beta1": compute_domain.ComputeDomain,
    "resource.nvidia.com/v1beta2": compute_domain.ComputeDomainV1beta2,
}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one object.

    Attributes:
        kind: its kind.
        name: `namespace/name`, `name`, or empty where it has none.
        problems: in the order of the object's parts.
    """

    kind: str
    name: str
    problems: tuple[Problem, ...]


def check(document: object, *, newer_fields: Severity = Severity.ERROR) -> Report | None:
    """Return what is wrong with an object; None for a kind that this driver has nothing to say about.

    Args:
        document: a ResourceClaim, ResourceClaimTemplate or DeviceClass of any version, a ClaimResize, a ComputeDomain,
            or an opaque config alone; as a value of what JSON has.
        newer_fields: how bad a field of Kubernetes' own objects is that this release does not know. Who reads files
            should leave it; an admission webhook, which serves newer clusters too, should pass a warning.
    """
    if not isinstance(document, dict):
        return None
    version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return None
    problems = _problems(document, version, kind, newer_fields)
    return None if problems is None else Report(kind, _name(document), tuple(problems))


def _problems(document: Mapping[str, Any], version: str, kind: str, newer_fields: Severity) -> Iterator[Problem] | None:
    group, _, number = version.rpartition("/")
    if group == GROUP and kind in _CLAIM_KINDS:
        return _kubernetes(document, number, ClaimKind(kind), newer_fields)
    if group == _NVIDIA and kind == "ComputeDomain":
        return _domain(document, version)
    if group == _OURS and kind == claim_resize.KIND:
        return under("", resizes.check(document))
    if group in (_NVIDIA, _OURS) and _driver_of(kind) is not None:
        return _config(document, kind)
    return None


def _kubernetes(document: Mapping[str, Any], number: str, kind: ClaimKind, newer_fields: Severity) -> Iterator[Problem]:
    shapes = SHAPES.get(number)
    if shapes is None:
        yield Problem("apiVersion", f"is {GROUP}/{number[:40]}, which has no {kind.value}", f"write {GROUP}/v1")
        return
    found = [one for one in shape.problems(document, shapes[kind]) if ".opaque.parameters." not in one.field]
    yield from under("", found, newer_fields=newer_fields)
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return
    match kind:
        case ClaimKind.CLASS:
            entries, problems = configs.read(spec.get("config"), "spec.config")
            yield from problems
            yield from configs.check_class(_name(document), entries)
        case ClaimKind.TEMPLATE:
            inner = spec.get("spec")
            yield from _claim(inner, "spec.spec") if isinstance(inner, dict) else ()
        case ClaimKind.CLAIM:
            yield from _claim(spec, "spec")


def _claim(spec: Mapping[str, Any], path: str) -> Iterator[Problem]:
    devices = spec.get("devices")
    if not isinstance(devices, dict):
        return
    path = f"{path}.devices"
    asked = requests.wanted(devices, path)
    yield from requests.without_ask(devices, path)
    for ways in asked:
        for way in ways:
            yield from requests.check(way)
    yield from requests.partitions(asked, f"{path}.requests")
    yield from configs.names(devices, path)
    entries, problems = configs.read(devices.get("config"), f"{path}.config")
    yield from problems
    yield from configs.check_claim(entries, asked)
    if not problems:  # what a config that cannot be read was meant to say would only be guessed
        yield from pipes.check(asked, entries)
        yield from pipes.mixed(asked, entries)


def _domain(document: Mapping[str, Any], version: str) -> Iterator[Problem]:
    wanted = _DOMAINS.get(version)
    if wanted is None:
        yield Problem(
            "apiVersion", f"is {version[:80]}, which has no ComputeDomain", f"write one of {', '.join(_DOMAINS)}"
        )
        return
    try:
        yield from under("", compute_domain.problems(strict.convert(document, wanted)))
    except InvalidConfigError as error:
        yield from under("", error.problems)


def _config(document: Mapping[str, Any], kind: str) -> Iterator[Problem]:
    driver = _driver_of(kind)
    assert driver is not None
    try:
        opaque.read(driver, document)
    except InvalidConfigError as error:
        yield from under("", error.problems)


def _driver_of(kind: str) -> str | None:
    return next((driver for driver, kinds in opaque.KINDS.items() if any(name == kind for _, name in kinds)), None)


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    generateName: str = ""  # noqa: N815 - as it stands in the object


def _name(document: Mapping[str, Any]) -> str:
    try:
        metadata = msgspec.convert(document.get("metadata") or {}, _Metadata)
    except msgspec.ValidationError:
        return ""
    name = metadata.name or (f"{metadata.generateName}*" if metadata.generateName else "")
    return f"{metadata.namespace}/{name}" if metadata.namespace and name else name
