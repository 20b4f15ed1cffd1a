"""What one `up` decided: how many nodes, which ports, which secrets. Written once, read by every later command."""

import json
import secrets
import socket
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.layout import Layout, Node

_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Where ports are looked for: above those of well-known services, below those of Kubernetes' NodePorts.
_PORTS = (10_000, 30_000)


@dataclass(frozen=True)
class Ports:
    """TCP ports on the loopback address; free when they were chosen."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int
    kubelet: int


@dataclass(frozen=True)
class Settings:
    """The settings of a running lab. `boot` is the machine's boot id: after a reboot no recorded pid means anything."""

    nodes: int
    ports: Ports
    admin_token: str
    node_tokens: tuple[str, ...]
    boot: str

    @classmethod
    def new(cls, nodes: int) -> "Settings":
        """Choose free ports and new secrets for `nodes` nodes."""
        return cls(
            nodes=nodes,
            ports=Ports(*_free_ports(6)),
            admin_token=secrets.token_hex(16),
            node_tokens=tuple(secrets.token_hex(16) for _ in range(nodes)),
            boot=boot_id(),
        )

    @classmethod
    def load(cls, layout: Layout) -> "Settings | None":
        """Return the settings of the lab at `layout`, or None where there is none."""
        try:
            raw = json.loads(_file(layout).read_text())
            return cls(raw["nodes"], Ports(**raw["ports"]), raw["admin_token"], tuple(raw["node_tokens"]), raw["boot"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def save(self, layout: Layout) -> None:
        """Write the settings, readable by the owner alone."""
        layout.state.mkdir(parents=True, exist_ok=True)
        file = _file(layout)
        file.touch(mode=0o600)
        file.write_text(json.dumps(asdict(self), indent=1))

    def all_nodes(self, layout: Layout) -> list[Node]:
        """Return the nodes, first to last."""
        return [layout.node(number) for number in range(1, self.nodes + 1)]


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _file(layout: Layout) -> Path:
    return layout.state / "settings.json"


def _free_ports(count: int) -> list[int]:
    """Return `count` different ports that the kernel gives to nobody by itself.

    One of its own choice would be given away while the server behind it is stopped, even to a client that tries to
    reach that server and so connects to itself (Source: ip-sysctl, ip_local_port_range).
    """
    low, high = (int(number) for number in _LOCAL_PORTS.read_text().split())
    candidates = [port for port in range(*_PORTS) if not low <= port <= high] or list(range(*_PORTS))
    secrets.SystemRandom().shuffle(candidates)
    with ExitStack() as stack:
        taken: list[int] = []
        for port in candidates:
            if len(taken) == count:
                break
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                taken.append(port)
        return taken
