"""The shape of the objects that claims are made of, field by field (`resource.k8s.io` v1, v1beta2 and v1beta1).

Complete, unlike `api.resource_claim_v1`: a field that is not here is one that Kubernetes v1.37 does not have. v1 and
v1beta2 are alike; v1beta1 has the fields of `exactly` in the request itself. Source: k8s.io/api v0.37.2, resource/*.
"""

import enum
from typing import Any

import msgspec

from dra_gpu.api.quantity import Quantity
from dra_gpu.api.resource_claim_v1 import AllocationMode
from dra_gpu.api.strict import Strict


class Cel(Strict, frozen=True):
    """A condition in the Common Expression Language."""

    expression: str


class Selector(Strict, frozen=True):
    """A condition on a device."""

    cel: Cel | None = None


class Capacity(Strict, frozen=True):
    """Amounts of capacities."""

    requests: dict[str, Quantity] | None = None


class Toleration(Strict, frozen=True):
    """A taint that is put up with."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class DerivedAttribute(Strict, frozen=True):
    """An attribute that the claim computes itself."""

    name: str
    expression: str


class Details(Strict, frozen=True, kw_only=True):
    """Which and how many devices of a class."""

    selectors: list[Selector] | None = None
    allocation_mode: AllocationMode | None = None
    count: int | None = None
    tolerations: list[Toleration] | None = None
    capacity: Capacity | None = None
    derived_attributes: list[DerivedAttribute] | None = None


class Ask(Details, frozen=True, kw_only=True):
    """What is asked for: devices of one class."""

    device_class_name: str


class Exactly(Ask, frozen=True, kw_only=True):
    """The one thing that a request asks for."""

    admin_access: bool | None = None


class Alternative(Ask, frozen=True, kw_only=True):
    """One of several things that would do."""

    name: str


class Request(Strict, frozen=True):
    """A request in v1 and v1beta2."""

    name: str
    exactly: Exactly | None = None
    first_available: list[Alternative] | None = None


class RequestV1beta1(Details, frozen=True, kw_only=True):
    """A request in v1beta1."""

    name: str
    device_class_name: str | None = None
    admin_access: bool | None = None
    first_available: list[Alternative] | None = None


class Constraint(Strict, frozen=True):
    """A condition on devices together."""

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class Opaque(Strict, frozen=True):
    """Parameters for one driver."""

    driver: str
    parameters: Any


class Config(Strict, frozen=True):
    """A config of a claim."""

    requests: list[str] | None = None
    opaque: Opaque | None = None


class ClassConfig(Strict, frozen=True):
    """A config of a class."""

    opaque: Opaque | None = None


class Devices(Strict, frozen=True):
    """Everything a claim says about devices."""

    requests: list[Request] | None = None
    constraints: list[Constraint] | None = None
    config: list[Config] | None = None


class DevicesV1beta1(Strict, frozen=True):
    """The same in v1beta1."""

    requests: list[RequestV1beta1] | None = None
    constraints: list[Constraint] | None = None
    config: list[Config] | None = None


class ClaimSpec(Strict, frozen=True):
    """The spec of a claim."""

    devices: Devices


class ClaimSpecV1beta1(Strict, frozen=True):
    """The same in v1beta1."""

    devices: DevicesV1beta1


class ClassSpec(Strict, frozen=True):
    """The spec of a class."""

    selectors: list[Selector] | None = None
    config: list[ClassConfig] | None = None
    extended_resource_name: str | None = None


class TemplateSpec(Strict, frozen=True):
    """The claim that a template makes."""

    spec: ClaimSpec
    metadata: dict[str, Any] | None = None


class TemplateSpecV1beta1(Strict, frozen=True):
    """The same in v1beta1."""

    spec: ClaimSpecV1beta1
    metadata: dict[str, Any] | None = None


class _Object(Strict, frozen=True, kw_only=True):
    """What every object of Kubernetes has."""

    api_version: str
    kind: str
    metadata: dict[str, Any] | None = None


class ResourceClaim(_Object, frozen=True, kw_only=True):
    """A claim; its status is the cluster's."""

    spec: ClaimSpec
    status: dict[str, Any] | None = None


class ResourceClaimV1beta1(_Object, frozen=True, kw_only=True):
    """The same in v1beta1."""

    spec: ClaimSpecV1beta1
    status: dict[str, Any] | None = None


class ResourceClaimTemplate(_Object, frozen=True, kw_only=True):
    """What claims are made from."""

    spec: TemplateSpec


class ResourceClaimTemplateV1beta1(_Object, frozen=True, kw_only=True):
    """The same in v1beta1."""

    spec: TemplateSpecV1beta1


class DeviceClass(_Object, frozen=True, kw_only=True):
    """A kind of device."""

    spec: ClassSpec


class ClaimKind(enum.Enum):
    """The kinds that are read here."""

    CLAIM = "ResourceClaim"
    TEMPLATE = "ResourceClaimTemplate"
    CLASS = "DeviceClass"


GROUP = "resource.k8s.io"
_V1: dict[ClaimKind, type[msgspec.Struct]] = {
    ClaimKind.CLAIM: ResourceClaim,
    ClaimKind.TEMPLATE: ResourceClaimTemplate,
    ClaimKind.CLASS: DeviceClass,
}
SHAPES: dict[str, dict[ClaimKind, type[msgspec.Struct]]] = {
    "v1": _V1,
    "v1beta2": _V1,
    "v1beta1": {
        ClaimKind.CLAIM: ResourceClaimV1beta1,
        ClaimKind.TEMPLATE: ResourceClaimTemplateV1beta1,
        ClaimKind.CLASS: DeviceClass,
    },
}
