"""Sick GPUs: what the simulator does to them, and what pods, slices and `kubectl gpu` say."""

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Container, claim, device_request, pod
from tests.e2e.harness.slices import Json, devices_of, uuid_of
from tests.e2e.harness.waiting import wait_until

RESET_WANTED = 1
NOTHING_WANTED = 0
#: Seconds for a command that waits for pods to end and for a reset.
COMMAND_SECONDS = 240.0


def kubectl_gpu(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kubectl gpu` with all rights."""
    program = Path(sys.executable).parent / "kubectl-gpu"
    command = [str(program), *arguments, f"--kubeconfig={cluster.layout.kubeconfig}"]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL
    )


def done(result: subprocess.CompletedProcess[str]) -> Json:
    """Return what a command that succeeded has printed with `-o json`."""
    assert result.returncode == 0, result.stderr
    printed: Json = json.loads(result.stdout)
    return printed


def on_gpu(namespace: TestNamespace, driver: DriverOnNode, name: str, gpu: str, *containers: Container) -> None:
    """Create a pod, and a claim of its name, that want one whole GPU and no other."""
    uuid = uuid_of(devices_of(driver.cluster.api, driver.cluster.node.name)[gpu])
    selector = f"device.attributes['gpu.nvidia.com'].uuid == '{uuid}'"
    namespace.create(claim(name, device_request(selector=selector)), pod(name, *containers, claims={"gpu": name}))


def device_health(namespace: TestNamespace, name: str) -> list[tuple[str, str]]:
    """Return health and message of each device of a pod's containers, as its status has them."""
    return [
        (str(resource.get("health", "")), str(resource.get("message", "")))
        for container in namespace.pod(name)["status"].get("containerStatuses", [])
        for status in container.get("allocatedResourcesStatus", [])
        for resource in status.get("resources", [])
    ]


def wait_device_health(namespace: TestNamespace, name: str, wanted: str) -> str:
    """Wait until the kubelet calls a pod's one device that; returns the message."""
    try:
        wait_until(
            f"the device of {name} is {wanted}",
            lambda: [health for health, _ in device_health(namespace, name)] == [wanted],
        )
    except TimeoutError as error:
        raise AssertionError(f"{error}; its status says {device_health(namespace, name)}") from error
    return device_health(namespace, name)[0][1]


def taints(driver: DriverOnNode, gpu: str, view: str = "gpu") -> dict[str, str]:
    """Return the effects of the taints that a device has in its slice, by key."""
    device = devices_of(driver.cluster.api, driver.cluster.node.name, view).get(gpu, {})
    return {taint["key"]: taint["effect"] for taint in device.get("taints", [])}
