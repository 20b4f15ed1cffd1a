"""Fractions of a GPU under a driver older than 615: MPS takes limits from the container, and every claim says so."""

from collections.abc import Iterator

import pytest
from lab.simulated import SimulatedGpus

from dra_gpu_sim import checker
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim_template, pod
from tests.e2e.harness.shares import (
    CLIENT,
    GIB,
    REQUIRED,
    SMS_OF_A_FIFTH,
    Workloads,
    conditions,
    device_status,
    share_request,
    uuid_of_gpu,
)

OLDER = "580.95.05"


@pytest.fixture(scope="module")
def older(cluster: Cluster, node_driver: DriverOnNode) -> Iterator[DriverOnNode]:
    """The test node as a machine with one GPU and an older driver; afterwards it is the former machine again."""
    former, count = node_driver.gpus, node_driver.gpu_count
    gpus = SimulatedGpus.create(cluster.node.dir / "sim-older", profile="H100", gpus=1, driver_version=OLDER)
    node_driver.replace_gpus(gpus, 1)
    yield node_driver
    node_driver.replace_gpus(former, count)


@pytest.mark.budget(20)
def test_clients_are_limited_by_their_environment_and_the_claim_says_that_a_container_can_lift_it(
    older: DriverOnNode, namespace: TestNamespace
) -> None:
    workloads = Workloads(older, namespace)
    namespace.create(claim_template("a-fifth", share_request(uuid_of_gpu(older, "gpu-0"))))
    namespace.create(*(pod(name, CLIENT, templates={"gpu": "a-fifth"}) for name in ("one", "two")))
    namespace.wait_running("one", "two")

    clients = workloads.all_attached(("one", "two")).values()

    assert [(one.sm_percent, one.sms, one.pinned_limit) for one in clients] == [(20, SMS_OF_A_FIFTH, 10 * GIB)] * 2
    assert all(one.mps and one.cgroup_limit is None for one in clients)
    assert workloads.tell("one", "alloc 11G") == "CUDA_ERROR_OUT_OF_MEMORY 2"
    device = device_status(namespace, "one")
    assert conditions(device)["Enforced"] == ("False", "Cooperative")
    capacities = device["data"]["capacities"]
    said = {name: (capacities[name]["mechanism"], capacities[name]["lifted"]) for name in ("computePercent", "memory")}
    assert said == {"computePercent": ("cooperative", True), "memory": ("cooperative", True)}


@pytest.mark.budget(10)
def test_required_refuses_what_a_container_could_lift_in_an_event_of_the_pod(
    older: DriverOnNode, namespace: TestNamespace
) -> None:
    strict = claim_template("strict", share_request(uuid_of_gpu(older, "gpu-0")), parameters=REQUIRED)
    namespace.create(strict, pod("insists", CLIENT, templates={"gpu": "strict"}))

    refused = namespace.wait_event("insists", "FailedPrepareDynamicResources")

    assert "enforcement Required refuses computePercent by `cooperative`" in refused
    assert "the driver is older than 615" in refused
    assert "write enforcement: BestEffort" in refused
    assert not checker.clients(older.gpus.root)
