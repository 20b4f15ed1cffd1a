"""The claim and the pod that stand in for a growth."""

import pytest

from dra_gpu.api.claim_resize import ClaimResize, ClaimResizeMeta, ClaimResizeStatus, Target
from dra_gpu.api.resource_claim_v1 import (
    CapacityRequirements,
    DeviceClaim,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from dra_gpu.api.resource_v1 import (
    Device,
    DeviceAttribute,
    DeviceToleration,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_gpu.controller.resizes import bodies, objects
from dra_gpu.controller.resizes.objects import Claim, Meta, Pod, PodSpec
from dra_gpu.inventory.amounts import Amounts

DRIVER = "gpu.nvidia.com"
META = ClaimResizeMeta(name="training", namespace="team-a", uid="r1")
RESIZE = ClaimResize(metadata=META, status=ClaimResizeStatus(node_name="node-0"))
TARGET = Target("c1", DRIVER, "node-0", "gpu-0-shared", "s1")


def text(value):
    return DeviceAttribute(string=value)


def test_a_share_of_a_gpu_is_told_apart_by_the_gpus_uuid():
    device = Device("gpu-0-shared", {"uuid": text("GPU-1"), "type": text("shared")})

    assert bodies.condition(device, DRIVER) == 'device.attributes["gpu.nvidia.com"].uuid == "GPU-1"'


def test_a_share_of_a_partition_is_told_apart_by_its_place():
    attributes = {
        "parentUUID": text("GPU-1"),
        "profile": text("3g.40gb"),
        "placement": DeviceAttribute(int_=4),
    }

    assert bodies.condition(Device("gpu-0-mig-3g40gb-9-4-shared", attributes), DRIVER) == (
        'device.attributes["gpu.nvidia.com"].parentUUID == "GPU-1"'
        ' && device.attributes["gpu.nvidia.com"].profile == "3g.40gb"'
        ' && device.attributes["gpu.nvidia.com"].placement == 4'
    )


def test_a_device_that_is_like_another_is_not_asked_for():
    with pytest.raises(bodies.UnknownDeviceError, match="has no attribute placement, which tells it from others"):
        bodies.condition(Device("d", {"parentUUID": text("GPU-1"), "profile": text("1g.10gb")}), DRIVER)


def test_a_device_is_found_where_it_is_published():
    spec = ResourceSliceSpec(DRIVER, ResourcePool("node-0"), devices=[Device("gpu-0-shared")])

    assert bodies.device_in([ResourceSlice(spec=spec)], TARGET).name == "gpu-0-shared"
    with pytest.raises(bodies.UnknownDeviceError, match="gpu-0-shared of node node-0 is not published"):
        bodies.device_in([], TARGET)


@pytest.mark.parametrize(
    ("request_name", "expected"),
    [("gpu", "shared.gpu.nvidia.com"), ("any/small", "small.example.com"), ("none", "")],
)
def test_the_class_is_the_one_that_the_claim_named(request_name, expected):
    exactly = DeviceRequest("gpu", ExactDeviceRequest("shared.gpu.nvidia.com"))
    choice = DeviceRequest("any", first_available=[DeviceSubRequest("small", "small.example.com")])
    claim = Claim(spec=ResourceClaimSpec(DeviceClaim([exactly, choice])))

    assert bodies.device_class(claim, request_name) == expected


def test_the_claim_asks_for_so_much_as_the_workload_did_and_belongs_to_the_resize():
    tolerated = DeviceToleration("example.com/spot", "Exists")
    asked = bodies.Asked("shared.gpu.nvidia.com", "true", (tolerated,))

    body = bodies.claim_body(RESIZE, "c1", "training-grow-00000", Amounts(1, 2**30, 1), asked)

    assert body["metadata"] == {
        "name": "training-grow-00000",
        "namespace": "team-a",
        "labels": {"resource.dra-gpu.dev/claim-resize": "c1"},
        "ownerReferences": [
            {
                "apiVersion": "resource.dra-gpu.dev/v1alpha1",
                "kind": "ClaimResize",
                "name": "training",
                "uid": "r1",
                "controller": True,
            }
        ],
    }
    (request,) = body["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "shared.gpu.nvidia.com",
        "selectors": [{"cel": {"expression": "true"}}],
        "capacity": {"requests": {"computePercent": "1", "memory": "1Gi", "clients": "1"}},
        "tolerations": [tolerated],
    }


def test_the_pod_is_scheduled_as_the_workloads_and_has_no_rights_at_all():
    growth = Claim(metadata=Meta(name="training-grow-00000", namespace="team-a"))
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    workload = Pod(spec=PodSpec("node-0", tolerations, "important", "other-scheduler"))

    spec = bodies.pod_body(RESIZE, "c1", growth, workload, "image:1")["spec"]

    assert (spec["tolerations"], spec["priorityClassName"], spec["schedulerName"]) == (
        tolerations,
        "important",
        "other-scheduler",
    )
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]}
    assert spec["resourceClaims"] == [{"name": "growth", "resourceClaimName": "training-grow-00000"}]
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] == 0
    (container,) = spec["containers"]
    assert container["image"] == "image:1"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsNonRoot"]


def test_what_a_growth_asks_for_can_be_read_back():
    exactly = ExactDeviceRequest(capacity=CapacityRequirements({"memory": "2Gi", "computePercent": "3"}))
    claim = Claim(spec=ResourceClaimSpec(DeviceClaim([DeviceRequest("growth", exactly)])))

    assert objects.requested(claim) == Amounts(3, 2 * 2**30)
