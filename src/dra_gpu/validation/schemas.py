"""JSON schemas of what users write, made from the types that read it, so that an editor knows the fields.

One for each opaque config, for ClaimResize and for ComputeDomain, and `manifest`: for files with claims, templates and
classes, their configs by driver among them, in which every other kind is left alone. What a schema cannot say (which
field belongs to which strategy, which request takes which kind) `kubectl gpu validate` says.
"""

import re
from typing import Any

import msgspec

from dra_gpu.api import opaque
from dra_gpu.api.compute_domain import ComputeDomain, ComputeDomainV1beta2
from dra_gpu.api.dra_gpu_v1alpha1 import API_VERSION as RESIZE_VERSION
from dra_gpu.api.quantity import Quantity
from dra_gpu.validation.resizes import ClaimResizeManifest
from dra_gpu.validation.shapes import GROUP, SHAPES

Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"
# As `quantity.parse` reads it.
_QUANTITY: Schema = {
    "type": ["string", "number"],
    "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$",
    "description": "A quantity, such as 10Gi.",
}
_OBJECTS: dict[str, type[msgspec.Struct]] = {
    "ClaimResize": ClaimResizeManifest,
    "ComputeDomain": ComputeDomain,
    "ComputeDomain-v1beta2": ComputeDomainV1beta2,
}


def schemas() -> dict[str, Schema]:
    """Return every schema by the name of its file, without `.json`."""
    kinds: dict[str, type[msgspec.Struct]] = {
        kind: wanted for known in opaque.KINDS.values() for (_, kind), wanted in known.items()
    }
    alone = {name: _schema(wanted) for name, wanted in sorted({**kinds, **_OBJECTS}.items())}
    return alone | {"manifest": _manifest()}


def render(schema: Schema) -> str:
    """Return the text of a schema's file."""
    return msgspec.json.format(msgspec.json.encode(schema, order="deterministic"), indent=2).decode() + "\n"


def _schema(wanted: type[msgspec.Struct]) -> Schema:
    (root,), definitions = components([wanted])
    return {"$schema": DIALECT} | root | {"definitions": definitions}


def components(wanted: list[type[msgspec.Struct]]) -> tuple[list[Schema], dict[str, Schema]]:
    """Return schemas of types, and of everything that they refer to by `#/definitions/NAME`."""
    roots, found = msgspec.json.schema_components(wanted, schema_hook=_hook, ref_template="#/definitions/{name}")
    for name, schema in found.items():
        schema.pop("title", None)
        if "kind" in schema.get("properties", {}) and "apiVersion" in schema["properties"]:
            schema["required"] = sorted({*schema.get("required", ()), "apiVersion", "kind"})
            schema["properties"]["apiVersion"].pop("default", None)
        if "description" in schema:
            _describe(schema)
        found[name] = schema
    return list(roots), dict(found)


def _hook(wanted: type) -> Schema:
    if wanted is Quantity:
        return dict(_QUANTITY)
    raise NotImplementedError


def _describe(schema: Schema) -> None:
    """Give a schema and its properties what the type's docstring says about them."""
    text, _, attributes = schema["description"].partition("Attributes:\n")
    schema["description"] = " ".join(text.split())
    for entry in re.split(r"\n {4}(?=\w+: )", f"\n{attributes}".rstrip())[1:]:
        name, _, meaning = entry.partition(": ")
        for field, about in schema.get("properties", {}).items():
            if field.lower() == name.replace("_", "").lower() and field != "apiVersion":
                about.setdefault("description", " ".join(meaning.split()))


def _manifest() -> Schema:
    shapes = {
        (f"{GROUP}/{version}", kind.value): shape for version, known in SHAPES.items() for kind, shape in known.items()
    }
    domains = {("resource.nvidia.com/v1beta1", "ComputeDomain"): ComputeDomain}
    resizes: dict[tuple[str, str], type[msgspec.Struct]] = {(RESIZE_VERSION, "ClaimResize"): ClaimResizeManifest}
    domains_v2 = {("resource.nvidia.com/v1beta2", "ComputeDomain"): ComputeDomainV1beta2}
    objects: dict[tuple[str, str], type[msgspec.Struct]] = {**shapes, **domains, **domains_v2, **resizes}
    configs = [wanted for known in opaque.KINDS.values() for wanted in known.values()]
    distinct = list(dict.fromkeys([*objects.values(), *configs]))
    roots, definitions = components(distinct)
    root_of = dict(zip(distinct, roots, strict=True))
    definitions["Opaque"]["allOf"] = [
        {
            "if": {"properties": {"driver": {"const": driver}}, "required": ["driver"]},
            "then": {"properties": {"parameters": {"anyOf": [root_of[wanted] for wanted in known.values()]}}},
        }
        for driver, known in opaque.KINDS.items()
    ]
    return {
        "$schema": DIALECT,
        "type": "object",
        "allOf": [
            {
                "if": {
                    "properties": {"apiVersion": {"const": version}, "kind": {"const": kind}},
                    "required": ["apiVersion", "kind"],
                },
                "then": root_of[shape],
            }
            for (version, kind), shape in objects.items()
        ],
        "definitions": definitions,
    }
