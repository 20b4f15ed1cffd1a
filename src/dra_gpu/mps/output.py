"""What nvidia-cuda-mps-control prints, as facts. Pure.

Of protocol 3 only `--format=csv,noheader` is read: its tables cut long numbers. Text that does not have the expected
form raises `ValueError`, for the caller to say which command printed it.
Source: MPS documentation r615, "MPS v3 Interface" and "Legacy MPS v2 Interface".
"""

import re
from dataclasses import dataclass

_UNSET = frozenset({"", "-"})
_SIZE = re.compile(r"(\d+)\s*([KMG]?)i?B?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_NAMESPACE_FIELDS = 7
_CLIENT_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of the daemon, as it lists it.

    Attributes:
        name: of the namespace.
        server: whose it is.
        memory_bytes: its pinned memory limit; None where none is set.
        percent: its active thread percentage; None where none is set.
        low_priority: its clients run below normal priority.
    """

    name: str
    server: str
    memory_bytes: int | None
    percent: float | None
    low_priority: bool


@dataclass(frozen=True, slots=True)
class Client:
    """An attached client: pid, its server and its namespace."""

    pid: int
    server: str
    namespace: str


def namespaces(text: str) -> tuple[Namespace, ...]:
    """Read `namespace list`: name, server, server-status, pinned-memory-limit, percentage, priority, directory."""
    found = []
    for line in _lines(text):
        name, server, _, memory, percent, priority, _ = _fields(line, _NAMESPACE_FIELDS)
        found.append(
            Namespace(
                name=name,
                server=server,
                memory_bytes=None if memory in _UNSET else size(memory),
                percent=None if percent in _UNSET else float(percent.rstrip("%")),
                low_priority=priority not in _UNSET and priority != "0",
            )
        )
    return tuple(found)


def clients(text: str) -> tuple[Client, ...]:
    """Read `client list`: pid, server, device, namespace, command; a command may hold commas."""
    found = {}
    for line in _lines(text):
        pid, server, _, namespace, _ = _fields(line, _CLIENT_FIELDS)
        found[int(pid), namespace] = Client(int(pid), server, namespace)
    return tuple(found.values())


def servers(text: str) -> dict[str, int | None]:
    """Read `server list`: name, uid, pid, …; the pid is None where the server does not run."""
    found: dict[str, int | None] = {}
    for line in _lines(text):
        name, _, pid, *_ = _fields(line, _NAMESPACE_FIELDS)
        found[name] = int(pid) if pid.isdecimal() and int(pid) else None
    return found


def pids(text: str) -> tuple[int, ...]:
    """Read `get_server_list` and `get_client_list`: a pid a line."""
    return tuple(int(line) for line in _lines(text))


def size(text: str) -> int:
    """Read a size in bytes; K, M and G are binary."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size")
    return int(match[1]) * _UNITS[match[2].upper()]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _fields(line: str, count: int) -> list[str]:
    fields = [field.strip() for field in line.split(",", count - 1)]
    if len(fields) != count:
        raise ValueError(f"{line!r} has {len(fields)} fields and not {count}")
    return fields
