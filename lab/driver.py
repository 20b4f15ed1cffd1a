"""The node plugin on a lab node, as a host process with a node-bound token and simulated GPUs.

Several instances may run side by side, as during an upgrade. The process is the shipped `dra-gpu node` with paths of
its own and nothing else; what differs from a pod is only who starts it.
"""

import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.layout import Layout, Node
from lab.mps import MpsOnNode
from lab.processes import Process
from lab.simulated import SimulatedGpus

_STOPPED_WITHIN_SECONDS = 30.0


@dataclass(frozen=True)
class DriverInstance:
    """One plugin process: it stands for one pod of the DaemonSet, so it has a pod UID."""

    layout: Layout
    node: Node
    gpus: SimulatedGpus
    pod_uid: str
    program: tuple[str, ...]
    extra_arguments: tuple[str, ...] = ()

    @classmethod
    def new(
        cls,
        layout: Layout,
        node: Node,
        gpus: SimulatedGpus,
        *,
        program: Sequence[str] = (),
        extra_arguments: Sequence[str] = (),
    ) -> "DriverInstance":
        """Describe an instance with a new pod UID; `program` replaces `dra-gpu` (another version of it, say)."""
        default = (str(Path(sys.executable).parent / "dra-gpu"),)
        return cls(layout, node, gpus, str(uuid.uuid4()), tuple(program) or default, tuple(extra_arguments))

    @property
    def process(self) -> Process:
        """The record and log of this instance; both carry the beginning of its pod UID."""
        return self.layout.process(f"{self.node.name}-plugin-{self.pod_uid[:8]}")

    @property
    def mps(self) -> MpsOnNode:
        """The MPS service that it asks."""
        return MpsOnNode(self.layout, self.node, self.gpus)

    @property
    def state_dir(self) -> Path:
        """Journal and locks, shared by all instances of the node."""
        return self.node.dir / "driver-state"

    def command(self) -> list[str]:
        """Return the command line."""
        node, root = self.node, self.gpus.root
        return [
            *self.program,
            "node",
            "--vendor=nvidia",
            f"--node-name={node.name}",
            f"--kubeconfig={node.credentials_dir / 'kubeconfig'}",
            f"--driver-root={root / 'driver'}",
            f"--dev-root={root / 'dev'}",
            f"--sysfs-root={root / 'sys'}",
            f"--driver-proc-root={root / 'proc'}",
            f"--boot-id-file={root / 'boot_id'}",
            f"--cdi-root={node.cdi_dir}",
            f"--kubelet-plugins-dir={node.plugins_dir}",
            f"--kubelet-registrar-dir={node.registrar_dir}",
            f"--state-dir={self.state_dir}",
            f"--pod-uid={self.pod_uid}",
            f"--extra-edits={self.gpus.extra_edits}",
            f"--mps-socket={self.mps.socket}",
            # Fractions of one profile, so that examples/fraction-of-a-partition.yaml runs as it is.
            "--shared-mig-profiles=3g.40gb",
            # With cgroup v2 the kubelet's pods lie below; with v1 there is no such directory, and no limit on a cgroup.
            f"--cgroup-root=/sys/fs/cgroup/{self.layout.node_cgroup(node)}",
            *self.extra_arguments,
        ]

    def start(self) -> None:
        """Start the process; raises LabError if it does not even begin."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.process.start(self.command())

    def running(self) -> bool:
        """Return whether the process runs."""
        return self.process.running() is not None

    def kill(self) -> None:
        """End it as a crash does, with SIGKILL."""
        self.process.stop(signal.SIGKILL)

    def stop(self) -> bool:
        """End it as the kubelet does, with SIGTERM; return whether it ended by itself within 30 s."""
        return self.process.stop(signal.SIGTERM, seconds=_STOPPED_WITHIN_SECONDS)
