"""As much of a JSON schema validator (draft 7) as our schemas need, written for the tests alone."""

import re

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def valid(value, schema, root=None):
    """Tell whether a value satisfies a schema; a keyword that is not known here is an error."""
    root = root or schema
    return all(_holds(keyword, rule, value, schema, root) for keyword, rule in schema.items())


def _holds(keyword, rule, value, schema, root):
    return keyword in _ANNOTATIONS or _RULES[keyword](rule, value, schema, root)


def _within(rule, value, schema, root):
    return not isinstance(value, dict) or all(
        valid(value[name], one, root) for name, one in rule.items() if name in value
    )


def _beyond(rule, value, schema, root):
    others = (
        [value[name] for name in value if name not in schema.get("properties", {})] if isinstance(value, dict) else []
    )
    return not others if rule is False else rule is True or all(valid(item, rule, root) for item in others)


# A keyword that is in neither table is an error: no schema here had it so far.
_ANNOTATIONS = ("$schema", "definitions", "description", "default", "then")
_RULES = {
    "$ref": lambda rule, value, _, root: valid(value, root["definitions"][rule.removeprefix("#/definitions/")], root),
    "type": lambda rule, value, _, __: any(_is(value, name) for name in ([rule] if isinstance(rule, str) else rule)),
    "enum": lambda rule, value, _, __: value in rule and not isinstance(value, bool),
    "const": lambda rule, value, _, __: value == rule,
    "anyOf": lambda rule, value, _, root: any(valid(value, one, root) for one in rule),
    "allOf": lambda rule, value, _, root: all(valid(value, one, root) for one in rule),
    "if": lambda rule, value, schema, root: not valid(value, rule, root) or valid(value, schema["then"], root),
    "pattern": lambda rule, value, _, __: not isinstance(value, str) or re.search(rule, value) is not None,
    "minimum": lambda rule, value, _, __: not _is(value, "number") or value >= rule,
    "maximum": lambda rule, value, _, __: not _is(value, "number") or value <= rule,
    "items": lambda rule, value, _, root: not isinstance(value, list) or all(valid(item, rule, root) for item in value),
    "required": lambda rule, value, _, __: not isinstance(value, dict) or all(name in value for name in rule),
    "properties": _within,
    "additionalProperties": _beyond,
}


def _is(value, name):
    if name in ("integer", "number"):
        numbers = (int,) if name == "integer" else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, _TYPES[name])
