"""The controller on the real cluster: what it spares a pod that waits for a device."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from grpclib.client import Channel
from lab.api import path_of

from dra_gpu.kubelet._proto import dra_v1_pb2
from dra_gpu.kubelet._proto.dra_v1_grpc import DRAPluginStub
from dra_gpu.kubelet.sockets import socket_paths
from tests.e2e.harness.components import Component, component
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim, device_request, pod
from tests.e2e.harness.slices import devices_of, uuid_of
from tests.e2e.harness.waiting import PATIENCE, wait_until
from tests.e2e.test_accounts import TOUCHED

#: After a refused Prepare the kubelet comes back by itself in its 60 to 90 s, less than this only if it is told to.
SOON = 40.0


@pytest.fixture
def controller(driver: DriverOnNode) -> Iterator[Component]:
    """The controller, which leads."""
    with component(driver.cluster, "controller") as running:
        running.wait_logged("this replica leads")
        yield running


async def call(driver: DriverOnNode, method: str, namespace: str, name: str, uid: str) -> str:
    """Call the driver as its kubelet does, for one claim; return the error, empty for success."""
    assert driver.current is not None
    node = driver.cluster.node
    socket = socket_paths(node.registrar_dir, node.plugins_dir, "gpu.nvidia.com", driver.current.pod_uid).service
    wanted = dra_v1_pb2.Claim(namespace=namespace, name=name, uid=uid)
    with closing(Channel(path=str(socket))) as channel:
        stub = DRAPluginStub(channel)
        if method == "prepare":
            prepared = await stub.NodePrepareResources(
                dra_v1_pb2.NodePrepareResourcesRequest(claims=[wanted]), timeout=PATIENCE
            )
            return str(prepared.claims[uid].error)
        released = await stub.NodeUnprepareResources(
            dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[wanted]), timeout=PATIENCE
        )
        return str(released.claims[uid].error)


def hold(driver: DriverOnNode, namespace: TestNamespace, device: str) -> str:
    """Let a claim hold a device on the node that the API server knows nothing of any more; return its UID.

    So it is after a force-deleted pod: the scheduler gives the device away while the node has not released it yet.
    """
    node_name = driver.cluster.node.name
    namespace.create(claim("holder"))
    here = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node_name, "device": device}
    selector = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    path = path_of("resource.k8s.io/v1", "resourceclaims", "holder", namespace=namespace.name)
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    namespace.api.patch(f"{path}/status", {"status": {"allocation": allocation}})
    uid: str = namespace.claim("holder")["metadata"]["uid"]
    assert asyncio.run(call(driver, "prepare", namespace.name, "holder", uid)) == ""
    namespace.delete_claim("holder")
    return uid


@pytest.mark.budget(60)
def test_a_pod_that_was_refused_a_held_gpu_runs_seconds_after_the_gpu_comes_free(
    driver: DriverOnNode,
    controller: Component,
    namespace: TestNamespace,
    record_property: Callable[[str, object], None],
) -> None:
    device = devices_of(driver.cluster.api, driver.cluster.node.name)["gpu-5"]
    holder = hold(driver, namespace, "gpu-5")
    pinned = device_request(selector=f"device.attributes['gpu.nvidia.com'].uuid == '{uuid_of(device)}'")
    namespace.create(claim("wanted", pinned), pod("waits", claims={"gpu": "wanted"}))
    refusal = namespace.wait_event("waits", "FailedPrepareDynamicResources", 2 * PATIENCE)
    assert "holder" in refusal, refusal

    assert asyncio.run(call(driver, "unprepare", namespace.name, "holder", holder)) == ""
    seconds = namespace.wait_running("waits")

    record_property("from the free GPU to the running pod", f"{seconds:.1f} s")
    assert TOUCHED in namespace.pod("waits")["metadata"].get("annotations", {})
    assert seconds < SOON
    assert namespace.report("waits").gpu_minors == {5}
    controller.wait_logged("a device came free: the kubelet tries again")
    wait_until("the Event of the claim", lambda: bool(namespace.events("wanted", "DeviceFree")))
