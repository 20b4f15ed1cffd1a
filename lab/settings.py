"""What one `up` decided: how many nodes, which ports, which secrets. Written once, read by every later command."""

import json
import secrets
import socket
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.layout import Layout, Node


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
    """Return `count` different ports; all are bound at once while they are chosen, so that none is given twice."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
