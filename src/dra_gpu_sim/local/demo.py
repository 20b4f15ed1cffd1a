"""The demonstration: two pods ask for a GPU each, on a node with eight simulated H100.

What is printed is read from where a container runtime and a user would read it: the published slices, the answer to the
kubelet, the CDI files, and nvidia-smi inside what the container gets. Nothing is printed that was not looked up.
"""

import asyncio
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dra_gpu.cli.tables import table
from dra_gpu_sim.local import containers
from dra_gpu_sim.local.cluster import DRIVER, LocalCluster
from dra_gpu_sim.local.containers import Container
from dra_gpu_sim.local.kubelet import Claim, Kubelet
from dra_gpu_sim.node import SimulatedNode

_PODS = ("training", "notebook")
_LOG_LINES = 15


class DemoError(RuntimeError):
    """The driver did not do what is demonstrated; the message has its own words."""


@dataclass(frozen=True, slots=True)
class PodResult:
    """What one pod got.

    Attributes:
        pod: its name.
        claim: its claim, `namespace/name`.
        device: the device the allocator chose.
        cdi_ids: what the plugin answered the kubelet.
        nodes: device nodes in the container.
        env: variables that the CDI files set.
        mounts: number of files of the driver in the container.
        nvidia_smi: what `nvidia-smi -L` prints with exactly these nodes.
    """

    pod: str
    claim: str
    device: str
    cdi_ids: tuple[str, ...]
    nodes: tuple[str, ...]
    env: dict[str, str]
    mounts: int
    nvidia_smi: str


async def run() -> list[PodResult]:
    """Run the demonstration, print it, and return what was printed.

    Raises:
        DemoError: the node plugin does not register or refuses a claim.
        BuildError: the simulated GPUs cannot be compiled.
    """
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="dra-gpu-demo-") as directory:
        root = Path(directory)
        say("making a node with eight simulated H100 (an NVML library, device nodes, sysfs)")
        async with LocalCluster(root) as cluster:
            say("starting an API server in memory and the node plugin: dra-gpu node --vendor nvidia")
            process = await cluster.start_plugin()
            kubelet = cluster.new_kubelet()
            try:
                plugin = await kubelet.wait_registered(DRIVER)
            except TimeoutError as error:
                log = "\n".join(process.read_log().splitlines()[-_LOG_LINES:])
                raise DemoError(
                    f"the node plugin did not register with the kubelet; its log ends with:\n{log}"
                ) from error
            say(f"registered with the kubelet: {plugin.name} serves {', '.join(plugin.versions)}")
            slices = await cluster.wait_slices(2 * len(cluster.node.gpus))
            devices = sorted(device["name"] for item in slices for device in item["spec"].get("devices", ()))
            say(f"published {len(devices)} devices in {len(slices)} ResourceSlices: {devices[0]} … {devices[-1]}")
            results = [await _start_pod(cluster, kubelet, pod, root) for pod in _PODS]
            say("two pods prepared; what each container gets:")
            print("\n" + _table(results) + "\n")
            for result in results:
                await _end_pod(cluster, kubelet, result)
            say(f"both pods gone: {len(list(cluster.paths.cdi.glob('*.json')))} CDI files left")
    return results


async def _start_pod(cluster: LocalCluster, kubelet: Kubelet, pod: str, root: Path) -> PodResult:
    claim = cluster.add_claim(f"{pod}-gpu")
    answers = await kubelet.prepare(claim, driver=DRIVER)
    answer = answers[claim.uid]
    if answer.error:
        raise DemoError(f"pod {pod}: {answer.error}")
    ids = tuple(device_id for device in answer.devices for device_id in device.cdi_ids)
    container = containers.with_devices(cluster.paths.cdi, ids)
    return PodResult(
        pod=pod,
        claim=f"{claim.namespace}/{claim.name}",
        device=", ".join(device.device for device in answer.devices),
        cdi_ids=ids,
        nodes=tuple(sorted(container.nodes.values())),
        env=container.env,
        mounts=len(container.mounts),
        nvidia_smi=await _nvidia_smi(cluster.node, container, root / f"{pod}-dev"),
    )


async def _end_pod(cluster: LocalCluster, kubelet: Kubelet, result: PodResult) -> None:
    namespace, name = result.claim.split("/")
    found = next(item for item in cluster.api.objects("resourceclaims", namespace) if item["metadata"]["name"] == name)
    claim = Claim(namespace, name, found["metadata"]["uid"])
    errors = await kubelet.unprepare(claim, driver=DRIVER)
    if errors[claim.uid]:
        raise DemoError(f"pod {result.pod}: {errors[claim.uid]}")
    cluster.remove_claim(claim)


async def _nvidia_smi(node: SimulatedNode, container: Container, dev: Path) -> str:
    """Run nvidia-smi with exactly the container's device nodes: like NVML, it lists the GPUs whose nodes are there."""
    for host, path in container.nodes.items():
        link = dev / Path(path).relative_to("/dev")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(host)
    environment = {**os.environ, "DRA_GPU_SIM_ROOT": str(node.root), "DRA_GPU_SIM_DEV": str(dev)}
    process = await asyncio.create_subprocess_exec(
        node.driver_root / "usr/bin/nvidia-smi", "-L", env=environment, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(10):
        output, _ = await process.communicate()
    return output.decode().strip()


def _table(results: list[PodResult]) -> str:
    rows = [
        [
            result.pod,
            result.device,
            "\n".join(result.nodes),
            "\n".join(f"{name}={value}" for name, value in sorted(result.env.items())),
            f"{result.mounts} files",
            result.nvidia_smi,
        ]
        for result in results
    ]
    return table(["POD", "DEVICE", "NODES IN ITS CONTAINER", "ENVIRONMENT", "DRIVER", "nvidia-smi -L SAYS"], rows)


NEXT = """Try next:
  make test      unit and component tests: faults of GPUs, disks and API servers
  make cluster   the same driver on a real Kubernetes 1.37, built on this machine
  make bench     how fast it is, beside the floor"""
