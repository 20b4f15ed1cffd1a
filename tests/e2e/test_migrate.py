"""Manifests in NVIDIA's API on a real Kubernetes: its API server takes them, its scheduler places them, they run.

The local mode runs all of them, down to the programs (tests/component/migrate); here are those in which API server,
scheduler and kubelet have most to say.
"""

import re
from functools import partial
from pathlib import Path

import pytest
import yaml
from lab.images import BUSYBOX

from dra_gpu_sim import checker
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Json
from tests.e2e.harness.waiting import wait_until

MANIFESTS = Path(__file__).parents[1] / "component/migrate/manifests"
LISTS = ["sh", "-c", "nvidia-smi -L; echo listed; sleep 3600"]
#: By file: its pods, and for each of their containers how many GPUs it lists. All files together take all eight GPUs.
SHOWN = {
    "a-gpu-for-each-pod.yaml": {"first": {"work": 1}, "second": {"work": 1}},
    "containers-of-a-pod.yaml": {"pair": {"loader": 1, "trainer": 1}},
    "pods-on-a-claim.yaml": {"left": {"work": 1}, "right": {"work": 1}},
    "strategies.yaml": {"mixed": {"turn-a": 1, "turn-b": 1, "half-a": 1, "half-b": 1}},
    "partitions-of-one-gpu.yaml": {"family": {"small-a": 1, "small-b": 1, "middle": 1, "large": 1}},
    "selectors.yaml": {"choosy": {"work": 1}},
}


def documents(name: str) -> list[Json]:
    """Return the objects of a manifest, whose containers print the GPUs they have."""
    found: list[Json] = list(yaml.safe_load_all((MANIFESTS / name).read_text()))
    for one in found:
        if one["kind"] == "Pod":
            one["spec"] |= {"terminationGracePeriodSeconds": 1}
            for container in one["spec"]["containers"]:
                container |= {"image": BUSYBOX, "command": LISTS}
    return found


def listed(namespace: TestNamespace, pod: str, container: str, kind: str = "GPU") -> list[str]:
    """The UUIDs of GPUs, or of partitions, that a container has printed; it has come to the end of its list."""
    wait_until(f"list of {pod}/{container}", partial(_has_listed, namespace, pod, container))
    return re.findall(rf"UUID: ({kind}-[^)]+)\)", namespace.log(pod, container))


def _has_listed(namespace: TestNamespace, pod: str, container: str) -> bool:
    return "listed" in namespace.log(pod, container)


@pytest.mark.budget(40)
def test_manifests_of_nvidias_driver_run_side_by_side(driver: DriverOnNode, namespace: TestNamespace) -> None:
    for name in SHOWN:
        namespace.create(*documents(name))
    pods = {pod: containers for of_file in SHOWN.values() for pod, containers in of_file.items()}
    namespace.wait_running(*pods)

    seen = {pod: {each: listed(namespace, pod, each) for each in containers} for pod, containers in pods.items()}
    assert {pod: {each: len(gpus) for each, gpus in one.items()} for pod, one in seen.items()} == pods
    gpus_of_node = checker.snapshot(driver.gpus.root).gpus
    assert {gpu for one in seen.values() for gpus in one.values() for gpu in gpus} == {gpu.uuid for gpu in gpus_of_node}
    assert seen["left"] == seen["right"]
    parts = [part for each in pods["family"] for part in listed(namespace, "family", each, "MIG")]
    assert len(set(parts)) == len(parts) == len(pods["family"])
    assert sorted(gpu.time_slice for gpu in gpus_of_node) == [0] * 7 + [3]
