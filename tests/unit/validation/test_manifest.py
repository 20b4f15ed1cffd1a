"""Whole objects: their shape, their kind, and no input that does more than be told what is wrong with it."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.validation import manifest
from dra_gpu.validation.problem import Severity
from tests.unit.api.valid_configs import JSON
from tests.unit.validation.manifests import MPS, choice, claim, config, device_class, errors, problems, request, share


def test_an_unknown_field_is_an_error_in_a_file_and_a_warning_where_the_cluster_may_be_newer():
    document = claim(request(adminAcess=True))

    (problem,) = problems(document)
    assert problem.field == "spec.devices.requests[0].exactly.adminAcess"
    assert problem.remedy == "write adminAccess, or remove it"
    assert problem.severity is Severity.ERROR
    assert errors(document, newer_fields=Severity.WARNING) == []


def test_an_unknown_field_of_a_config_is_an_error_everywhere():
    assert errors(claim(request(), configs=[config(more=1)]), newer_fields=Severity.WARNING)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda spec: spec["devices"]["requests"][0].pop("name"), "spec.devices.requests[0].name"),
        (lambda spec: spec.pop("devices"), "spec.devices"),
        (lambda spec: spec["devices"].update(requests={}), "spec.devices.requests"),
        (
            lambda spec: spec["devices"]["requests"][0]["exactly"].update(count="2"),
            "spec.devices.requests[0].exactly.count",
        ),
        (lambda spec: spec["devices"]["config"][0]["opaque"].pop("driver"), "spec.devices.config[0].opaque.driver"),
        (
            lambda spec: spec["devices"]["config"][0]["opaque"].pop("parameters"),
            "spec.devices.config[0].opaque.parameters",
        ),
        (lambda spec: spec["devices"].update(config=[1]), "spec.devices.config[0]"),
    ],
)
def test_a_wrong_shape_is_told_by_its_field(change, field):
    document = claim(request(), configs=[config()])
    change(document["spec"])

    assert field in [problem.field for problem in problems(document)]


@pytest.mark.parametrize(
    "document",
    [
        None,
        1,
        "text",
        [],
        {},
        {"apiVersion": 1, "kind": 2},
        {"apiVersion": "v1", "kind": "Pod", "spec": {}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"},
        {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainClique"},
    ],
)
def test_other_kinds_are_none_of_our_business(document):
    assert manifest.check(document) is None


def test_a_report_names_its_object():
    assert (manifest.check(claim(request())).kind, manifest.check(claim(request())).name) == ("ResourceClaim", "team/c")
    generated = claim(request()) | {"metadata": {"generateName": "c-"}}
    assert manifest.check(generated).name == "c-*"
    assert manifest.check(claim(request()) | {"metadata": 5}).name == ""


BASES = [
    claim(request(), share("s"), configs=[config(requests=["r"], **MPS)]),
    claim(choice("r", ("a", "gpu.nvidia.com"), ("b", "mig.nvidia.com")), kind="ResourceClaimTemplate"),
    claim(share(), version="v1beta1", configs=[config("SharedGpuConfig")]),
    device_class("gpu.nvidia.com", config()),
]


def _places(value):
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _places(item)
    elif isinstance(value, list):
        yield value
        for item in value:
            yield from _places(item)


@st.composite
def _mutated(draw):
    value = copy.deepcopy(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(_places(value["spec"]))))
        if isinstance(place, list):
            place.append(draw(JSON))
        elif place and draw(st.booleans()):
            place[draw(st.sampled_from(sorted(place)))] = draw(JSON)
        else:
            place[draw(st.sampled_from(["count", "requests", "opaque", "exactly"]) | st.text(max_size=8))] = draw(JSON)
    return value


@given(_mutated())
def test_no_object_does_more_than_be_told_what_is_wrong_with_it(document):
    for problem in problems(document):
        assert problem.field
        assert problem.reason
        assert problem.remedy
        assert str(problem).isprintable() or "\\" in repr(str(problem))


@given(JSON)
def test_no_value_at_all_breaks_it(value):
    for kind in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass"):
        manifest.check({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": value, "spec": value})
        manifest.check({"apiVersion": "resource.k8s.io/v1beta1", "kind": kind, "spec": {"devices": value}})
