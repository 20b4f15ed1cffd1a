"""The values of the Helm chart: meaning from its schema, default from its values."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tools.reference.tables import code, table

_CHART = Path(__file__).parents[2] / "deploy" / "helm" / "dra-driver-gpu"
_HEAD = """# Values of the chart

{note}
A value that does not stand here, or is of another kind, is refused by Helm before anything is installed. Names are
those of NVIDIA's chart where the meaning is the same.

"""
_HELM_OWN = "global"
Schema = dict[str, Any]


def page(note: str) -> str:
    """Return the page."""
    schema = json.loads((_CHART / "values.schema.json").read_text())
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    parts = [_HEAD.format(note=note.format(source="values.schema.json and values.yaml of the chart"))]
    single, sections = [], []
    for name, of_value in schema["properties"].items():
        if name == _HELM_OWN:
            continue
        found = _merged(of_value, schema)
        if "properties" in found:
            sections.append((name, found))
        else:
            single.append(_row(name, found, values.get(name)))
    head = ("Value", "Default", "May be", "Meaning")
    parts.append(f"## On the first level\n\n{table(head, single)}")
    for name, found in sections:
        about = f"{found['description']}\n\n" if "description" in found else ""
        parts.append(f"\n## {name}\n\n{about}{table(head, _rows(name, found, values.get(name), schema))}")
    return "".join(parts)


def _rows(path: str, schema: Schema, value: Any, root: Schema) -> Iterator[tuple[str, str, str, str]]:
    for name, of_value in schema["properties"].items():
        found = _merged(of_value, root)
        here = value.get(name) if isinstance(value, dict) else None
        if "properties" in found:
            yield from _rows(f"{path}.{name}", found, here, root)
        else:
            yield _row(f"{path}.{name}", found, here)


def _row(path: str, schema: Schema, value: Any) -> tuple[str, str, str, str]:
    default = "" if value is None else code(json.dumps(value))
    return code(path), default, _kind(schema), schema.get("description", "")


def _kind(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(code(json.dumps(one)) for one in schema["enum"])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_kind(one) for one in schema[several]))
    found = schema.get("type", "anything")
    kind = " or ".join(found) if isinstance(found, list) else str(found)
    if kind == "array" and "enum" in (items := schema.get("items", {})):
        return f"array of {_kind(items)}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if low is not None:
        return f"{kind}, at least {low}"
    return f"{kind} above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else kind


def _merged(schema: Schema, root: Schema) -> Schema:
    """Return a schema with what it refers to, one level deep: all that the chart's schema uses."""
    found: Schema = {}
    for part in schema.get("allOf", ()):
        found |= _merged(part, root)
    if "$ref" in schema:
        found |= _merged(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    return found | {name: value for name, value in schema.items() if name not in ("allOf", "$ref")}
