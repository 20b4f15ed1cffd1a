"""One namespace per test, and what a test does in it."""

import re
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab.api import Api, ApiError, path_of

from tests.e2e.harness.objects import REPORT_END
from tests.e2e.harness.waiting import PATIENCE, wait_until

Json = dict[str, Any]
_RESOURCE_V1 = "resource.k8s.io/v1"
#: On a busy machine the kubelet may hear of its pod before the node authorizer does, and is refused the claim; it comes
#: back after 60 to 90 s, or at once when the pod changes. Kubernetes' own race (Source: K8s v1.37
#: plugin/pkg/auth/authorizer/node), not the driver's, so that tests need not wait for it.
_AUTHORIZER_LAGGED = "no relationship found between node"
#: The scheduler counts a share twice between binding it and seeing it bound, and may then find no room for another. Its
#: pod is looked at again after five minutes only, since nothing that concerns it happens any more; a DeviceClass that
#: changes has the scheduler look at all such pods at once. (Source: K8s v1.37
#: pkg/scheduler/framework/plugins/dynamicresources, claimTracker.GatherAllocatedState and EventsToRegister)
_TOUCHED_CLASS = path_of(_RESOURCE_V1, "deviceclasses", "gpu.nvidia.com")
_ANNOTATION = "e2e.dra-gpu.dev/try-again"
_LOOK_SECONDS = 3.0
_COLLECTIONS = {
    "Pod": ("v1", "pods"),
    "ResourceClaim": (_RESOURCE_V1, "resourceclaims"),
    "ResourceClaimTemplate": (_RESOURCE_V1, "resourceclaimtemplates"),
}


@dataclass(frozen=True)
class Report:
    """What a container of `objects.REPORT` saw: NVML's list and the names in /dev."""

    uuids: tuple[str, ...]
    device_nodes: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> "Report":
        listed, _, rest = text.partition("---\n")
        devices = rest.partition(REPORT_END)[0].split()
        return cls(tuple(re.findall(r"\(UUID: (\S+?)\)", listed)), frozenset(devices))

    @property
    def gpu_minors(self) -> frozenset[int]:
        """The minor numbers of the GPUs whose device nodes are there."""
        found = (re.fullmatch(r"nvidia(\d+)", name) for name in self.device_nodes)
        return frozenset(int(match.group(1)) for match in found if match)


@dataclass(frozen=True)
class TestNamespace:
    """A namespace and the API it lies in."""

    __test__ = False

    api: Api
    name: str

    def create(self, *objects: Json) -> None:
        """Create objects in this namespace."""
        for body in objects:
            group_version, resource = _COLLECTIONS[body["kind"]]
            self.api.create(path_of(group_version, resource, namespace=self.name), body)

    def pod(self, name: str) -> Json:
        """Return a pod."""
        return self.api.get(self._pod(name))

    def claim(self, name: str) -> Json:
        """Return a ResourceClaim."""
        return self.api.get(path_of(_RESOURCE_V1, "resourceclaims", name, namespace=self.name))

    def claims(self) -> list[Json]:
        """Return all ResourceClaims of the namespace."""
        return self.api.items(path_of(_RESOURCE_V1, "resourceclaims", namespace=self.name))

    def allocated_devices(self, claim_name: str = "") -> list[str]:
        """Return the names of the devices allocated to one claim, or to all claims of the namespace, sorted."""
        claims = [self.claim(claim_name)] if claim_name else self.claims()
        return sorted(
            result["device"]
            for one in claims
            for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        )

    def wait_running(self, *names: str, seconds: float = PATIENCE) -> float:
        """Wait until the pods run with all containers; return the seconds it took; a failure tells their events."""
        began = time.monotonic()
        for name in names:
            try:
                wait_until(f"pod {name} running", _Running(self, name), seconds)
            except TimeoutError as error:
                raise AssertionError(f"{error}; {self._story(name)}") from error
        return time.monotonic() - began

    def wait_unschedulable(self, *names: str, seconds: float = PATIENCE) -> None:
        """Wait until the scheduler has looked at the pods and found no place for them."""
        for name in names:
            wait_until(f"pod {name} unschedulable", partial(self.unschedulable, name), seconds)

    def wait_event(self, name: str, reason: str, seconds: float = PATIENCE) -> str:
        """Wait until an object of this namespace has an event with that reason; return its message."""
        try:
            wait_until(f"event {reason} of {name}", lambda: bool(self.events(name, reason)), seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}; all events: {self.events(name)}") from error
        return self.events(name, reason)[0]

    def events(self, name: str, reason: str = "") -> list[str]:
        """Return the messages of the events of an object, of one reason or of all."""
        return [
            str(event["message"])
            for event in self.api.items(path_of("v1", "events", namespace=self.name))
            if event["involvedObject"].get("name") == name and reason in {"", event["reason"]}
        ]

    def claim_of(self, pod_name: str) -> Json:
        """Return the ResourceClaim of a pod's only claim, which may come from a template."""
        (status,) = self.pod(pod_name)["status"]["resourceClaimStatuses"]
        return self.claim(status["resourceClaimName"])

    def wait_gone(self, *names: str, seconds: float = PATIENCE) -> float:
        """Wait until the pods do not exist any more; return the seconds it took."""
        began = time.monotonic()
        for name in names:
            wait_until(f"pod {name} gone", partial(self._absent, name), seconds)
        return time.monotonic() - began

    def delete_pod(self, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete a pod; 0 seconds is what `kubectl delete --force` sends."""
        self.api.delete(self._pod(name), grace_seconds=grace_seconds)

    def delete_claim(self, name: str, seconds: float = PATIENCE) -> None:
        """Delete a ResourceClaim and wait until it has gone, which it does once nobody is entered as using it."""
        path = path_of(_RESOURCE_V1, "resourceclaims", name, namespace=self.name)
        self.api.delete(path)
        wait_until(f"claim {name} gone", lambda: not self.api.exists(path), seconds)

    def log(self, pod_name: str, container: str = "main") -> str:
        """Return what a container has printed."""
        return self.api.text(f"{self._pod(pod_name)}/log", container=container)

    def report(self, pod_name: str, container: str = "main", seconds: float = PATIENCE) -> Report:
        """Wait for the report that `objects.REPORT` prints, and return it."""
        wait_until(f"report of {pod_name}/{container}", lambda: REPORT_END in self.log(pod_name, container), seconds)
        return Report.parse(self.log(pod_name, container))

    def container_ids(self, pod_name: str) -> dict[str, tuple[str, int]]:
        """Return container name -> (id, restarts): equal before and after means that nobody touched the pod."""
        statuses = self.pod(pod_name)["status"]["containerStatuses"]
        return {status["name"]: (status["containerID"], status["restartCount"]) for status in statuses}

    def clean(self, seconds: float = PATIENCE) -> None:
        """Delete the pods, wait until their claims are released, then let the namespace go."""
        pods = path_of("v1", "pods", namespace=self.name)
        for item in self.api.items(pods):
            self.api.delete(f"{pods}/{item['metadata']['name']}", grace_seconds=1)
        wait_until(f"pods of {self.name} gone", lambda: not self.api.items(pods), seconds)
        wait_until(f"claims of {self.name} released", lambda: not self.allocated_devices(), seconds)
        self.api.delete(f"/api/v1/namespaces/{self.name}")

    def _pod(self, name: str) -> str:
        return path_of("v1", "pods", name, namespace=self.name)

    def _absent(self, name: str) -> bool:
        return not self.api.exists(self._pod(name))

    def runs(self, name: str) -> bool:
        """Tell whether a pod runs with all its containers."""
        status = self.pod(name).get("status", {})
        statuses = status.get("containerStatuses") or []
        return status.get("phase") == "Running" and all("running" in one.get("state", {}) for one in statuses)

    def unschedulable(self, name: str) -> bool:
        """Tell whether the scheduler found no place for a pod when it looked last."""
        conditions = self.pod(name).get("status", {}).get("conditions", [])
        return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)

    def has_lagged(self, name: str) -> bool:
        """Tell whether the kubelet was refused the pod's claim because the authorizer had not heard of the pod yet."""
        return any(_AUTHORIZER_LAGGED in message for message in self.events(name))

    def nudge(self, name: str, number: int) -> None:
        """Change a pod in a way that means nothing, so that the kubelet looks at it at once."""
        self.api.patch(self._pod(name), {"metadata": {"annotations": {_ANNOTATION: str(number)}}})

    def wake_scheduler(self, number: int) -> None:
        """Have the scheduler look again at the pods that it found no place for."""
        self.api.patch(_TOUCHED_CLASS, {"metadata": {"annotations": {_ANNOTATION: str(number)}}})

    def _story(self, name: str) -> str:
        """What the cluster says about a pod, for the message of a failed test."""
        try:
            status = self.pod(name).get("status", {})
        except ApiError as error:
            return str(error)
        events = self.api.items(path_of("v1", "events", namespace=self.name))
        told = [
            f"{event['reason']}: {event['message']}" for event in events if event["involvedObject"].get("name") == name
        ]
        conditions = [
            f"{one['type']}={one['status']} {one.get('message', '')}"
            for one in status.get("conditions", [])
            if one["status"] != "True"
        ]
        return f"phase {status.get('phase')}; {'; '.join(conditions)}; events: {' | '.join(told) or 'none'}"


class _Running:
    """Tells whether a pod runs; every few seconds sees to it that races of Kubernetes' own cost no minutes."""

    def __init__(self, namespace: TestNamespace, name: str) -> None:
        self._namespace = namespace
        self._name = name
        self._nudges = 0
        self._look_at = time.monotonic() + _LOOK_SECONDS

    def __call__(self) -> bool:
        if self._namespace.runs(self._name):
            return True
        if time.monotonic() > self._look_at:
            self._nudges += 1
            if self._namespace.unschedulable(self._name):
                self._namespace.wake_scheduler(self._nudges)
            elif self._namespace.has_lagged(self._name):
                self._namespace.nudge(self._name, self._nudges)
            self._look_at = time.monotonic() + _LOOK_SECONDS
        return False
