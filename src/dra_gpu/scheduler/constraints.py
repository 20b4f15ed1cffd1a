"""Conditions on several devices of a claim together: an attribute that all share, or that no two share.

Devices join and leave in the order of the search: what joined last leaves first. An attribute without domain in a slice
belongs to the driver's domain. Source: allocator_incubating.go `matchAttributeConstraint`, constraint.go.
"""

from collections.abc import Iterable
from typing import Protocol

from dra_gpu.api.resource_claim_v1 import DeviceConstraint
from dra_gpu.api.resource_v1 import DeviceAttribute
from dra_gpu.scheduler.model import Candidate

Value = tuple[str, int | str | bool] | None


class EmptyConstraintError(ValueError):
    """A constraint of a kind that this version does not know."""


class Constraint(Protocol):
    """One constraint during a search."""

    attribute: str

    def concerns(self, request: str, parent: str) -> bool:
        """Tell whether it speaks about a request, given as `main/sub` and `main` (or twice `main`)."""

    def join(self, candidate: Candidate) -> bool:
        """Add a device if it satisfies the constraint."""

    def leave(self) -> None:
        """Take out the device that joined last."""


def build(constraint: DeviceConstraint) -> Constraint:
    """Return a constraint with no devices in it yet.

    Raises:
        EmptyConstraintError: it names no attribute.
    """
    if constraint.match_attribute is not None:
        return _Match(constraint.match_attribute, constraint.requests)
    if constraint.distinct_attribute is not None:
        return _Distinct(constraint.distinct_attribute, constraint.requests)
    raise EmptyConstraintError("empty constraint (unsupported constraint type?)")


class _Scope:
    def __init__(self, attribute: str, requests: Iterable[str]) -> None:
        self.attribute = attribute
        self._requests = frozenset(requests)
        self._values: list[Value] = []

    def concerns(self, request: str, parent: str) -> bool:
        return not self._requests or request in self._requests or parent in self._requests

    def leave(self) -> None:
        self._values.pop()


class _Match(_Scope):
    def join(self, candidate: Candidate) -> bool:
        attribute = _lookup(candidate, self.attribute)
        if attribute is None:
            return False
        value = _value(attribute)
        # Whatever comes first sets the value; a kind of value that is not known equals nothing after that.
        if self._values and (value is None or value != self._values[0]):
            return False
        self._values.append(value)
        return True


class _Distinct(_Scope):
    def join(self, candidate: Candidate) -> bool:
        attribute = _lookup(candidate, self.attribute)
        if attribute is None:
            return False
        value = _value(attribute)
        if self._values and (value is None or value in self._values):
            return False
        self._values.append(value)
        return True


def _lookup(candidate: Candidate, name: str) -> DeviceAttribute | None:
    attributes = candidate.device.attributes
    if name in attributes:
        return attributes[name]
    domain, separator, identifier = name.partition("/")
    return attributes.get(identifier) if separator and domain == candidate.id.driver else None


def _value(attribute: DeviceAttribute) -> Value:
    if attribute.string is not None:
        return "string", attribute.string
    if attribute.int_ is not None:
        return "int", attribute.int_
    if attribute.bool_ is not None:
        return "bool", attribute.bool_
    if attribute.version is not None:
        return "version", attribute.version
    return None
