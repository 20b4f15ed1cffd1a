"""Every file in examples/ runs as it is on the lab's cluster, and shows what its first line says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml
from lab.api import path_of
from lab.build import bin_dir

from dra_gpu_sim import checker
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Json, claim, pod
from tests.e2e.harness.shares import device_status, memory_mechanism
from tests.e2e.harness.waiting import PATIENCE, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
#: The longest time slice, as the driver counts them (Source: nvidia-smi compute-policy).
LONG = 3


@dataclass(frozen=True)
class Shows:
    """What the containers of an example see.

    Attributes:
        gpus: how many GPUs `nvidia-smi -L` lists.
        sms: how many SMs a program may use; None where it is for looking only.
        pods: how many pods there are.
        in_all: how many GPUs all pods have together; None for `gpus` each.
    """

    gpus: int = 1
    sms: int | None = 132
    pods: int = 1
    in_all: int | None = None


#: A new example that is not entered here fails.
SHOWN = {
    "a-fifth.yaml": Shows(sms=26),
    "alternatives.yaml": Shows(),
    "extended-resource.yaml": Shows(),
    "fraction-of-a-partition.yaml": Shows(sms=30),
    "four-jobs-one-gpu.yaml": Shows(sms=26, pods=4, in_all=1),
    "mig-extended-resource.yaml": Shows(sms=16),
    "mig.yaml": Shows(sms=60),
    "monitor.yaml": Shows(gpus=8, sms=None),
    "mps.yaml": Shows(sms=66),
    "nvlink-pair.yaml": Shows(gpus=2, sms=None),
    "resize-training-to-inference.yaml": Shows(sms=None, pods=4, in_all=2),
    "time-slice.yaml": Shows(),
    "whole-gpu.yaml": Shows(),
}


@dataclass(frozen=True)
class ExamplePod:
    """A pod of an example, with the names of its containers."""

    where: TestNamespace
    name: str
    containers: tuple[str, ...]

    def lists(self, count: int) -> bool:
        """Whether each container has printed that many GPUs, each by its UUID."""
        return all(len(self.uuids(container)) == count for container in self.containers)

    def uuids(self, container: str) -> list[str]:
        """The GPUs that a container has printed."""
        return re.findall(r"\(UUID: (GPU-\S+)\)", self.where.log(self.name, container))


def pods_of(file: Path, cluster: Cluster) -> list[ExamplePod]:
    """Every pod of a file that exists by now, those of its Jobs among them."""
    found = []
    for document in yaml.safe_load_all(file.read_text()):
        where = TestNamespace(cluster.api, document["metadata"].get("namespace", "default"))
        name = document["metadata"]["name"]
        pods = path_of("v1", "pods", namespace=where.name)
        match document["kind"]:
            case "Pod":
                found += [(where, each) for each in cluster.api.items(pods, fieldSelector=f"metadata.name={name}")]
            case "Job":
                made = cluster.api.items(pods, labelSelector=f"batch.kubernetes.io/job-name={name}")
                found += [(where, each) for each in made]
    return [
        ExamplePod(where, each["metadata"]["name"], tuple(one["name"] for one in each["spec"]["containers"]))
        for where, each in found
    ]


def listed(driver: DriverOnNode) -> list[Json]:
    """The GPUs as `kubectl gpu list` has them."""
    path = f"{Path(sys.executable).parent}:{bin_dir()}:{os.environ['PATH']}"

    text = subprocess.run(
        ["kubectl", "gpu", "list", "--output=json"],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(driver.cluster.layout.kubeconfig)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
    gpus: list[Json] = json.loads(text)["gpus"]
    return gpus


@pytest.fixture
def apply(driver: DriverOnNode) -> Iterator[Callable[[str], Path]]:
    """Applies an example with kubectl, as a user does; it is deleted afterwards."""
    with ExitStack() as stack:

        def run(name: str) -> Path:
            file = EXAMPLES / name
            delete = ("delete", "--ignore-not-found", "-f", str(file))
            stack.callback(driver.cluster.kubectl, *delete)
            driver.cluster.kubectl("apply", "-f", str(file))
            return file

        yield run


def gpus_of(file: Path, shown: Shows, cluster: Cluster) -> set[str]:
    """Wait until the pods of an example run; check what each sees, and return the UUIDs of their GPUs."""
    wait_until(f"{shown.pods} pods", lambda: len(pods_of(file, cluster)) == shown.pods)
    uuids = set()
    for each in pods_of(file, cluster):
        each.where.wait_running(each.name)
        wait_until(f"{each.name} lists its GPUs", partial(each.lists, shown.gpus))
        uuids |= {uuid for container in each.containers for uuid in each.uuids(container)}
        if shown.sms is not None:
            at = ("exec", "-n", each.where.name, each.name, "-c", each.containers[0], "--")
            assert f" sms={shown.sms}\n" in cluster.kubectl(*at, "cuda-client", "info")
    return uuids


@pytest.mark.budget(30)
@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.iterdir()))
def test_an_example_runs_as_it_is_and_its_pods_see_their_gpus(
    name: str, apply: Callable[[str], Path], cluster: Cluster
) -> None:
    file, shown = apply(name), SHOWN[name]
    count = shown.gpus * shown.pods if shown.in_all is None else shown.in_all
    uuids = gpus_of(file, shown, cluster)

    # Of shares that come at once the scheduler may count some twice (see harness/namespace.py) and take another GPU.
    for _ in range(3):
        if shown.in_all is not None and len(uuids) > count:
            cluster.kubectl("delete", "-f", str(file))
            wait_until("its pods gone", lambda: not pods_of(file, cluster))
            uuids = gpus_of(apply(name), shown, cluster)
    assert len(uuids) == count


@pytest.mark.budget(20)
def test_the_time_slice_of_an_example_is_that_of_its_gpu_until_its_pod_has_gone(
    apply: Callable[[str], Path], driver: DriverOnNode, cluster: Cluster
) -> None:
    (taking_turns,) = pods_of(apply("time-slice.yaml"), cluster)
    taking_turns.where.wait_running(taking_turns.name)
    before = [gpu.time_slice for gpu in checker.snapshot(driver.gpus.root).gpus]

    taking_turns.where.delete_pod(taking_turns.name)
    taking_turns.where.wait_gone(taking_turns.name)

    after = [gpu.time_slice for gpu in checker.snapshot(driver.gpus.root).gpus]
    assert sorted(before) == [0] * 7 + [LONG]
    assert after == [0] * 8


@pytest.mark.budget(15)
def test_kubectl_gpu_list_shows_what_enforces_each_share_of_a_gpu(
    apply: Callable[[str], Path], driver: DriverOnNode, cluster: Cluster
) -> None:
    (part,) = pods_of(apply("a-fifth.yaml"), cluster)
    part.where.wait_running(part.name)
    device_status(part.where, part.name)

    (gpu,) = (gpu for gpu in listed(driver) if gpu["holders"])

    (holder,) = gpu["holders"]
    (result,) = part.where.claim_of(part.name)["status"]["allocation"]["devices"]["results"]
    assert (holder["device"], holder["share"], holder["view"]) == (result["device"], result["shareID"], "shared")
    mechanisms = {name: holder["mechanisms"][name] for name in ("computePercent", "memory")}
    assert mechanisms == {"computePercent": "namespace", "memory": memory_mechanism()}


@pytest.mark.budget(10)
def test_kubectl_gpu_list_shows_who_holds_which_gpu(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(claim("held"), pod("worker", claims={"gpu": "held"}))
    namespace.wait_running("worker")
    (device,) = namespace.allocated_devices("held")

    holders = {gpu["name"]: [holder["claim"] for holder in gpu["holders"]] for gpu in listed(driver)}
    assert holders == {f"gpu-{minor}": [] for minor in range(8)} | {device: [f"{namespace.name}/held"]}
