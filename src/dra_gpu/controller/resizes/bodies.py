"""The claim and the pod that stand in for a growth, as they are sent. Pure.

The claim asks for so much of one very device, by the class that the growing claim itself named, so that the same quota
counts. The pod carries it through the scheduler, on the node and before the pods that the workload's own pod would be
before; it never starts, and satisfies the strictest policy for pods that Kubernetes has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dra_gpu.api.claim_resize import GROWTH_LABEL, KIND, ClaimResize, Target
from dra_gpu.api.dra_gpu_v1alpha1 import API_VERSION
from dra_gpu.api.resource_v1 import Device, DeviceToleration, ResourceSlice
from dra_gpu.controller.resizes.objects import Claim, Pod
from dra_gpu.inventory.amounts import Amounts

_REQUEST: Final = "growth"
_USER: Final = 65532
# A namespace with a quota for processors or memory refuses pods that do not say how much they take.
_TINY: Final = {"cpu": "1m", "memory": "1Mi"}
#: What identifies a GPU, and a partition of one, among the devices of their class.
_OF_GPU: Final = ("uuid",)
_OF_PARTITION: Final = ("parentUUID", "profile", "placement")

Body = dict[str, Any]


class UnknownDeviceError(Exception):
    """The device is not published, or not told apart from others; says which."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a growth is asked for with.

    Attributes:
        device_class: that the claim itself named.
        expression: a condition in CEL that one device alone satisfies.
        tolerations: of the claim's own request.
    """

    device_class: str
    expression: str
    tolerations: tuple[DeviceToleration, ...] = ()


def device_in(slices: Iterable[ResourceSlice], target: Target) -> Device:
    """Return a device as it is published.

    Raises:
        UnknownDeviceError: it is not.
    """
    for one in slices:
        if (one.spec.driver, one.spec.pool.name) == (target.driver, target.pool):
            for device in one.spec.devices:
                if device.name == target.device:
                    return device
    raise UnknownDeviceError(f"{target.device} of node {target.pool} is not published")


def condition(device: Device, driver: str) -> str:
    """Return a condition in CEL that this device alone satisfies among those of its class.

    Raises:
        UnknownDeviceError: it does not say what would tell it apart.
    """
    names = _OF_PARTITION if "parentUUID" in device.attributes else _OF_GPU
    parts = []
    for name in names:
        attribute = device.attributes.get(name)
        if attribute is not None and attribute.string is not None:
            value = msgspec.json.encode(attribute.string).decode()
        elif attribute is not None and attribute.int_ is not None:
            value = str(attribute.int_)
        else:
            raise UnknownDeviceError(f"{device.name} has no attribute {name}, which tells it from others")
        parts.append(f'device.attributes["{driver}"].{name} == {value}')
    return " && ".join(parts)


def device_class(claim: Claim, request: str) -> str:
    """Return the class that a claim's request, `main` or `main/sub`, names."""
    main, _, sub = request.partition("/")
    for one in claim.spec.devices.requests:
        if one.name == main and one.exactly is not None:
            return one.exactly.device_class_name
        if one.name == main:
            return next((other.device_class_name for other in one.first_available if other.name == sub), "")
    return ""


def claim_body(resize: ClaimResize, claim_uid: str, name: str, wanted: Amounts, asked: Asked) -> Body:
    """Return the claim of a growth."""
    exactly: Body = {
        "deviceClassName": asked.device_class,
        "selectors": [{"cel": {"expression": asked.expression}}],
        "capacity": {"requests": wanted.wire()},
    }
    if asked.tolerations:
        exactly["tolerations"] = list(asked.tolerations)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": _metadata(resize, claim_uid, name),
        "spec": {"devices": {"requests": [{"name": _REQUEST, "exactly": exactly}]}},
    }


def pod_body(resize: ClaimResize, claim_uid: str, growth: Claim, workload: Pod | None, image: str) -> Body:
    """Return the pod that carries a growth through the scheduler."""
    name, node = growth.metadata.name, resize.status.node_name
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"nodeSelectorTerms": [term]}
    spec: Body = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resourceClaims": [{"name": _REQUEST, "resourceClaimName": name}],
        "containers": [
            {
                "name": _REQUEST,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "resources": {"requests": _TINY, "limits": _TINY, "claims": [{"name": _REQUEST}]},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    if workload is not None:
        spec |= {
            key: value
            for key, value in (
                ("tolerations", workload.spec.tolerations),
                ("priorityClassName", workload.spec.priority_class_name),
                ("schedulerName", workload.spec.scheduler_name),
            )
            if value
        }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(resize, claim_uid, name), "spec": spec}


def _metadata(resize: ClaimResize, claim_uid: str, name: str) -> Body:
    meta = resize.metadata
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": meta.name, "uid": meta.uid, "controller": True}
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": {GROWTH_LABEL: claim_uid},
        "ownerReferences": [owner],
    }
