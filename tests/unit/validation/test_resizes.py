"""What is wrong with a ClaimResize, before any claim is looked at."""

import pytest

from dra_gpu.validation import manifest
from dra_gpu.validation.resizes import _LIMITS
from tests.unit.validation.test_crds import SCHEMA


def resize(**spec):
    return {
        "apiVersion": "resource.dra-gpu.dev/v1alpha1",
        "kind": "ClaimResize",
        "metadata": {"name": "training", "namespace": "team-a"},
        "spec": spec,
    }


def problems(document):
    return [(one.field, one.reason, one.remedy) for one in manifest.check(document).problems]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"capacity": {"computePercent": 40, "memory": "20Gi", "clients": "8", "nvlinkBandwidth": "100G"}},
        {"request": "main/small", "capacity": {"memory": 21474836480}},
        {"timeSlice": "Long"},
        {"mps": {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "10Gi"}},
    ],
)
def test_what_can_be_done_has_no_problems(spec):
    assert problems(resize(**spec)) == []


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"capacity": {"compute": 40}}, "spec.capacity['compute']", "is no capacity of a share"),
        ({"capacity": {"computePercent": 101}}, "spec.capacity['computePercent']", "is 101"),
        ({"capacity": {"computePercent": "0.5"}}, "spec.capacity['computePercent']", "is 0.5"),
        ({"capacity": {"computePercent": "40%"}}, "spec.capacity['computePercent']", "is '40%', which is no quantity"),
        ({"capacity": {"memory": "20G B"}}, "spec.capacity['memory']", "is '20G B', which is no quantity"),
        ({"capacity": {"memory": "100Mi"}}, "spec.capacity['memory']", "is 100Mi"),
        ({"capacity": {"memory": True}}, "spec.capacity['memory']", "is true"),
        ({"capacity": {"clients": 0}}, "spec.capacity['clients']", "is 0"),
        ({"capacty": {}}, "spec.capacty", "is not a known field"),
        ({"timeSlice": "Longer"}, "spec.timeSlice", "is 'Longer'"),
        ({"mps": {"activeThreadPercentage": 0}}, "spec.mps.activeThreadPercentage", "is 0"),
        ({"mps": {"pinnedDeviceMemoryLimit": "1Ki"}}, "spec.mps.pinnedDeviceMemoryLimit", "is '1Ki'"),
    ],
)
def test_what_cannot_be_is_named_with_the_field(spec, field, reason):
    ((found, why, remedy),) = problems(resize(**spec))

    assert (found, why) == (field, reason)
    assert remedy


def test_shares_and_whole_gpus_exclude_each_other():
    both = problems(resize(capacity={"memory": "20Gi"}, timeSlice="Long", mps={"activeThreadPercentage": 50}))

    assert [field for field, _, _ in both] == ["spec.capacity", "spec.mps"]


def test_the_definition_of_the_kind_has_the_same_limits():
    rules = " ".join(
        one["rule"] for one in SCHEMA["properties"]["spec"]["properties"]["capacity"]["x-kubernetes-validations"]
    )

    for name, (least, most, _) in _LIMITS.items():
        assert f"quantity(string(self['{name}'])).asInteger() >= {least}" in rules
        assert most is None or f"quantity(string(self['{name}'])).asInteger() <= {most}" in rules
