"""Kubernetes objects as tests need them: claims, templates, pods that report what they see. Pure."""

from dataclasses import dataclass, field
from typing import Any

from lab.images import BUSYBOX

Json = dict[str, Any]

#: Written by `REPORT` at the end of its output.
REPORT_END = "--- end of report"
#: Prints the GPUs that NVML lists and the device nodes, then stays; goes at once when told to. One stream for all: a
#: container's stdout and stderr reach its log in no order.
REPORT = (
    f"exec 2>&1; nvidia-smi -L; echo ---; ls /dev; echo '{REPORT_END}'; trap 'exit 0' TERM; while :; do sleep 0.2; done"
)


def device_request(
    name: str = "gpu",
    device_class: str = "gpu.nvidia.com",
    *,
    count: int = 1,
    all_devices: bool = False,
    admin: bool = False,
    selector: str = "",
    capacity: dict[str, str] | None = None,
) -> Json:
    """One request of a claim: `count` devices of a class, or all of them, and how much of each."""
    exactly: Json = {"deviceClassName": device_class}
    exactly |= {"allocationMode": "All"} if all_devices else {"allocationMode": "ExactCount", "count": count}
    if admin:
        exactly["adminAccess"] = True
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def first_available(name: str, *alternatives: Json) -> Json:
    """One request of a claim that the first of several requests meets; they have the names of the alternatives."""
    return {"name": name, "firstAvailable": [{"name": one["name"], **one["exactly"]} for one in alternatives]}


def claim(name: str, *requests: Json, parameters: Json | None = None) -> Json:
    """A ResourceClaim; `parameters` are the driver's own, for all of its requests."""
    devices: Json = {"requests": list(requests or (device_request(),))}
    if parameters:
        devices["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def claim_template(name: str, *requests: Json, parameters: Json | None = None) -> Json:
    """A ResourceClaimTemplate."""
    inner = claim(name, *requests, parameters=parameters)["spec"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": inner},
    }


@dataclass(frozen=True)
class Container:
    """A container: its shell script, the pod claims it uses as (pod claim, request or ""), its extended resources."""

    name: str = "main"
    script: str = REPORT
    claims: tuple[tuple[str, str], ...] = (("gpu", ""),)
    limits: dict[str, str] = field(default_factory=dict)

    def manifest(self) -> Json:
        resources: Json = {"limits": self.limits} if self.limits else {}
        if self.claims:
            resources["claims"] = [
                {"name": claim_name} | ({"request": request} if request else {}) for claim_name, request in self.claims
            ]
        return {
            "name": self.name,
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", self.script],
            "resources": resources,
        }


def pod(
    name: str,
    *containers: Container,
    claims: dict[str, str] | None = None,
    templates: dict[str, str] | None = None,
    grace_seconds: int = 2,
    restart: str = "Never",
    init: tuple[Container, ...] = (),
) -> Json:
    """A pod; `claims` and `templates` give the name within the pod -> the name of the ResourceClaim or template."""
    pod_claims = [{"name": key, "resourceClaimName": value} for key, value in (claims or {}).items()]
    pod_claims += [{"name": key, "resourceClaimTemplateName": value} for key, value in (templates or {}).items()]
    spec: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "restartPolicy": restart,
        "containers": [one.manifest() for one in containers or (Container(),)],
        "resourceClaims": pod_claims,
    }
    if init:
        spec["initContainers"] = [one.manifest() for one in init]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
