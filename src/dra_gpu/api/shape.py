"""Everything that is wrong with the shape of a JSON value, not only the first thing.

`msgspec` decodes fast and stops at the first error. This walks the same types once more for whoever reads the errors:
each with its field, what is there and what may be there. A value has no problems here exactly if `msgspec` converts it.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import inspect

from dra_gpu.api.config_error import FieldProblem, element, join
from dra_gpu.api.quantity import Quantity

_SHOWN = 80


def problems(value: object, wanted: type) -> tuple[FieldProblem, ...]:
    """Return what keeps a value from being of a type: of a msgspec Struct, as a rule.

    Args:
        value: of what JSON has: objects with texts as keys, lists, texts, numbers, booleans and None.
        wanted: the type.
    """
    return tuple(_walk(value, _shape_of(wanted), ""))


@lru_cache(maxsize=64)
def _shape_of(wanted: type) -> inspect.Type:
    return inspect.type_info(wanted)


def _walk(value: object, shape: inspect.Type, path: str) -> Iterator[FieldProblem]:
    match shape:
        case inspect.StructType():
            yield from _object(value, shape, path)
        case inspect.UnionType():
            # The types here are unions of one thing and None.
            if value is not None or not _takes_none(shape):
                yield from _walk(value, _other_than_none(shape), path)
        case inspect.Metadata():
            yield from _walk(value, shape.type, path)
        case inspect.ListType() | inspect.DictType():
            yield from _items(value, shape, path)
        case inspect.AnyType():
            return
        case _:
            yield from _scalar(value, shape, path)


def _items(value: object, shape: inspect.ListType | inspect.DictType, path: str) -> Iterator[FieldProblem]:
    match shape, value:
        case inspect.ListType(), list():
            for index, item in enumerate(value):
                yield from _walk(item, shape.item_type, f"{path}[{index}]")
        case inspect.DictType(), dict():
            for key, item in value.items():
                yield from _walk(item, shape.value_type, f"{path}[{key[:_SHOWN]!r}]")
        case _:
            yield _other(value, path, _expected(shape))


def _takes_none(shape: inspect.UnionType) -> bool:
    return any(isinstance(one, inspect.NoneType) for one in shape.types)


def _other_than_none(shape: inspect.UnionType) -> inspect.Type:
    return next(one for one in shape.types if not isinstance(one, inspect.NoneType))


def _object(value: object, shape: inspect.StructType, path: str) -> Iterator[FieldProblem]:
    if not isinstance(value, dict):
        yield _other(value, path, "an object")
        return
    fields = {field.encode_name: field for field in shape.fields}
    for name, item in value.items():
        place = join(path, element(name))
        if name in fields:
            yield from _walk(item, fields[name].type, place)
        elif name == shape.tag_field:
            if item != shape.tag:
                yield FieldProblem(place, f"is {_shown(item)}", f"write {shape.tag}")
        elif shape.forbid_unknown_fields:
            yield FieldProblem(place, "is not a known field", _remedy_for(name, fields), unknown_field=True)
    for name, field in fields.items():
        if field.required and name not in value:
            yield FieldProblem(join(path, name), "is missing", f"write {_expected(field.type)}")


def _remedy_for(name: str, fields: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name[:_SHOWN], fields, n=1, cutoff=0.7)
    if close:
        return f"write {close[0]}, or remove it"
    known = ", ".join(sorted(fields))
    return f"remove it; known here: {known}" if known else "remove it"


def _scalar(value: object, shape: inspect.Type, path: str) -> Iterator[FieldProblem]:
    match shape:
        case inspect.StrType():
            fits = isinstance(value, str)
        case inspect.BoolType():
            fits = isinstance(value, bool)
        case inspect.IntType():
            fits = isinstance(value, int) and not isinstance(value, bool)
        case inspect.EnumType():
            fits = isinstance(value, str) and value in [one.value for one in shape.cls]
        case inspect.LiteralType():
            fits = isinstance(value, str) and value in shape.values
        case inspect.CustomType() if shape.cls is Quantity:
            fits = is_quantity(value)
        case _:
            raise TypeError(f"no wire type here has a field of the type {shape}")
    if not fits:
        yield _other(value, path, _expected(shape))


def is_quantity(value: object) -> bool:
    """Tell whether a JSON value can be read as the text of a quantity, valid or not."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _expected(shape: inspect.Type) -> str:
    match shape:
        case inspect.UnionType():
            return _expected(_other_than_none(shape))
        case inspect.Metadata():
            return _expected(shape.type)
        case inspect.EnumType():
            return f"one of {', '.join(str(one.value) for one in shape.cls)}"
        case inspect.LiteralType():
            return " or ".join(map(str, shape.values))
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number"
        case inspect.ListType():
            return "a list"
        case inspect.CustomType():
            return "a quantity, such as 10Gi"
        case _:
            return "an object"


def _other(value: object, path: str, expected: str) -> FieldProblem:
    return FieldProblem(path, f"is {_shown(value)}", f"write {expected}")


def _shown(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return repr(value[:_SHOWN])
        case _:
            return str(value)[:_SHOWN]
