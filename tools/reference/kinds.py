"""The kinds that users write into claims, from the JSON schemas that are made of the types that read them."""

import json
from collections.abc import Iterator
from typing import Any

from tools.reference.tables import code, table

from dra_gpu.validation import schemas

_HEAD = """# Kinds

{note}
All but ClaimResize and ComputeDomain are opaque configs: they stand in `spec.devices.config[].opaque.parameters` of a
ResourceClaim or in `spec.config[].opaque.parameters` of a DeviceClass, under the driver that is named here. Unknown
fields are refused.
`kubectl gpu validate -f FILE` says what is wrong; [the schemas](../schemas) are for editors.

"""
#: Driver, and which devices a config is for.
_FOR = {
    "GpuConfig": ("gpu.nvidia.com", "whole GPUs (class `gpu.nvidia.com`)"),
    "MigDeviceConfig": ("gpu.nvidia.com", "partitions (class `mig.nvidia.com`)"),
    "SharedGpuConfig": (
        "gpu.nvidia.com",
        "fractions of GPUs and of partitions (classes `shared.gpu.nvidia.com`, `shared.mig.nvidia.com`)",
    ),
    "VfioDeviceConfig": (
        "gpu.nvidia.com",
        "passthrough, which is not there yet: checked and refused for other devices",
    ),
    "ComputeDomainChannelConfig": ("compute-domain.nvidia.com", "ComputeDomains, which are checked and not served yet"),
    "ComputeDomainDaemonConfig": ("compute-domain.nvidia.com", "ComputeDomains, which are checked and not served yet"),
    "ClaimResize": ("", "moving capacity between running claims; an object of its own, in the claim's namespace"),
    "ComputeDomain": ("", "multi-node NVLink; an object of its own, checked and not served yet"),
    "ComputeDomain-v1beta2": ("", "multi-node NVLink; the same in its other version"),
}
_ELSEWHERE = ("apiVersion", "kind", "metadata", "status")
Schema = dict[str, Any]


def page(note: str) -> str:
    """Return the page."""
    parts = [_HEAD.format(note=note.format(source="the types in src/dra_gpu/api"))]
    for name, schema in schemas.schemas().items():
        if name == "manifest":
            continue
        driver, used_for = _FOR[name]
        found = _resolved(schema, schema)
        version = found["properties"]["apiVersion"]["enum"][0]
        of_driver = f", driver `{driver}`" if driver else ""
        parts.append(f"## {name}\n\n`apiVersion: {version}`{of_driver}. For {used_for}.\n\n")
        parts.append(f"{found.get('description', '')}\n\n")
        rows = list(_rows("", found, schema))
        parts.append(table(("Field", "May be", "Default", "Meaning"), rows) + "\n" if rows else "")
    return "".join(parts).rstrip() + "\n"


def _rows(path: str, schema: Schema, root: Schema) -> Iterator[tuple[str, str, str, str]]:
    for name, of_field in schema["properties"].items():
        if not path and name in _ELSEWHERE:
            continue
        found = _resolved(of_field, root)
        about = found.get("description", "")
        needed = name in schema.get("required", ())
        default = found.get("default")
        shown = "required" if needed else "" if default is None else code(json.dumps(default))
        if "properties" in found:
            yield code(path + name), "object", shown, about
            yield from _rows(f"{path}{name}.", found, root)
        else:
            yield code(path + name), _kind(found), shown, about


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Return a schema with what it refers to; what may also be null counts as what it may be else."""
    others = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(others) == 1:
        schema = _resolved(others[0], root) | {key: value for key, value in schema.items() if key != "anyOf"}
    if "$ref" in schema:
        referred = root["definitions"][schema["$ref"].rpartition("/")[2]]
        schema = _resolved(referred, root) | {key: value for key, value in schema.items() if key != "$ref"}
    return schema


def _kind(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(code(one) for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == ["string", "number"]:
        return "quantity"
    if schema.get("type") == "object":
        return f"map to {_kind(schema['additionalProperties'])}"
    if {"minimum", "maximum"} <= schema.keys():
        return f"{schema['type']}, {schema['minimum']} to {schema['maximum']}"
    return str(schema.get("type", "anything"))
