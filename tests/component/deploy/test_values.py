"""The values: each is described, and one that does not exist, or is not of its kind, is refused."""

import json

import pytest
import yaml

from tests.component.deploy.rendering import CHART, template
from tests.component.go_programs import builds_go

pytestmark = builds_go
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def described(schema, path=""):
    """Yield every value of the schema by its path."""
    for name, one in schema.get("properties", {}).items():
        yield f"{path}{name}", one
        yield from described(one, f"{path}{name}.")


def given(values, schema, path=""):
    """Yield every value of values.yaml by its path, down to where the schema leaves the names to the user."""
    for name, one in values.items():
        yield f"{path}{name}"
        inner = schema.get("properties", {}).get(name, {})
        if isinstance(one, dict) and "properties" in inner:
            yield from given(one, inner, f"{path}{name}.")


def test_every_value_has_a_default_and_a_description():
    optional = {"global", "extraEdits.env", "extraEdits.mounts", "extraEdits.deviceNodes"}
    optional |= {"kubeletPlugin.containers.gpus.resources.limits"}
    names = {name for name, _ in described(SCHEMA)}

    assert names - optional == set(given(VALUES, SCHEMA))
    assert [
        name for name, one in described(SCHEMA) if not one.get("description") and "updateStrategy" not in name
    ] == []


def test_every_object_whose_names_are_the_charts_is_closed():
    open_ones = [
        name for name, one in described(SCHEMA) if "properties" in one and one.get("additionalProperties") is not False
    ]

    assert open_ones == []
    assert SCHEMA["additionalProperties"] is False


@pytest.mark.parametrize(
    "values",
    [
        {"view": ["gpu"]},
        {"kubeletPlugin": {"toleration": []}},
        {"kubeletPlugin": {"containers": {"gpu": {}}}},
        {"vendors": {"nvida": {"enabled": True}}},
        {"views": ["gpus"]},
        {"views": []},
        {"views": "gpu,shared"},
        {"image": {"tag": "latest"}},
        {"image": {"digest": "5e5e"}},
        {"kubeletRoot": "var/lib/kubelet"},
        {"kubeletRoot": "/var/lib/kubelet, type: Socket}"},
        {"migProfiles": ["1g10gb"]},
        {"consumableShares": "some"},
        {"consumableShares": 0},
        {"logLevel": "4"},
        {"numaLists": "yes"},
        {"health": {"evict": "always"}},
        {"health": {"holdOffSeconds": 0}},
        {"health": {"ignoreXids": ["abc"]}},
        {"health": {"ignoreXids": [1000]}},
        {"health": {"xidPolicy": {"94": "evict"}}},
        {"health": {"xidPolicy": {"abc": "fatal"}}},
        {"health": {"xidpolicy": {}}},
        {"expectedGpus": -1},
        {"rescanPeriodSeconds": 0},
        {"extraEdits": {"hooks": []}},
        {"extraEdits": {"env": ["NAME"]}},
        {"mps": {"resources": {"limits": {"memory": "1Gi"}}}},
        {"mps": {"updateStrategy": {"type": "RollingUpdate"}}},
        {"kubeletPlugin": {"terminationGracePeriodSeconds": 5}},
        {"kubeletPlugin": {"terminationGracePeriodSeconds": 2000000}},
        {"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": "200%"}}}},
        {"kubeletPlugin": {"metrics": {"path": "/readyz"}}},
        {"kubeletPlugin": {"podLabels": {"team": "of GPUs"}}},
        {"kubeletPlugin": {"nodeSelector": {"no key": "a"}}},
        {"vendors": {"nvidia": {"nodeLabels": ["nvidia.com/gpu.present=true"]}}},
        {"image": {"repository": "registry.example.com/driver:v1"}},
        {"image": {"repository": "https://registry.example.com/driver"}},
        {"imagePullSecrets": [{"name": ""}]},
        {"kubeletRoot": "/"},
        {"host": {"containerDriverRoot": "/"}},
        {"gpuTimeoutSeconds": 1e30},
        {"controller": {"metrics": {"port": 80}}},
        {"controller": {"resources": {"limits": {"memory": "lots"}}}},
        {"webhook": {"tls": {"certManager": {"issuerName": "our issuer"}}}},
    ],
    ids=str,
)
def test_a_value_that_means_nothing_is_refused(values):
    made = template(values)

    assert made.returncode != 0
    assert "don't meet the specifications of the schema" in made.stderr
