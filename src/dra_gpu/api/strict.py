"""Strict reading of what a user wrote: no field is ignored, none stands twice, and every error names its field."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from dra_gpu.api.config_error import FieldProblem, InvalidConfigError, element
from dra_gpu.api.quantity import Quantity

T = TypeVar("T")


class Strict(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    """A camelCase object that refuses fields it does not know."""


def load(text: bytes) -> object:
    """Return a JSON value.

    Raises:
        InvalidConfigError: it is not JSON, or an object has a field twice (Kubernetes refuses that, too).
    """
    try:
        value = msgspec.json.decode(text)
        json.loads(text, object_pairs_hook=_refuse_twice)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise InvalidConfigError(FieldProblem("", f"is not JSON ({error})", "write one JSON object")) from error
    return value


def _refuse_twice(pairs: Sequence[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfigError(FieldProblem(element(name), "stands twice in one object", "keep one of them"))


def convert(value: object, wanted: type[T]) -> T:
    """Return a JSON value as a type.

    Raises:
        InvalidConfigError: it does not fit; names every field that does not.
    """
    try:
        return msgspec.convert(value, type=wanted, dec_hook=_quantity)
    except (msgspec.ValidationError, RecursionError) as error:
        from dra_gpu.api import shape  # only errors need it, and the node plugin's memory is paid on every node

        found = shape.problems(value, wanted) or (FieldProblem("", f"is not valid ({error})", "correct it"),)
        raise InvalidConfigError(*found) from error


def _quantity(wanted: type, value: object) -> object:
    if wanted is Quantity and isinstance(value, str | int | float) and not isinstance(value, bool):
        return Quantity(value)
    raise ValueError("not a quantity")
