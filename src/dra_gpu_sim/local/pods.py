"""Pods of the local mode: a claim, what its container is given, and programs that run with exactly that.

No container is made; a program gets the container's variables and sees the container's device nodes, and where a mount
would have changed a path, it is given the path on the host instead.
"""

import asyncio
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_gpu_sim.client import CudaClient
from dra_gpu_sim.local import containers
from dra_gpu_sim.local.cluster import DRIVER, LocalCluster
from dra_gpu_sim.local.containers import Container
from dra_gpu_sim.local.kubelet import Claim, Device, Kubelet

_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_SMI_SECONDS = 30.0


class PodError(Exception):
    """A pod did not start; the message is what its events would say."""


@dataclass(frozen=True, slots=True)
class LocalPod:
    """A pod whose claim is prepared.

    Attributes:
        cluster: where it runs.
        name: its name.
        claim: its claim.
        devices: what the node plugin answered.
        container: what its container gets.
        cgroup: its cgroup, below the root of the hierarchy.
    """

    cluster: LocalCluster
    name: str
    claim: Claim
    devices: tuple[Device, ...]
    container: Container
    cgroup: str

    def client(self, *commands: str) -> CudaClient:
        """Start a program that uses the GPU as a program in the container would."""
        return CudaClient(self.cluster.node.cuda_client, commands, self._environment())

    async def nvidia_smi(self) -> str:
        """Return what `nvidia-smi -L` prints in the container."""
        process = await asyncio.create_subprocess_exec(
            self.cluster.node.nvidia_smi, "-L", env=self._environment(), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(_SMI_SECONDS):
            output, _ = await process.communicate()
        return output.decode().strip()

    def status(self) -> list[dict[str, Any]]:
        """Return what the node plugin has written into the claim's `status.devices`."""
        found = next(
            item
            for item in self.cluster.api.objects("resourceclaims", self.claim.namespace)
            if item["metadata"]["name"] == self.claim.name
        )
        devices: list[dict[str, Any]] = found["status"].get("devices", [])
        return devices

    async def wait_status(self, within: float = 30.0) -> list[dict[str, Any]]:
        """Return `status.devices` as soon as it is there.

        Raises:
            TimeoutError: it did not come in time.
        """
        await self.cluster.api.log.wait_for(lambda _: self.status(), within)
        return self.status()

    async def end(self, kubelet: Kubelet) -> None:
        """Give the claim back and delete it, as when a pod has ended.

        Raises:
            PodError: the node plugin refuses.
        """
        errors = await kubelet.unprepare(self.claim, driver=DRIVER)
        if errors[self.claim.uid]:
            raise PodError(f"pod {self.name}: {errors[self.claim.uid]}")
        self.cluster.remove_claim(self.claim)
        (self.cluster.paths.cgroups / self.cgroup.lstrip("/")).rmdir()

    def _environment(self) -> dict[str, str]:
        node, variables = self.cluster.node, dict(self.container.env)
        on_host = {inside: host for host, inside in self.container.mounts.items()}
        pipe = variables.get(_PIPE, str(node.root / "no-pipe"))
        return {
            **os.environ,
            **variables,
            _PIPE: on_host.get(pipe, pipe),
            "DRA_GPU_SIM_ROOT": str(node.root),
            "DRA_GPU_SIM_DEV": str(self._dev()),
            "DRA_GPU_SIM_CGROUP": self.cgroup,
        }

    def _dev(self) -> Path:
        """Make a /dev with the container's nodes and no other."""
        dev = self.cluster.root / f"dev-{self.name}"
        for host, path in self.container.nodes.items():
            link = dev / Path(path).relative_to("/dev")
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(host)
        return dev


async def start_pod(
    cluster: LocalCluster,
    kubelet: Kubelet,
    name: str,
    requests: list[dict[str, Any]],
    *,
    config: list[dict[str, Any]] | None = None,
) -> LocalPod:
    """Schedule a pod with one claim and prepare it.

    Raises:
        UnschedulableError: the claim does not fit.
        PodError: the node plugin refuses the claim.
    """
    uid = str(uuid.uuid4())
    claim = cluster.add_claim(f"{name}-gpu", requests=requests, config=config, pod_uid=uid)
    cgroup = cluster.paths.make_pod_cgroup(uid)
    answer = (await kubelet.prepare(claim, driver=DRIVER))[claim.uid]
    if answer.error:
        raise PodError(f"pod {name}: {answer.error}")
    ids = [device_id for device in answer.devices for device_id in device.cdi_ids]
    return LocalPod(cluster, name, claim, answer.devices, containers.with_devices(cluster.paths.cdi, ids), cgroup)


def a_share(percent: int, memory: str) -> list[dict[str, Any]]:
    """Return the requests of a claim for a fraction of a GPU."""
    capacity = {"requests": {"computePercent": str(percent), "memory": memory}}
    return [{"name": "share", "exactly": {"deviceClassName": "shared.gpu.nvidia.com", "capacity": capacity}}]
