"""The definitions that a cluster gets are those of the types that read its objects."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
import yaml

from dra_gpu.api.claim_resize import ClaimResize, Growth, HeldProcess, NodeStatus, Target
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.validation import crds

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "deploy" / "crds.yaml"
DEFINITION = crds.definitions()["claimresizes.resource.dra-gpu.dev"]
VERSION = DEFINITION["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
ALL = Amounts(1, 2**30, 1, 1).wire()


def at(path):
    schema = SCHEMA
    for name in path.strip(".").split("."):
        schema = schema["properties"][name]
    return schema


def unknown(value, schema, path=""):
    """What of a value a structural schema would prune."""
    if isinstance(value, list):
        return [one for index, item in enumerate(value) for one in unknown(item, schema["items"], f"{path}[{index}]")]
    if not isinstance(value, dict):
        return []
    inner = schema.get("additionalProperties")
    known = schema.get("properties", {})
    return [
        one
        for name, item in value.items()
        for one in (
            unknown(item, inner or known[name], f"{path}.{name}")
            if inner or name in known or path == ".metadata"
            else [f"{path}.{name}"]
        )
    ]


def test_the_committed_file_is_what_the_command_writes():
    place = importlib.util.spec_from_file_location("crds_tool", ROOT / "tools" / "crds.py")
    tool = importlib.util.module_from_spec(place)
    place.loader.exec_module(tool)

    assert COMMITTED.read_text() == tool.render(), "run `make crds`"
    assert list(yaml.safe_load_all(COMMITTED.read_text())) == list(crds.definitions().values())


def test_nothing_that_the_driver_writes_is_pruned():
    status = msgspec.structs.replace(
        ClaimResize().status,
        allocated=ALL,
        wanted=ALL,
        permitted=ALL,
        free=ALL,
        target=Target("u", "gpu.nvidia.com", "n", "gpu-0-shared", "s"),
        growths=[Growth("c", "u", ALL)],
        node=NodeStatus(permitted=ALL, in_force=ALL, give_back=ALL, given_back=ALL, waiting_for=[HeldProcess(1)]),
    )
    written = msgspec.to_builtins(msgspec.structs.replace(ClaimResize(), status=status))

    assert unknown(written["status"], SCHEMA["properties"]["status"]) == []


def test_every_level_has_a_type_and_no_default_as_structural_schemas_want():
    def check(schema, path):
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        assert "default" not in schema, path
        assert "$ref" not in schema, path
        for name, one in schema.get("properties", {}).items():
            check(one, f"{path}.{name}")
        for name in ("items", "additionalProperties"):
            if name in schema:
                check(schema[name], f"{path}[]")

    check(SCHEMA, "")


def test_objects_are_selected_by_their_node():
    assert VERSION["selectableFields"] == [{"jsonPath": ".status.nodeName"}]
    assert at("status.nodeName")["type"] == "string"


@pytest.mark.parametrize("column", VERSION["additionalPrinterColumns"], ids=lambda one: one["name"])
def test_a_column_shows_a_field_that_is_there(column):
    path = column["jsonPath"]
    if path.startswith(".status.node.inForce."):
        path = ".status.node.inForce"

    assert path == ".metadata.creationTimestamp" or at(path)
