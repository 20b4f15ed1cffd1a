"""One node with three kinds of GPU, each used at once: MIG switched live, MIG that waits for a reset, no MIG."""

from collections.abc import Iterator

import pytest
from lab.simulated import SimulatedGpus

from dra_gpu_sim import checker
from dra_gpu_sim.node import SimulatedNode
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim_template, device_request, pod
from tests.e2e.harness.partitions import instances_of, partition_request
from tests.e2e.harness.shares import CLIENT, Workloads, on_gpu, share_request, uuid_of_gpu
from tests.e2e.harness.slices import devices_of
from tests.e2e.harness.waiting import wait_until

H100, A100, L4 = "gpu-0", "gpu-1", "gpu-2"
PENDING = "gpu.nvidia.com/mig-mode-pending"


@pytest.fixture(scope="module")
def mixed(cluster: Cluster, node_driver: DriverOnNode) -> Iterator[DriverOnNode]:
    """The test node as a machine with an H100, an A100 and an L4; afterwards it is the former machine again."""
    former, count = node_driver.gpus, node_driver.gpu_count
    gpus = SimulatedGpus.create(cluster.node.dir / "sim-mixed", profile="P-mig3", gpus=3)
    node_driver.replace_gpus(gpus, 3)
    yield node_driver
    node_driver.replace_gpus(former, count)


@pytest.mark.budget(30)
def test_each_gpu_is_used_in_the_way_it_can_be_now(mixed: DriverOnNode, namespace: TestNamespace) -> None:
    workloads = Workloads(mixed, namespace)
    uuids = {name: uuid_of_gpu(mixed, name) for name in (H100, A100, L4)}
    requests = {
        "partition": partition_request("3g.40gb", uuids[H100]),
        "whole": device_request(selector=on_gpu(uuids[A100])),
        "share": share_request(uuids[L4], capacity={"computePercent": "20", "memory": "4Gi"}),
    }
    namespace.create(*(claim_template(name, request) for name, request in requests.items()))
    namespace.create(*(pod(name, CLIENT, templates={"gpu": name}) for name in requests))
    namespace.wait_running(*requests)
    clients = workloads.all_attached(tuple(requests))

    assert instances_of(mixed.gpus) == {0: ["3g.40gb"]}
    assert (clients["partition"].sms, clients["whole"].sms, clients["share"].mps) == (60, 108, True)
    parents = {name.partition("-mig-")[0] for name in devices_of(mixed.cluster.api, mixed.cluster.node.name, "mig")}
    assert parents == {H100}


@pytest.mark.budget(40)
def test_a_mode_change_that_waits_for_a_reset_is_seen_and_keeps_new_pods_away(
    mixed: DriverOnNode, namespace: TestNamespace
) -> None:
    api, node_name = mixed.cluster.api, mixed.cluster.node.name

    def change_mode(*, pending: bool) -> None:
        """As `nvidia-smi -mig` does on an A100; the plugin looks again when it starts."""
        with SimulatedNode(mixed.gpus.root).state() as state:
            state.gpus[1].mig_pending = int(pending)
        assert mixed.current is not None
        mixed.current.kill()
        mixed.restart()

    def pending() -> dict[str, str]:
        devices = {**devices_of(api, node_name), **devices_of(api, node_name, "shared")}
        found = {
            (name, taint["key"]): taint["value"]
            for name, device in devices.items()
            for taint in device.get("taints", ())
        }
        return {name: value for (name, key), value in found.items() if key == PENDING}

    change_mode(pending=True)
    wait_until("the taint", lambda: pending() == {A100: "enabled", f"{A100}-shared": "enabled"}, 15.0)
    uuid = uuid_of_gpu(mixed, A100)
    namespace.create(claim_template("whole", device_request(selector=on_gpu(uuid))))
    namespace.create(pod("kept-away", templates={"gpu": "whole"}))
    namespace.wait_unschedulable("kept-away")

    change_mode(pending=False)

    namespace.wait_running("kept-away")
    assert not checker.snapshot(mixed.gpus.root).gpus[1].mig_current
