"""A node whose GPUs are partitioned, and short words for what tests do there."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_gpu_sim.local import containers
from dra_gpu_sim.local.pods import LocalPod
from tests.component.node.node_under_fire import records

_MONITOR = (
    "import pynvml\npynvml.nvmlInit()\npynvml.nvmlDeviceGetHandleByIndex({gpu})\nprint('held', flush=True)\ninput()"
)
VIEWS = "--views=gpu,mig,monitor"
#: Of an H100 by default: a whole GPU, 18 places for partitions, and a view to watch it.
DEVICES = 20
SET_MODE = "nvmlDeviceSetMigMode"
MAKE, MAKE_COMPUTE = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"
DESTROY, DESTROY_COMPUTE = "nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"


def small(start: int, gpu: int = 0) -> str:
    """Name of the device that is one slice of an H100 at a memory unit."""
    return f"gpu-{gpu}-mig-1g10gb-19-{start}"


def half(start: int, gpu: int = 0) -> str:
    """Name of the device that is three slices and half of the memory of an H100 at a memory unit."""
    return f"gpu-{gpu}-mig-3g40gb-9-{start}"


class Partitions:
    """A node with partitions.

    Args:
        world: the node.
        processes: the procfs that its plugin sees, where it is not the machine's.
    """

    def __init__(self, world, processes: Path | None = None) -> None:
        self._processes = processes
        self.world, self.node, self.cluster = world, world.node, world.cluster
        self.before = world.node.snapshot()

    def lying(self, gpu: int = 0) -> list[tuple[str, int, int]]:
        """The truth about a GPU's partitions: profile, first memory unit, number of compute instances."""
        found = self.node.gpus[gpu].instances
        return sorted((one.profile.removeprefix("MIG "), one.start, len(one.compute_instances)) for one in found)

    def mode(self, gpu: int = 0) -> bool:
        """The truth about a GPU's MIG mode."""
        return bool(self.node.gpus[gpu].mig_current)

    def calls(self, *names: str) -> list[str]:
        """The calls of these names that have been made, in order."""
        return [call.name for call in self.node.calls() if call.name in names]

    async def pod(self, name: str, *devices: str) -> LocalPod:
        """Prepare a claim for a pod; it must succeed."""
        claim = self.world.claim(name, *devices)
        answer = await self.world.prepared(claim)
        ids = [one for device in answer.devices for one in device.cdi_ids]
        return LocalPod(
            self.cluster, name, claim, answer.devices, containers.with_devices(self.cluster.paths.cdi, ids), ""
        )

    async def end(self, pod: LocalPod) -> None:
        """Give a pod's claim back; it must succeed."""
        assert (await self.world.unprepare(pod.claim))[pod.claim.uid] == ""
        self.cluster.remove_claim(pod.claim)

    async def made_by_hand(self, start: int = 0, gpu: int = 0) -> None:
        """Let an administrator make a partition of one slice, with NVIDIA's own tool."""
        await self.smi("-i", str(gpu), "-mig", "1")
        await self.smi("mig", "-i", str(gpu), "-cgi", f"19:{start}", "-C")
        self.node.forget_calls()

    @contextmanager
    def monitor(self, gpu: int = 0) -> Iterator[None]:
        """Let a monitor, of process id `monitor_pid`, hold a GPU open."""
        with subprocess.Popen(
            [sys.executable, "-c", _MONITOR.format(gpu=gpu)],
            env=self.node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout.readline() == "held\n"
                self.monitor_pid = process.pid
                self.show(process.pid)
                yield
            finally:
                process.kill()

    def show(self, pid: int) -> None:
        """Let a process be seen by whoever looks for holders."""
        if self._processes is not None:
            (self._processes / str(pid)).symlink_to(f"/proc/{pid}")

    async def smi(self, *arguments: str) -> str:
        """Do what an administrator does with NVIDIA's own tool, and return what it prints."""
        process = await asyncio.create_subprocess_exec(
            self.node.nvidia_smi, *arguments, env=self.node.environment(), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output
        return output.decode()

    def left(self) -> dict[str, object]:
        """Everything that is there only because of claims; empty when nothing is held."""
        now = self.node.snapshot()
        found = {
            "hardware": now if now != self.before else None,
            "records": records(self.world),
            "files": self.world.cdi_files,
            "nodes": sorted(path.name for path in self.node.dev_root.glob("nvidia-caps/nvidia-cap*"))[2:],
        }
        return {name: one for name, one in found.items() if one}

    def uuid(self, start: int, gpu: int = 0) -> str:
        """UUID of the MIG device that begins at a memory unit."""
        [found] = [one for one in self.node.gpus[gpu].instances if one.start == start]
        return found.compute_instances[0].uuid
