"""Every file in examples/ runs as it is on the lab's cluster, and shows what its first line says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from lab.api import wait_until
from lab.build import bin_dir

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
#: How many GPUs `nvidia-smi -L` lists in the pods of each example. A new example that is not entered here fails.
GPUS_SEEN = {"extended-resource.yaml": 1, "monitor.yaml": 8, "whole-gpu.yaml": 1}


def pods_of(file: Path) -> list[tuple[str, str]]:
    """(namespace, name) of every pod in a file."""
    documents = yaml.safe_load_all(file.read_text())
    pods = [document["metadata"] for document in documents if document["kind"] == "Pod"]
    return [(pod.get("namespace", "default"), pod["name"]) for pod in pods]


def lists_gpus(where: TestNamespace, pod_name: str, count: int) -> bool:
    """Whether the pod has printed that many GPUs, each by its UUID."""
    return where.log(pod_name).count("(UUID: GPU-") == count


@pytest.fixture(params=sorted(file.name for file in EXAMPLES.iterdir()))
def applied(request: pytest.FixtureRequest, driver: DriverOnNode) -> Iterator[Path]:
    """An example, applied with kubectl as a user does; deleted afterwards."""
    file: Path = EXAMPLES / request.param
    driver.cluster.kubectl("apply", "-f", str(file))
    yield file
    driver.cluster.kubectl("delete", "--ignore-not-found", "-f", str(file), seconds=60.0)


@pytest.mark.budget(30)
def test_an_example_runs_as_it_is_and_its_pods_see_their_gpus(applied: Path, cluster: Cluster) -> None:
    pods = pods_of(applied)

    assert pods
    for namespace, name in pods:
        where = TestNamespace(cluster.api, namespace)
        where.wait_running(name)
        wait_until(f"{name} lists its GPUs", partial(lists_gpus, where, name, GPUS_SEEN[applied.name]), 10.0)


@pytest.mark.budget(10)
def test_kubectl_gpu_list_shows_who_holds_which_gpu(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(claim("held"), pod("worker", claims={"gpu": "held"}))
    namespace.wait_running("worker")
    (device,) = namespace.allocated_devices("held")
    path = f"{Path(sys.executable).parent}:{bin_dir()}:{os.environ['PATH']}"

    listed = subprocess.run(
        ["kubectl", "gpu", "list", "--output=json"],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(driver.cluster.layout.kubeconfig)},
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout

    holders = {gpu["name"]: [holder["claim"] for holder in gpu["holders"]] for gpu in json.loads(listed)["gpus"]}
    assert holders == {f"gpu-{minor}": [] for minor in range(8)} | {device: [f"{namespace.name}/held"]}
