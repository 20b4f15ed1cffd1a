"""Shares of a GPU in end-to-end tests: what a claim asks for, the client that plays a workload, and what is true of it.

The truth is the simulated hardware's own: its state file, read without asking the driver.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lab.cgroups import Cgroups

from dra_gpu_sim import checker
from dra_gpu_sim.checker import Client
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Container, Json, device_request
from tests.e2e.harness.slices import devices_of, uuid_of
from tests.e2e.harness.waiting import PATIENCE, wait_until

SHARED_CLASS = "shared.gpu.nvidia.com"
GIB = 2**30
FIFTH = {"computePercent": "20", "memory": "10Gi"}
#: A config of the driver's own that takes no limit which a container could lift.
REQUIRED = {"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "SharedGpuConfig", "enforcement": "Required"}
#: SMs that a client may use with 20 % of an H100's 132: rounded down to whole pairs.
SMS_OF_A_FIFTH = 26
#: Does what is written into its pipe, one command a line; opened for both, so that the pipe never ends.
CLIENT = Container(script="mkfifo /tmp/commands; exec cuda-client 0<>/tmp/commands")


def on_gpu(uuid: str) -> str:
    """Return a selector for the devices of one GPU, in whatever view."""
    return f"device.attributes['gpu.nvidia.com'].uuid == '{uuid}'"


def share_request(uuid: str, name: str = "gpu", capacity: dict[str, str] | None = None) -> Json:
    """Return the request of a share of one GPU, by default a fifth of its SMs and 10 GiB."""
    return device_request(name, SHARED_CLASS, selector=on_gpu(uuid), capacity=capacity or FIFTH)


def uuid_of_gpu(driver: DriverOnNode, device: str) -> str:
    """Return the UUID of a published whole GPU."""
    return uuid_of(devices_of(driver.cluster.api, driver.cluster.node.name)[device])


def memory_mechanism() -> str:
    """Return what limits a share's memory on this machine: the driver can do it with cgroup v2 alone."""
    return "cgroup" if Cgroups.detect().unified else "cooperative"


@dataclass(frozen=True)
class Workloads:
    """The `CLIENT` pods of a namespace."""

    driver: DriverOnNode
    namespace: TestNamespace

    def attached(self, pod_name: str, seconds: float = PATIENCE) -> Client:
        """Wait until the client of a pod is attached to a GPU, and return what is true of it."""
        uid = self.namespace.pod(pod_name)["metadata"]["uid"]
        found: list[Client] = []

        def look() -> bool:
            found[:] = [client for client in checker.clients(self.driver.gpus.root) if f"pod{uid}" in client.cgroup]
            return bool(found)

        try:
            wait_until(f"client of {pod_name} attached", look, seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}; it says:\n{self.namespace.log(pod_name)}") from error
        (client,) = found
        return client

    def all_attached(self, pod_names: Sequence[str]) -> dict[str, Client]:
        """Wait until the clients of all these pods are attached; pod name -> what is true of its client."""
        return {name: self.attached(name) for name in pod_names}

    def tell(self, pod_name: str, command: str, seconds: float = PATIENCE) -> str:
        """Give a client a command, such as `alloc 5G`; return the line that it answers."""
        # Its first line says that it is attached; the log may have it later than the hardware.
        wait_until(f"{pod_name} says that it is attached", lambda: bool(self._lines(pod_name)), seconds)
        before = len(self._lines(pod_name))
        write = f"echo {command} >/tmp/commands"
        self.driver.cluster.kubectl("exec", "-n", self.namespace.name, pod_name, "--", "/bin/sh", "-c", write)
        wait_until(f"{pod_name} answers {command}", lambda: len(self._lines(pod_name)) > before, seconds)
        return self._lines(pod_name)[before]

    def used_by(self, pod_name: str) -> int:
        """Return the bytes that a pod's client holds."""
        return self.attached(pod_name).memory

    def _lines(self, pod_name: str) -> list[str]:
        return self.namespace.log(pod_name).splitlines()


def device_status(namespace: TestNamespace, pod_name: str, seconds: float = PATIENCE) -> Json:
    """Wait until the driver has written the status of the only device of a pod's claim, and return it."""

    def said() -> list[Json]:
        status: Json = namespace.claim_of(pod_name)["status"]
        return list(status.get("devices", ()))

    # It is written after the kubelet was answered.
    wait_until(f"device status in the claim of {pod_name}", lambda: bool(said()), seconds)
    (device,) = said()
    return device


def conditions(device: Json) -> dict[str, tuple[str, str]]:
    """Return type -> (status, reason) of a device's conditions."""
    return {one["type"]: (one["status"], one["reason"]) for one in device["conditions"]}
