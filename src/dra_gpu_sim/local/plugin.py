"""The shipped node plugin as a process on a simulated node, with what a test or a demonstration does to a process."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dra_gpu_sim.node import SimulatedNode


@dataclass(slots=True)
class NodePaths:
    """Where the host side of a node lies: what the kubelet and the container runtime look at.

    Attributes:
        root: everything lies below it.
    """

    root: Path

    @property
    def kubelet(self) -> Path:
        """The kubelet's directory."""
        return self.root / "kubelet"

    @property
    def cdi(self) -> Path:
        """The directory of CDI specifications."""
        return self.root / "cdi"

    @property
    def state(self) -> Path:
        """The driver's own directory."""
        return self.kubelet / "plugins" / "gpu.nvidia.com"

    @property
    def mps(self) -> Path:
        """The directory of the MPS service."""
        return self.root / "mps"

    @property
    def cgroups(self) -> Path:
        """The root of a cgroup v2 hierarchy, as far as anybody looks at it."""
        return self.root / "cgroup"

    def make(self) -> None:
        """Make what the kubelet and the kernel would have made."""
        for path in (self.kubelet / "plugins", self.kubelet / "plugins_registry", self.cdi, self.cgroups):
            path.mkdir(parents=True, exist_ok=True)
        (self.cgroups / "cgroup.controllers").write_text("cpu memory pids dmem\n")

    def make_pod_cgroup(self, uid: str, qos: str = "besteffort", *, systemd: bool = False) -> str:
        """Make the cgroup of a pod, as the kubelet does before it prepares the pod's claims.

        Args:
            uid: of the pod.
            qos: `besteffort` or `burstable`; empty for a guaranteed pod.
            systemd: by the kubelet's systemd cgroup driver; else by its cgroupfs driver.

        Returns:
            Its path below the root of the hierarchy.
        """
        name = f"kubepods/{qos}/pod{uid}" if qos else f"kubepods/pod{uid}"
        if systemd:
            parts = ["kubepods", qos] if qos else ["kubepods"]
            slices = ["-".join(parts[: count + 1]) for count in range(len(parts))]
            slices.append(f"{slices[-1]}-pod{uid.replace('-', '_')}")
            name = "/".join(f"{one}.slice" for one in slices)
        (self.cgroups / name).mkdir(parents=True)
        return f"/{name}"


def mps_arguments(node: SimulatedNode, paths: NodePaths) -> list[str]:
    """Return the MPS service's arguments for a simulated node."""
    return [
        "mps",
        f"--driver-root={node.driver_root}",
        f"--directory={paths.mps}",
        f"--boot-id-file={node.boot_id_file}",
    ]


def arguments(node: SimulatedNode, paths: NodePaths, *, node_name: str, kubeconfig: Path) -> list[str]:
    """Return the node plugin's arguments for a simulated node: only paths differ from a real one."""
    return [
        "node",
        "--vendor=nvidia",
        f"--node-name={node_name}",
        f"--kubeconfig={kubeconfig}",
        f"--driver-root={node.driver_root}",
        f"--dev-root={node.dev_root}",
        f"--sysfs-root={node.sysfs_root}",
        f"--boot-id-file={node.boot_id_file}",
        f"--cdi-root={paths.cdi}",
        f"--kubelet-plugins-dir={paths.kubelet / 'plugins'}",
        f"--kubelet-registrar-dir={paths.kubelet / 'plugins_registry'}",
        f"--mps-socket={paths.mps / 'mps.sock'}",
        f"--driver-proc-root={node.proc_root}",
        f"--cgroup-root={paths.cgroups}",
    ]


@dataclass(slots=True)
class PluginProcess:
    """One running instance.

    Attributes:
        log: file with everything it wrote.
        python: the interpreter whose installed package runs.
    """

    log: Path
    python: Path = field(default_factory=lambda: Path(sys.executable))
    process: asyncio.subprocess.Process | None = None

    async def start(self, arguments: Sequence[str]) -> None:
        """Start the process; its log is appended to."""
        environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                self.python, "-I", "-m", "dra_gpu", *arguments, stdout=log, stderr=log, env=environment
            )

    @property
    def pid(self) -> int:
        """Process id of the running instance."""
        if self.process is None:
            raise ProcessLookupError("the node plugin has not been started")
        return self.process.pid

    async def kill(self) -> None:
        """Kill it as a power cut would, and collect it."""
        await self._end(signal.SIGKILL, within=30)

    async def stop(self, within: float = 30) -> int:
        """Ask it to end, as Kubernetes does, and return its exit status.

        Raises:
            TimeoutError: it did not end within Kubernetes' grace period.
        """
        return await self._end(signal.SIGTERM, within=within)

    async def _end(self, number: signal.Signals, *, within: float) -> int:
        if self.process is None:
            return 0
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(within):
            return await self.process.wait()

    def read_log(self) -> str:
        """Return what it wrote so far."""
        return self.log.read_text() if self.log.exists() else ""
