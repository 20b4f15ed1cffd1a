"""A node whose GPUs are shared: the shipped node plugin and `dra-gpu mps`, pods with shares, programs in them."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

from dra_gpu.mps.client import MpsClient
from dra_gpu.mps.process import PID_FILE
from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.client import CudaClient
from dra_gpu_sim.local import containers, pods
from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.pods import LocalPod
from dra_gpu_sim.mounts import unmount_all
from tests.component.node.node_under_fire import PATIENCE, SOON_REFUSED, children, command_line, records, rows

CLASSIC, RECENT = "580.65.06", "615.71.02"
VIEWS = "--views=gpu,shared,monitor"
GIB = 2**30


def whole_gpu(count: int = 1) -> list[dict]:
    return [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}]


class Sharing:
    """A node with shares, and short words for what tests do there."""

    def __init__(self, world) -> None:
        self.world = world
        self.cluster, self.node, self.kubelet = world.cluster, world.cluster.node, world.kubelet
        self.mps = MpsClient(self.cluster.paths.mps / "mps.sock", call_seconds=90.0, absent_seconds=PATIENCE)
        self.service = None
        self.stack = ExitStack()
        with self.node.state() as state:
            state.mps_start_ms = 0  # what a daemon takes to start is not what is tested
        self.before = self.node.snapshot()

    async def start(self, *more: str, mps: bool = True, cgroup_v2: bool = True) -> "Sharing":
        if not cgroup_v2:
            (self.cluster.paths.cgroups / "cgroup.controllers").unlink()
        if mps:
            self.service = await self.cluster.start_mps()
        await self.world.start(VIEWS, *more, devices=3 * len(self.node.gpus))
        return self

    async def pod(
        self, name="job", percent=20, memory="10Gi", *, requests=None, config=(), qos="besteffort", systemd=False
    ) -> LocalPod:
        """Schedule and prepare a pod; it must succeed."""
        uid = str(uuid.uuid4())
        cgroup = self.cluster.paths.make_pod_cgroup(uid, qos, systemd=systemd)
        claim = self.claim(name, percent, memory, requests=requests, config=config, pod_uid=uid)
        answer = await self.world.prepared(claim)
        return self.of(name, claim, answer, cgroup)

    def of(self, name, claim, answer, cgroup) -> LocalPod:
        """A pod that uses a prepared claim."""
        ids = [one for device in answer.devices for one in device.cdi_ids]
        container = containers.with_devices(self.cluster.paths.cdi, ids)
        return LocalPod(self.cluster, name, claim, answer.devices, container, cgroup)

    def claim(self, name="job", percent=20, memory="10Gi", *, requests=None, config=(), pod_uid="", results=None):
        """Make a claim for a share that the scheduler has allocated."""
        asked = requests or pods.a_share(percent, memory)
        return self.cluster.add_claim(
            name, requests=asked, results=results, config=list(config) or None, pod_uid=pod_uid
        )

    def join(self, claim, name: str) -> str:
        """Let one more pod use a claim, and return its cgroup."""
        uid = str(uuid.uuid4())
        found = self.object_of(claim)
        found["status"].setdefault("reservedFor", []).append({"resource": "pods", "name": name, "uid": uid})
        kind = resources.by_plural("resourceclaims")
        self.cluster.api.store.replace(kind, claim.namespace, claim.name, found, status_only=True)
        return self.cluster.paths.make_pod_cgroup(uid)

    def object_of(self, claim) -> dict:
        everything = self.cluster.api.objects("resourceclaims", claim.namespace)
        return json.loads(json.dumps(next(one for one in everything if one["metadata"]["name"] == claim.name)))

    def events(self, reason: str) -> list[dict]:
        return [event for event in self.cluster.api.objects("events") if event["reason"] == reason]

    async def status_of(self, claim, within: float = PATIENCE) -> list[dict]:
        """What the node plugin writes into a claim's status."""

        def devices() -> list[dict]:
            return self.object_of(claim)["status"].get("devices", [])

        await self.cluster.api.log.wait_for(lambda _: devices(), within)
        return devices()

    def result(self, name: str, percent: int = 20, memory: str = "10Gi") -> dict:
        """A share of the first GPU, as a scheduler allocates it that takes the GPU for free."""
        return {
            "request": "share",
            "driver": DRIVER,
            "pool": self.cluster.node_name,
            "device": "gpu-0-shared",
            "shareID": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
            "consumedCapacity": {"computePercent": str(percent), "memory": memory},
        }

    async def until_read(self, claim: str, times: int = 1) -> None:
        """Wait until the plugin has read a claim so many times."""
        await self.cluster.api.log.wait_for(
            lambda log: sum(read.name == claim for read in log.since(verb="get")) >= times
        )

    def service_files(self) -> list[str]:
        """Everything that lies in the MPS service's directory."""
        return sorted(str(path) for path in self.cluster.paths.mps.rglob("*"))

    def client(self, pod: LocalPod, *, user: int | None = None):
        """Start a program in a pod; it must get its GPU."""
        client = self.stack.enter_context(pod.client() if user is None else self._as(pod, user))
        assert client.attached.startswith("attached"), client.attached
        return client

    def _as(self, pod: LocalPod, user: int) -> CudaClient:
        """Start a program of another user, to whom the pipe directory is mounted and what is above it closed."""
        environment = pod._environment()
        mounted = self.cluster.root / f"mounted-{user}"
        mounted.mkdir()
        self.cluster.root.chmod(0o755)
        subprocess.run(["mount", "--bind", environment["CUDA_MPS_PIPE_DIRECTORY"], mounted], check=True)
        self.stack.callback(subprocess.run, ["umount", mounted], check=True)
        return CudaClient(self.node.cuda_client, (), {**environment, "CUDA_MPS_PIPE_DIRECTORY": str(mounted)}, user)

    def rebel(self, pod: LocalPod, **environment: str):
        """Start a program that sets its own environment; what the CDI file set is gone, but not the mount."""
        pipe = next((host for host, path in pod.container.mounts.items() if path == "/run/dra-gpu/mps"), None)
        gpus = [gpu.index for gpu in self.node.gpus if f"/dev/nvidia{gpu.minor}" in pod.container.nodes.values()]
        client = self.stack.enter_context(
            self.node.client(pipe=Path(pipe) if pipe else None, gpus=gpus, cgroup=pod.cgroup, environment=environment)
        )
        assert client.attached.startswith("attached"), client.attached
        return client

    def truth(self, client):
        """What the hardware lets a program do."""
        return next(one for one in self.node.clients() if one.pid == client.pid)

    async def capacities(self, pod: LocalPod) -> dict[str, str]:
        """What the claim's status says about who enforces what."""
        [device] = await pod.wait_status()
        return {name: one["mechanism"] for name, one in device["data"]["capacities"].items()}

    async def end(self, *which: LocalPod) -> None:
        for pod in which:
            await pod.end(self.kubelet)

    @property
    def modes(self) -> list[int]:
        """The truth about the GPUs' compute modes."""
        return [gpu.compute_mode for gpu in self.node.gpus]

    @property
    def server_pid(self) -> int:
        """The MPS service itself, below its supervisor."""
        [pid] = [pid for pid in children(self.service.pid) if b"serve" in command_line(pid)]
        return pid

    def daemon_pids(self) -> list[int]:
        return [int(path.read_text()) for path in self.cluster.paths.mps.glob(f"*/pipe/{PID_FILE}")]

    async def daemon_of(self, gpu: str) -> int:
        """The pid of a GPU's control daemon."""
        [found] = await self.mps.clients(gpu)
        return found.daemon.pid

    async def share_names(self) -> set[str]:
        """Every share that the MPS service has."""
        return {share.name for gpu in await self.mps.clients() for share in gpu.shares}

    async def prepare_by(self, plugin, claim) -> dict:
        """Prepare by another instance than the one that registered last, as a kubelet that has not noticed yet."""
        everyone = self.kubelet.plugins
        self.kubelet.plugins = [plugin]
        try:
            call = asyncio.create_task(self.kubelet.prepare(claim, driver=DRIVER, within=SOON_REFUSED))
            await asyncio.sleep(0)  # it chooses the instance with its first step
        finally:
            self.kubelet.plugins = everyone
        return await call

    async def reboot(self) -> None:
        """End everything and boot: nothing runs, and what lay in memory is gone."""
        await self.world.plugin.kill()
        os.kill(self.server_pid, signal.SIGKILL)
        await self.service.kill()
        for pid in self.daemon_pids():
            os.kill(pid, signal.SIGKILL)
        unmount_all(self.cluster.paths.mps)
        shutil.rmtree(self.cluster.paths.mps)
        for path in self.cluster.paths.cdi.iterdir():
            path.unlink()
        self.node.reboot()
        self.kubelet.restart()

    def left(self) -> dict[str, object]:
        """Everything that is there only because of claims; empty when nothing is held."""
        now = self.node.snapshot()
        found = {
            "hardware": now if now != self.before else None,
            "records": records(self.world),
            "shares": rows(self.world, "SELECT * FROM shares"),
            "cgroups": rows(self.world, "SELECT * FROM memory_cgroups"),
            "files": self.world.cdi_files,
            "mps": sorted(str(path) for path in self.cluster.paths.mps.glob("*/")),
        }
        return {name: one for name, one in found.items() if one}

    def close(self) -> None:
        """End programs and daemons; outside of a container daemons outlive their service."""
        self.stack.close()
        for pid in self.daemon_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
