"""The MPS service of a lab node, as a host process beside the node plugin: what the second DaemonSet's pod is.

The service and every daemon that it starts run in a cgroup of their own. So `stop` ends all of them, as the container
runtime does when the pod is deleted, while ending the service's process alone leaves the daemons to their clients.
"""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.api import wait_until
from lab.cgroups import Cgroups
from lab.errors import LabError
from lab.layout import Layout, Node
from lab.processes import Process, listens
from lab.simulated import SimulatedGpus

_LISTENS_WITHIN_SECONDS = 60.0
_STOPPED_WITHIN_SECONDS = 60.0
_SHORT_UUID = 8


@dataclass(frozen=True)
class MpsOnNode:
    """`dra-gpu mps` of one node with the GPUs that it shares."""

    layout: Layout
    node: Node
    gpus: SimulatedGpus

    @property
    def process(self) -> Process:
        """The record and log of the supervisor."""
        return mps_process(self.layout, self.node)

    @property
    def socket(self) -> Path:
        """Where the node plugin calls it."""
        return self.node.mps_dir / "mps.sock"

    def command(self) -> list[str]:
        """Return the command line."""
        return [
            str(Path(sys.executable).parent / "dra-gpu"),
            "mps",
            f"--driver-root={self.gpus.root / 'driver'}",
            f"--directory={self.node.mps_dir}",
            f"--boot-id-file={self.gpus.root / 'boot_id'}",
        ]

    def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            LabError: it does not; the text has the end of its log.
        """
        group = self.layout.mps_cgroup(self.node)
        cgroups = Cgroups.detect()
        cgroups.make(group)
        self.node.mps_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process.start(self.command(), procs_file=cgroups.procs_file(group))
        try:
            wait_until("the MPS service listens", lambda: listens(self.socket), _LISTENS_WITHIN_SECONDS, every=0.05)
        except TimeoutError as error:
            raise LabError(f"{error}; its log {self.process.log} ends with:\n{self.process.tail()}") from error

    def running(self) -> bool:
        """Return whether the supervisor runs."""
        return self.process.running() is not None

    def stop(self) -> None:
        """End everything, as when the pod is deleted: the service with SIGTERM, then daemons and clients' servers."""
        stop_mps(self.layout, self.node)

    def kill_service(self) -> int:
        """End the service below the supervisor as a crash does; return its pid. Daemons and clients go on."""
        pid = self.service_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def service_pid(self) -> int:
        """Return the pid of the service, the supervisor's child.

        Raises:
            LabError: the supervisor does not run, or is about to start the service again.
        """
        supervisor = self.process.running()
        if supervisor is None:
            raise LabError(f"the MPS service of {self.node.name} does not run; see {self.process.log}")
        for pid in Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split():
            if b"\0serve\0" in _command_line(pid):
                return int(pid)
        raise LabError(f"the supervisor {supervisor.pid} of MPS on {self.node.name} has no service below it now")

    def kill_daemon(self, uuid: str) -> int:
        """End the control daemon of a GPU as a crash does; return its pid.

        Raises:
            LabError: the GPU has none.
        """
        pid = self.daemon_pid(uuid)
        if pid is None:
            raise LabError(f"no MPS daemon runs for {uuid} on {self.node.name}")
        os.kill(pid, signal.SIGKILL)
        return pid

    def daemon_pid(self, uuid: str) -> int | None:
        """Return the pid of the control daemon of a GPU, by the daemon's own pid file; None without a living one."""
        short = uuid.removeprefix("GPU-")[:_SHORT_UUID]
        try:
            pid = int((self.node.mps_dir / short / "pipe" / "nvidia-cuda-mps-control.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _command_line(str(pid)) else None


def mps_process(layout: Layout, node: Node) -> Process:
    """Return the record and log of a node's MPS service."""
    return layout.process(f"{node.name}-mps")


def stop_mps(layout: Layout, node: Node) -> None:
    """End the MPS service of a node with its daemons, whoever started it."""
    mps_process(layout, node).stop(signal.SIGTERM, seconds=_STOPPED_WITHIN_SECONDS)
    group, cgroups = layout.mps_cgroup(node), Cgroups.detect()
    if cgroups.exists(group):
        cgroups.kill(group)


def _command_line(pid: str) -> bytes:
    """Return a process's arguments; nothing for one that is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
