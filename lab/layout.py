"""Where everything of a running lab lies: one state directory, names of nodes, cgroups, addresses. No I/O."""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.processes import Process

#: Longest path of a unix socket (Source: unix(7), sun_path of 108 bytes with its final NUL).
_LONGEST_SOCKET = 107
_LONGEST_SOCKET_BELOW_NODE = len("/node-99/") + max(
    len("kubelet/plugins_registry/gpu.nvidia.com-reg.sock"), len("mps/01234567/pipe/gpu/s_/control") + 32
)


@dataclass(frozen=True)
class Node:
    """One node: its number counts from 1."""

    state: Path
    number: int

    @property
    def name(self) -> str:
        """The Kubernetes node name."""
        return f"node-{self.number}"

    @property
    def dir(self) -> Path:
        """Everything of this node."""
        return self.state / self.name

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's --root-dir; `plugins` and `plugins_registry` lie in it."""
        return self.dir / "kubelet"

    @property
    def plugins_dir(self) -> Path:
        """Where drivers put the sockets that the kubelet calls."""
        return self.kubelet_root / "plugins"

    @property
    def registrar_dir(self) -> Path:
        """Where the kubelet looks for registration sockets."""
        return self.kubelet_root / "plugins_registry"

    @property
    def cdi_dir(self) -> Path:
        """The one directory in which this node's containerd looks for CDI specs."""
        return self.dir / "cdi"

    @property
    def credentials_dir(self) -> Path:
        """The node plugin's token, CA and kubeconfig."""
        return self.dir / "plugin"

    @property
    def mps_dir(self) -> Path:
        """The MPS service's directory: its socket, and the directories in which daemons and clients meet."""
        return self.dir / "mps"

    @property
    def containerd_socket(self) -> Path:
        """The CRI endpoint."""
        return self.dir / "containerd.sock"

    @property
    def address(self) -> str:
        """The node's own address on this machine's loopback device; the kubelet serves there and nowhere else."""
        return f"10.222.{self._of_lab}.{self.number}"

    @property
    def pod_subnet(self) -> str:
        """The addresses of this node's pods."""
        return f"10.{223 + self.number}.{self._of_lab}.0/24"

    @property
    def _of_lab(self) -> int:
        return _of_lab(self.state)


@dataclass(frozen=True)
class Layout:
    """The state directory of one lab."""

    state: Path

    @classmethod
    def from_environment(cls) -> "Layout":
        """Return the layout below `$DRA_GPU_LAB_DIR`, by default /tmp/dra-gpu-lab.

        Raises:
            LabError: the path is so long that a socket below it cannot be bound.
        """
        state = Path(os.environ.get("DRA_GPU_LAB_DIR") or "/tmp/dra-gpu-lab").absolute()
        room = _LONGEST_SOCKET - _LONGEST_SOCKET_BELOW_NODE
        if len(str(state)) > room:
            raise LabError(
                f"DRA_GPU_LAB_DIR={state} is longer than {room} bytes, too long for sockets in it: choose a shorter one"
            )
        return cls(state)

    @property
    def control(self) -> Path:
        """Everything of the control plane."""
        return self.state / "control"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.control / "kubeconfig"

    @property
    def ca(self) -> Path:
        """What the API server's certificate is checked against; the server makes it itself at its first start."""
        return self.control / "certs" / "apiserver.crt"

    @property
    def services(self) -> str:
        """The addresses of this lab's Services; the first is that of the API server, and the only one that answers."""
        return f"10.221.{_of_lab(self.state)}.0/24"

    @property
    def apiserver_service(self) -> str:
        """The address by which pods reach the API server, on this machine's loopback device."""
        return f"10.221.{_of_lab(self.state)}.1"

    @property
    def logs(self) -> Path:
        """One log per process; kept after `down`."""
        return self.state / "logs"

    @property
    def cgroup(self) -> str:
        """The cgroup of this lab, below which each node has its own; it carries the state directory's name."""
        return self.state.name

    def node_cgroup(self, node: Node) -> str:
        """The kubelet's cgroupRoot."""
        return f"{self.cgroup}/{node.name}"

    def runtime_cgroup(self, node: Node) -> str:
        """The cgroup in which containerd and with it every shim runs, so that none can be missed at the end."""
        return f"{self.cgroup}/{node.name}/runtime"

    def mps_cgroup(self, node: Node) -> str:
        """The cgroup of the MPS service, which its daemons inherit."""
        return f"{self.cgroup}/{node.name}/mps"

    def node(self, number: int) -> Node:
        """Return node `number`, counted from 1."""
        return Node(self.state, number)

    def process(self, name: str) -> Process:
        """Return the record and log of the process `name`, as `etcd` or `node-1-kubelet`."""
        return Process(name, self.state / "pids" / name, self.logs / f"{name}.log")

    def kubelet(self, node: Node) -> Process:
        """Return the kubelet of `node`."""
        return self.process(f"{node.name}-kubelet")

    def containerd(self, node: Node) -> Process:
        """Return the containerd of `node`."""
        return self.process(f"{node.name}-containerd")


def _of_lab(state: Path) -> int:
    """A byte that tells this lab from others on the machine, whose end must not take its addresses away."""
    return zlib.crc32(os.fsencode(state)) & 0xFF
