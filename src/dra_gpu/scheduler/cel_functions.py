"""Functions that Kubernetes adds to the Common Expression Language for device selectors.

A quantity or version is passed as a map with one entry that says which it is, so that `==` compares amounts and not
texts. An exception becomes an error of the evaluation, as in Kubernetes.
Source: k8s.io/apiserver v0.37 pkg/cel/library/{quantity,semverlib,lists}.go.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dra_gpu.api.quantity import InvalidQuantityError
from dra_gpu.scheduler.amount import MAX_INT64, Amount
from dra_gpu.scheduler.semver import InvalidVersionError, Version

_QUANTITY = "kubernetes.Quantity"
_VERSION = "kubernetes.Semver"

Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function; types are `string`, `int`, `double`, `bool`, `map`, `list`."""

    result: str
    parameters: tuple[str, ...]
    member: bool
    function: Callable[..., Any]


def quantity_value(amount: Amount) -> Value:
    """Return a quantity as expressions see it."""
    return {_QUANTITY: f"{amount.value.numerator}/{amount.value.denominator}"}


def version_value(text: str) -> Value:
    """Return a version as expressions see it.

    Raises:
        InvalidVersionError: the text is none.
    """
    return _of_version(Version.parse(text))


def _of_version(version: Version) -> Value:
    return {_VERSION: str(version)}


def _amount(value: Mapping[str, Any]) -> Fraction:
    if _QUANTITY not in value:
        raise InvalidQuantityError("no such overload: a quantity is needed")
    return Fraction(value[_QUANTITY])


def _version(value: Mapping[str, Any]) -> Version:
    if _VERSION not in value:
        raise InvalidVersionError("no such overload: a semantic version is needed")
    return Version.parse(value[_VERSION])


def _compare(left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
    if _VERSION in left:
        return _version(left).compare(_version(right))
    mine, theirs = _amount(left), _amount(right)
    return (mine > theirs) - (mine < theirs)


def _accepts(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def accepted(text: str) -> bool:
        try:
            parse(text)
        except (InvalidQuantityError, InvalidVersionError):
            return False
        return True

    return accepted


def _is_integer(value: Mapping[str, Any]) -> bool:
    amount = _amount(value)
    return amount.denominator == 1 and abs(amount) <= MAX_INT64


def _as_integer(value: Mapping[str, Any]) -> int:
    if not _is_integer(value):
        raise InvalidQuantityError("cannot convert value to integer")
    return int(_amount(value))


def _shifted(sign: int) -> Callable[[Mapping[str, Any], Any], Value]:
    def shifted(value: Mapping[str, Any], by: Any) -> Value:
        difference = Fraction(by) if isinstance(by, int) else _amount(by)
        return quantity_value(Amount(_amount(value) + sign * difference))

    return shifted


def _versioned(text: str, normalize: bool) -> Version:  # noqa: FBT001  # the position is Kubernetes'
    return Version.normalized(text) if normalize else Version.parse(text)


def _is_version(text: str, normalize: bool) -> bool:  # noqa: FBT001  # the position is Kubernetes'
    return _accepts(Version.normalized if normalize else Version.parse)(text)


def _includes(values: Any, value: Any) -> bool:
    if isinstance(values, list):
        return any(type(entry) is type(value) and entry == value for entry in values)
    return type(values) is type(value) and bool(values == value)


def _contains(outer: list[Any], inner: list[Any]) -> bool:
    return all(value in outer for value in inner)


def _function(result: str, parameters: tuple[str, ...], function: Callable[..., Any]) -> Overload:
    return Overload(result, parameters, member=False, function=function)


def _method(result: str, parameters: tuple[str, ...], function: Callable[..., Any]) -> Overload:
    return Overload(result, parameters, member=True, function=function)


_PAIR = ("map", "map")
_LISTS = ("list", "list")

FUNCTIONS: Mapping[str, tuple[Overload, ...]] = {
    "quantity": (_function("map", ("string",), lambda text: quantity_value(Amount.parse(text))),),
    "isQuantity": (_function("bool", ("string",), _accepts(Amount.parse)),),
    "sign": (_function("int", ("map",), lambda value: (_amount(value) > 0) - (_amount(value) < 0)),),
    "isInteger": (_method("bool", ("map",), _is_integer),),
    "asInteger": (_method("int", ("map",), _as_integer),),
    "asApproximateFloat": (_method("double", ("map",), lambda value: float(_amount(value))),),
    "add": (_method("map", _PAIR, _shifted(1)), _method("map", ("map", "int"), _shifted(1))),
    "sub": (_method("map", _PAIR, _shifted(-1)), _method("map", ("map", "int"), _shifted(-1))),
    "compareTo": (_method("int", _PAIR, _compare),),
    "isGreaterThan": (_method("bool", _PAIR, lambda left, right: _compare(left, right) > 0),),
    "isLessThan": (_method("bool", _PAIR, lambda left, right: _compare(left, right) < 0),),
    "semver": (
        _function("map", ("string",), version_value),
        _function("map", ("string", "bool"), lambda text, normalize: _of_version(_versioned(text, normalize))),
    ),
    "isSemver": (
        _function("bool", ("string",), _accepts(Version.parse)),
        _function("bool", ("string", "bool"), _is_version),
    ),
    "major": (_method("int", ("map",), lambda value: _version(value).major),),
    "minor": (_method("int", ("map",), lambda value: _version(value).minor),),
    "patch": (_method("int", ("map",), lambda value: _version(value).patch),),
    "includes": tuple(
        _method("bool", (values, value), _includes)
        for value in ("string", "int", "bool", "map")
        for values in ("list", value)
    ),
    "sets.contains": (_function("bool", _LISTS, _contains),),
    "sets.equivalent": (
        _function("bool", _LISTS, lambda left, right: _contains(left, right) and _contains(right, left)),
    ),
    "sets.intersects": (_function("bool", _LISTS, lambda left, right: any(value in left for value in right)),),
}
