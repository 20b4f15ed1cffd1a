"""What the API server itself refuses of a ClaimResize, by the definition of the kind, while nobody else looks."""

import pytest
from lab.api import ApiError, path_of

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Json

API = "resource.dra-gpu.dev/v1alpha1"
pytestmark = pytest.mark.budget(5)

GOOD: list[Json] = [
    {},
    {"capacity": {"computePercent": 40, "memory": "20Gi", "clients": "8", "nvlinkBandwidth": "100G"}},
    {"request": "main/small", "capacity": {"memory": 21474836480}},
    {"timeSlice": "Long"},
    {"mps": {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "10Gi"}},
]
BAD: list[tuple[Json, str]] = [
    ({"capacity": {"compute": 40}}, "the capacities of a share are computePercent, memory"),
    ({"capacity": {"computePercent": 0}}, "computePercent is a whole percentage of the SMs from 1 to 100"),
    ({"capacity": {"computePercent": "101"}}, "computePercent is a whole percentage of the SMs from 1 to 100"),
    ({"capacity": {"computePercent": "0.5"}}, "computePercent is a whole percentage of the SMs from 1 to 100"),
    ({"capacity": {"memory": "512Mi"}}, "memory is an amount of at least 1Gi"),
    ({"capacity": {"memory": "20 GB"}}, "should match"),
    ({"capacity": {"memory": True}}, "must be of type"),
    ({"capacity": {"clients": 0}}, "clients is a whole number of processes"),
    ({"timeSlice": "Longer"}, "Unsupported value"),
    ({"mps": {"activeThreadPercentage": 0}}, "greater than or equal to 1"),
    ({"mps": {"pinnedDeviceMemoryLimit": "1Ki"}}, "at least 1Mi"),
    ({"timeSlice": "Long", "mps": {}}, "timeSlice and mps exclude each other"),
    ({"timeSlice": "Long", "capacity": {"memory": "20Gi"}}, "a device is one of them"),
]


def collection(namespace: TestNamespace) -> str:
    """Where the ClaimResizes of a namespace lie."""
    return path_of(API, "claimresizes", namespace=namespace.name)


def resize(name: str, spec: Json) -> Json:
    """A ClaimResize."""
    return {"apiVersion": API, "kind": "ClaimResize", "metadata": {"name": name}, "spec": spec}


def test_what_can_be_done_is_taken_and_what_cannot_is_refused_with_the_reason(
    cluster: Cluster, namespace: TestNamespace
) -> None:
    path = collection(namespace)
    for number, spec in enumerate(GOOD):
        assert cluster.api.create(path, resize(f"good-{number}", spec))["spec"] == spec
    for spec, reason in BAD:
        with pytest.raises(ApiError) as refusal:
            cluster.api.create(path, resize("bad", spec))
        assert reason in refusal.value.message, spec


def test_the_request_stays_and_a_status_is_no_part_of_the_spec(cluster: Cluster, namespace: TestNamespace) -> None:
    path = collection(namespace)
    cluster.api.create(path, resize("one", {"request": "a"}) | {"status": {"phase": "Applied"}})

    with pytest.raises(ApiError) as refusal:
        cluster.api.patch(f"{path}/one", {"spec": {"request": "b"}})
    changed = cluster.api.patch(f"{path}/one", {"spec": {"capacity": {"memory": "2Gi"}}, "status": {"phase": "Ended"}})

    assert "the request cannot be changed" in refusal.value.message
    assert changed["metadata"]["generation"] == 2
    assert "status" not in changed


def test_objects_are_selected_by_their_node(cluster: Cluster, namespace: TestNamespace) -> None:
    path = collection(namespace)
    for name in ("here", "there"):
        cluster.api.create(path, resize(name, {}))
        cluster.api.patch(f"{path}/{name}/status", {"status": {"nodeName": name}})

    found = cluster.api.items(path, fieldSelector="status.nodeName=here")

    assert [one["metadata"]["name"] for one in found] == ["here"]
