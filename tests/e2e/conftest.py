"""Fixtures of the end-to-end tests: a real Kubernetes, a namespace per test, the driver with simulated GPUs.

The cluster is started if none runs and taken down at the end, unless DRA_GPU_LAB_KEEP=1. One that ran before stays,
without the driver that `make cluster` started in it; where pods hold GPUs nothing is touched and no test runs. With
`pytest -n` each worker has a cluster of its own: tests wait for Kubernetes far more than they compute.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from lab import cluster as lab_cluster
from lab.api import Json
from lab.deployment import stop_drivers
from lab.layout import Layout
from lab.progress import Progress
from lab.settings import Settings
from lab.simulated import SimulatedGpus

from tests.e2e.harness.budget import BudgetPlugin
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.waiting import wait_until

GPUS = 8


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the table of budgets, and keep a worker's cluster apart from those of others."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ["DRA_GPU_LAB_DIR"] = f"{Layout.from_environment().state}-{worker}"
    config.addinivalue_line("markers", "budget(seconds): what an end-to-end test may take, set-up included")
    config.pluginmanager.register(BudgetPlugin(), "e2e-budget")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of one node with everything applied that an administrator applies."""
    layout = Layout.from_environment()
    progress = Progress()
    was_up = (former := Settings.load(layout)) is not None and not lab_cluster.dead_processes(layout, former)
    settings = lab_cluster.up(layout, former.nodes if was_up and former else 1, progress)
    with ExitStack() as stack:
        if not was_up and os.environ.get("DRA_GPU_LAB_KEEP") != "1":
            stack.callback(lab_cluster.down, layout, progress)
        running = Cluster(layout, settings)
        if was_up:
            take_over(running, progress)
        running.apply_deployment()
        yield running


def take_over(cluster: Cluster, progress: Progress) -> None:
    """End the plugins of a cluster that ran before; leave the tests if somebody uses its GPUs."""
    if held := cluster.held_claims():
        pytest.exit(
            f"the cluster in {cluster.layout.state} is in use: GPUs are held by {', '.join(held)}. "
            "Delete those pods, or run `make cluster-down`; then start the tests again.",
            returncode=1,
        )
    stop_drivers(cluster.layout, progress)


class NamespaceFactory:
    """Makes namespaces for one test."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self._cluster = cluster
        self._stack = stack

    def make(self, labels: dict[str, str] | None = None) -> TestNamespace:
        """Make a namespace that can take pods; it is emptied at the end of the test."""
        name = f"e2e-{secrets.token_hex(4)}"
        api = self._cluster.api
        body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
        api.create("/api/v1/namespaces", body)
        namespace = TestNamespace(api, name)
        self._stack.callback(namespace.clean)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(f"service account of {name}", lambda: api.exists(account))
        return namespace


@pytest.fixture
def namespaces(cluster: Cluster) -> Iterator[NamespaceFactory]:
    """A maker of namespaces, for tests that need several or special ones."""
    with ExitStack() as stack:
        yield NamespaceFactory(cluster, stack)


@pytest.fixture
def namespace(namespaces: NamespaceFactory) -> TestNamespace:
    """One plain namespace."""
    return namespaces.make()


@pytest.fixture
def admin_namespace(namespaces: NamespaceFactory) -> TestNamespace:
    """A namespace in which claims may ask for admin access."""
    return namespaces.make({"resource.kubernetes.io/admin-access": "true"})


@pytest.fixture(scope="session")
def node_driver(cluster: Cluster) -> Iterator[DriverOnNode]:
    """The driver's machine: eight simulated H100; tests use `driver`, which brings it into a known state first."""
    gpus = SimulatedGpus.create(cluster.node.dir / "sim", profile="H100", gpus=GPUS)
    on_node = DriverOnNode(cluster, gpus, GPUS)
    yield on_node
    on_node.stop_all()
    on_node.mps.stop()


@pytest.fixture
def driver(node_driver: DriverOnNode) -> DriverOnNode:
    """The driver, with one serving instance and all GPUs published and healthy."""
    node_driver.ensure_serving()
    return node_driver
