"""CustomResourceDefinitions of the kinds that the API server does not have by itself, from the types that read them.

Promises: what this driver writes fits them, no field of the types is missing, and what can be said of one object alone
is refused by the API server before anything happens. Source of the format: Kubernetes v1.37, structural schemas of
apiextensions.k8s.io/v1.
"""

from collections.abc import Mapping
from typing import Any, Final

from dra_gpu.api import claim_resize, dra_gpu_v1alpha1
from dra_gpu.api.claim_resize import ClaimResize
from dra_gpu.inventory import capacities
from dra_gpu.validation import schemas

Schema = dict[str, Any]
LONGEST_QUANTITY: Final = 64
_NAMES: Final = (
    capacities.COMPUTE_PERCENT,
    capacities.MEMORY,
    capacities.CLIENTS,
    capacities.NVLINK_BANDWIDTH,
)
_QUANTITY: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$"
_LEFT_OUT: Final = ("title", "default", "$schema")


def definitions() -> dict[str, Schema]:
    """Return every definition by its name."""
    made = (_claim_resize(),)
    return {one["metadata"]["name"]: one for one in made}


def _claim_resize() -> Schema:
    (root,), named = schemas.components([ClaimResize])
    schema = _structural(root, named)
    properties = schema["properties"]
    properties |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    spec = properties["spec"]
    spec["x-kubernetes-validations"] = _SPEC_RULES
    spec["properties"]["capacity"] |= {"maxProperties": len(_NAMES), "x-kubernetes-validations": _CAPACITY_RULES}
    spec["properties"]["request"] |= {"minLength": 1, "maxLength": 127}
    spec["properties"]["mps"]["properties"]["activeThreadPercentage"] |= {"minimum": 1, "maximum": 100}
    spec["properties"]["mps"]["properties"]["pinnedDeviceMemoryLimit"] |= {
        "maxLength": LONGEST_QUANTITY,
        "pattern": _QUANTITY,
    }
    spec["properties"]["mps"]["x-kubernetes-validations"] = _MPS_RULES
    version = dra_gpu_v1alpha1.API_VERSION.rpartition("/")[2]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{claim_resize.PLURAL}.{claim_resize.GROUP}"},
        "spec": {
            "group": claim_resize.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": claim_resize.KIND,
                "listKind": f"{claim_resize.KIND}List",
                "plural": claim_resize.PLURAL,
                "singular": claim_resize.KIND.lower(),
                "categories": ["gpu"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema | {"required": ["spec"]}},
                    "subresources": {"status": {}},
                    "selectableFields": [{"jsonPath": ".status.nodeName"}],
                    "additionalPrinterColumns": _COLUMNS,
                }
            ],
        },
    }


_SPEC_RULES: Final = [
    {
        "rule": "!has(oldSelf.request) || (has(self.request) && self.request == oldSelf.request)",
        "message": "the request cannot be changed: delete the ClaimResize, wait until it is gone, and make it anew",
        "fieldPath": ".request",
    },
    {
        "rule": "!(has(self.timeSlice) && has(self.mps))",
        "message": "timeSlice and mps exclude each other: a GPU is shared by time slices or by MPS",
        "fieldPath": ".mps",
    },
    {
        "rule": "!(has(self.capacity) && size(self.capacity) > 0 && (has(self.timeSlice) || has(self.mps)))",
        "message": "capacity is of a share, timeSlice and mps are of a whole GPU or partition: a device is one of them",
        "fieldPath": ".capacity",
    },
]
_CAPACITY_RULES: Final = [
    {
        "rule": f"self.all(name, name in {list(_NAMES)})".replace('"', "'"),
        "message": f"the capacities of a share are {', '.join(_NAMES)}",
    },
    *(
        {
            "rule": f"!('{name}' in self) || quantity(string(self['{name}'])).isInteger()"
            f" && quantity(string(self['{name}'])).asInteger() >= {least}"
            + (f" && quantity(string(self['{name}'])).asInteger() <= {most}" if most else ""),
            "message": f"{name} is {text}",
        }
        for name, least, most, text in (
            (capacities.COMPUTE_PERCENT, 1, 100, "a whole percentage of the SMs from 1 to 100"),
            (capacities.MEMORY, 2**30, None, "an amount of at least 1Gi in whole bytes, such as 20Gi"),
            (capacities.CLIENTS, 1, None, "a whole number of processes, at least 1"),
            (capacities.NVLINK_BANDWIDTH, 0, None, "a whole number of bytes per second"),
        )
    ),
]
_MPS_RULES: Final = [
    {
        "rule": "!has(self.pinnedDeviceMemoryLimit) || quantity(self.pinnedDeviceMemoryLimit)"
        ".compareTo(quantity('1Mi')) >= 0",
        "message": "pinnedDeviceMemoryLimit is at least 1Mi, the smallest limit of MPS",
    },
]
_COLUMNS: Final = [
    {"name": name, "type": "string", "jsonPath": path, "description": about} | extra
    for name, path, about, extra in (
        ("Phase", ".status.phase", "How far it is.", {}),
        ("Compute", ".status.node.inForce.computePercent", "Percent of the SMs that are in force.", {}),
        ("Memory", ".status.node.inForce.memory", "Memory that is in force.", {}),
        ("Node", ".status.nodeName", "Where the claim's device is.", {"priority": 1}),
        ("Message", ".status.message", "Why it is not as wanted.", {"priority": 1}),
    )
] + [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]


def _structural(schema: Mapping[str, Any], named: Mapping[str, Schema]) -> Schema:
    """Return a schema without references, unions and defaults, each level with its type."""
    found = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    if "$ref" in found:
        return _structural(named[found.pop("$ref").rpartition("/")[2]], named) | found
    if "anyOf" in found:
        choices = [one for one in found.pop("anyOf") if one.get("type") != "null"]
        if len(choices) == 1:
            return _structural(choices[0], named) | found
        assert {one["type"] for one in choices} == {"integer", "string"}
        return found | {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY,
            "maxLength": LONGEST_QUANTITY,
        }
    if "enum" in found:
        return found | {"type": "string", "enum": list(found["enum"])}
    match found.get("type"):
        case "object":
            found.pop("required", None)
            if "properties" in found:
                found["properties"] = {
                    name: _structural(one, named) for name, one in sorted(found["properties"].items())
                }
            if isinstance(found.get("additionalProperties"), dict):
                found["additionalProperties"] = _structural(found["additionalProperties"], named)
        case "array":
            found["items"] = _structural(found["items"], named)
        case "integer":
            found["format"] = "int64"
    return found
