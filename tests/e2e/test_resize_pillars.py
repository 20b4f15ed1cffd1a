"""What Kubernetes itself does, as far as moving capacity between claims stands on it; no driver takes part.

A device of a driver that does not exist, on a node that nobody serves: pods are bound to it and never start, and what
is left is the scheduler and the controller of claims, as every cluster has them.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from lab.api import Api, path_of

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Json, claim, device_request, pod
from tests.e2e.harness.slices import SLICES
from tests.e2e.harness.waiting import wait_until

_RESOURCE = "resource.k8s.io/v1"
_CLASSES = path_of(_RESOURCE, "deviceclasses")
_NODES = path_of("v1", "nodes")
DRIVER = "pillars.dra-gpu.dev"
#: Who holds a claim beside its pods; that no such object exists shows that nobody looks for it.
ENTRY = {
    "apiGroup": "resource.dra-gpu.dev",
    "resource": "claimresizes",
    "name": "training",
    "uid": "33333333-3333-4333-8333-333333333333",
}
pytestmark = pytest.mark.budget(15)


def percents(claims: dict[str, Json]) -> dict[str, str]:
    """Return what each claim was allocated of the device's compute."""
    return {
        name: result["consumedCapacity"]["computePercent"]
        for name, one in claims.items()
        for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    }


@dataclass(frozen=True)
class OneDevice:
    """A namespace, and a node with one device that claims share."""

    namespace: TestNamespace
    name: str

    @property
    def api(self) -> Api:
        """A client with all rights."""
        return self.namespace.api

    def make(self) -> None:
        """Make the node, its device with 100 %, and the class that the device is in."""
        self.api.create(_NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        room = {"pods": "110", "cpu": "8", "memory": "8Gi"}
        self.api.patch(f"{_NODES}/{self.name}/status", {"status": {"capacity": room, "allocatable": room}})
        selector = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].on == '{self.name}'"
        self.api.create(
            _CLASSES,
            {
                "apiVersion": _RESOURCE,
                "kind": "DeviceClass",
                "metadata": {"name": self.name},
                "spec": {"selectors": [{"cel": {"expression": selector}}]},
            },
        )
        self.api.create(SLICES, self._slice("100"))

    def remove(self) -> None:
        """Remove everything; nobody else would end pods on this node."""
        for one in self.api.items(path_of("v1", "pods", namespace=self.namespace.name)):
            self.namespace.delete_pod(one["metadata"]["name"], grace_seconds=0)
        for path in (f"{SLICES}/{self.name}", f"{_CLASSES}/{self.name}", f"{_NODES}/{self.name}"):
            self.api.delete(path)
        for one in self.namespace.claims():
            self.free(one["metadata"]["name"], allocation=None)

    def publish(self, percent: str) -> None:
        """Publish the device with another value, in place."""
        spec = self._slice(percent)["spec"]
        self.api.patch(f"{SLICES}/{self.name}", {"spec": {"devices": spec["devices"]}})

    def want(self, name: str, percent: str, *, uuid: str = "") -> None:
        """Create a claim for so much of the device, by whatever attribute, and a pod that needs it."""
        selector = f"device.attributes['{DRIVER}'].uuid == '{uuid}'" if uuid else ""
        request = device_request("gpu", self.name, selector=selector, capacity={"computePercent": percent})
        wants = pod(name, claims={"gpu": name}, grace_seconds=0)
        wants["spec"]["tolerations"] = [{"operator": "Exists"}]
        self.namespace.create(claim(name, request), wants)

    def wait_allocated(self, *names: str) -> None:
        """Wait until claims have what they asked for, and their pods a node."""
        for name in names:
            wait_until(f"claim {name} allocated", partial(self._has_device, name))
            wait_until(f"pod {name} bound", partial(self._is_bound, name))

    def allocated(self) -> dict[str, str]:
        """Return what every claim of the namespace has."""
        return percents({one["metadata"]["name"]: one for one in self.namespace.claims()})

    def reserve(self, name: str) -> None:
        """Enter somebody who is no pod among those for whom a claim is reserved."""
        status = self.namespace.claim(name)["status"]
        self._set_status(name, {"reservedFor": [*status.get("reservedFor", ()), ENTRY]})

    def free(self, name: str, **more: None) -> None:
        """Take out everybody who is entered in a claim; with `allocation=None` what it has goes in the same write."""
        self._set_status(name, {"reservedFor": None, **more})

    def users(self, name: str) -> list[str]:
        """Return the kinds of those for whom a claim is reserved."""
        return [one["resource"] for one in self.namespace.claim(name)["status"].get("reservedFor", ())]

    def delete_claim(self, name: str) -> None:
        """Ask for the deletion of a claim, without waiting for it."""
        self.api.delete(path_of(_RESOURCE, "resourceclaims", name, namespace=self.namespace.name))

    def exists(self, name: str) -> bool:
        """Tell whether a claim is there."""
        return self.api.exists(path_of(_RESOURCE, "resourceclaims", name, namespace=self.namespace.name))

    def _has_device(self, name: str) -> bool:
        return bool(percents({name: self.namespace.claim(name)}))

    def _is_bound(self, name: str) -> bool:
        return bool(self.namespace.pod(name)["spec"].get("nodeName") == self.name)

    def _set_status(self, name: str, status: Json) -> None:
        path = path_of(_RESOURCE, "resourceclaims", name, namespace=self.namespace.name, subresource="status")
        self.api.patch(path, {"status": status})

    def _slice(self, percent: str) -> Json:
        policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
        device = {
            "name": "gpu-0-shared",
            "allowMultipleAllocations": True,
            "attributes": {"uuid": {"string": f"GPU-{self.name}"}, "on": {"string": self.name}},
            "capacity": {"computePercent": {"value": percent, "requestPolicy": policy}},
        }
        pool = {"name": self.name, "generation": 1, "resourceSliceCount": 1}
        return {
            "apiVersion": _RESOURCE,
            "kind": "ResourceSlice",
            "metadata": {"name": self.name},
            "spec": {"driver": DRIVER, "nodeName": self.name, "pool": pool, "devices": [device]},
        }


@pytest.fixture
def device(cluster: Cluster, namespace: TestNamespace) -> Iterator[OneDevice]:
    """A device that two claims share, of 60 % and 40 %."""
    assert cluster.api.ready()
    made = OneDevice(namespace, f"pillar-{secrets.token_hex(4)}")
    try:
        made.make()
        made.want("training", "60")
        made.wait_allocated("training")
        made.want("beside", "40")
        made.wait_allocated("beside")
        yield made
    finally:
        made.remove()


def test_an_entry_of_a_kind_of_ours_keeps_a_claim_allocated_without_a_pod_until_it_is_taken_out(
    device: OneDevice,
) -> None:
    device.reserve("training")
    device.delete_claim("training")
    device.namespace.delete_pod("training", grace_seconds=0)
    wait_until("the pod's own entry gone", lambda: device.users("training") == ["claimresizes"])
    device.want("next", "60")
    device.namespace.wait_unschedulable("next")

    assert device.allocated() == {"training": "60", "beside": "40"}
    assert device.namespace.claim("training")["metadata"]["deletionTimestamp"]

    device.free("training")

    wait_until("the claim gone", lambda: not device.exists("training"))
    device.wait_allocated("next")


def test_a_claim_that_nobody_deletes_keeps_its_allocation_though_the_last_entry_went_unless_both_go_at_once(
    device: OneDevice,
) -> None:
    """Kubernetes takes the allocation away only where it removes the last entry itself."""
    device.reserve("training")
    device.namespace.delete_pod("training", grace_seconds=0)
    wait_until("the pod's own entry gone", lambda: device.users("training") == ["claimresizes"])
    device.want("next", "60")

    device.free("training")

    device.namespace.wait_unschedulable("next")
    assert device.users("training") == []
    assert device.allocated() == {"training": "60", "beside": "40"}

    device.free("training", allocation=None)

    device.wait_allocated("next")
    assert device.allocated() == {"next": "60", "beside": "40"}
    device.delete_claim("training")
    wait_until("the claim gone", lambda: not device.exists("training"))


def test_what_is_published_beyond_the_hardware_is_given_away_and_what_is_published_no_more_is_not(
    device: OneDevice,
) -> None:
    device.want("more", "40")
    device.namespace.wait_unschedulable("more")

    device.publish("140")

    device.wait_allocated("more")
    device.want("none-left", "1")
    device.namespace.wait_unschedulable("none-left")

    device.publish("100")

    device.namespace.wait_unschedulable("none-left")
    assert device.allocated() == {"training": "60", "beside": "40", "more": "40"}
    device.namespace.delete_pod("more", grace_seconds=0)
    wait_until("what was lent is back", lambda: "more" not in device.allocated())
    device.want("late", "1")
    device.namespace.wait_unschedulable("late", "none-left")


def test_a_placeholder_gets_exactly_its_share_of_the_device_that_it_names_and_its_claim_outlives_it(
    device: OneDevice,
) -> None:
    device.namespace.delete_pod("beside", grace_seconds=0)
    wait_until("what it had is free", lambda: "beside" not in device.allocated())

    device.want("growth", "25", uuid=f"GPU-{device.name}")
    device.wait_allocated("growth")
    device.reserve("growth")
    device.namespace.delete_pod("growth", grace_seconds=0)
    wait_until("the placeholder's own entry gone", lambda: device.users("growth") == ["claimresizes"])

    assert device.allocated() == {"training": "60", "growth": "25"}
    device.want("too-much", "16")
    device.namespace.wait_unschedulable("too-much")
    device.want("fits", "15")
    device.wait_allocated("fits")
    device.delete_claim("growth")
    device.free("growth")
    wait_until("the growth gone", lambda: not device.exists("growth"))
    device.wait_allocated("too-much")
