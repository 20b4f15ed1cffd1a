"""The schemas that editors read are those of the types that read manifests."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given

from dra_gpu.api import opaque
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.validation import schemas
from tests.unit.api.valid_configs import MUTATED, VALID
from tests.unit.validation.json_schema import valid
from tests.unit.validation.manifests import MPS, choice, claim, config, device_class, request, share

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "docs" / "schemas"
SCHEMAS = schemas.schemas()
MANIFEST = SCHEMAS["manifest"]


def test_the_committed_schemas_are_what_the_command_writes():
    committed = {path.stem: path.read_text() for path in COMMITTED.glob("*.json")}

    assert committed == {name: schemas.render(schema) for name, schema in SCHEMAS.items()}


def test_every_kind_has_one():
    kinds = {kind for known in opaque.KINDS.values() for _, kind in known}

    assert set(SCHEMAS) == kinds | {"ClaimResize", "ComputeDomain", "ComputeDomain-v1beta2", "manifest"}


@pytest.mark.parametrize(("driver", "value"), VALID)
def test_a_valid_config_satisfies_its_schema(driver, value):
    assert valid(value, SCHEMAS[value["kind"]])
    assert valid(claim(request(), configs=[{"opaque": {"driver": driver, "parameters": value}}]), MANIFEST)


@given(MUTATED)
def test_whatever_is_accepted_satisfies_the_schema_and_what_has_a_wrong_shape_does_not(value):
    for driver, known in opaque.KINDS.items():
        for (_, kind), wanted in known.items():
            if value.get("kind") != kind:
                continue
            try:
                opaque.read(driver, value)
            except InvalidConfigError as error:
                shape_alone = not any("apiVersion" in str(one) for one in error.problems)
                if shape_alone and any(one.unknown_field for one in error.problems):
                    assert not valid(value, SCHEMAS[kind])
            else:
                assert valid(value, SCHEMAS[kind])
                assert wanted.__name__ == kind


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_satisfies_the_schema_of_manifests(path):
    for document in yaml.safe_load_all(path.read_text()):
        assert valid(document, MANIFEST)


@pytest.mark.parametrize(
    "document",
    [
        claim(request(), share("s"), choice("c", ("a", "gpu.nvidia.com")), configs=[config(**MPS)]),
        claim(request(), kind="ResourceClaimTemplate", version="v1beta2"),
        claim(request(), version="v1beta1", configs=[config("Theirs", driver="example.com", version="example.com/v1")]),
        device_class("c", config()),
    ],
)
def test_claims_templates_and_classes_satisfy_it(document):
    assert valid(document, MANIFEST)


@pytest.mark.parametrize(
    "document",
    [
        claim(request(adminAcess=True)),
        claim(request(), version="v1beta1") | {"spec": claim(request())["spec"]},
        claim(request(), configs=[config(sharing={"strategy": "Magic"})]),
        claim(request(), configs=[config("Foo")]),
        claim(share(memory="lots")),
        claim(
            request(), configs=[config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 0}})]
        ),
        device_class("c", config(), extendedResource="x"),
    ],
)
def test_what_is_misspelt_does_not(document):
    assert not valid(document, MANIFEST)


def undescribed(schema):
    """Fields of which an editor could say nothing; kinds, and what is Kubernetes' own, say it themselves."""
    for name, definition in schema["definitions"].items():
        for field, about in definition.get("properties", {}).items():
            told = "description" in about or "$ref" in json.dumps(about)
            if not told and field not in {"apiVersion", "kind", "metadata", "status"}:
                yield f"{name}.{field}"


@pytest.mark.parametrize("name", [one for one in SCHEMAS if one != "manifest"])
def test_every_field_that_a_user_writes_says_what_it_means(name):
    assert list(undescribed(SCHEMAS[name])) == []
