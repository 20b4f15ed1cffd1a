"""What sysfs says of a PCI device: its root complex and the NUMA nodes next to it.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci and stable/sysfs-devices-node; the attributes `pcieRoot` and
`numaNode`, and which nodes the list form holds, as k8s.io/dynamic-resource-allocation v0.37 has them.
"""

import re
from pathlib import Path

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def pcie_root(sysfs_root: Path, address: str) -> str | None:
    """Return `pci<domain>:<bus>` of the root complex a device hangs on, however many bridges lie between.

    None when sysfs does not tell. A device behind a controller that makes a PCI domain of its own (Intel VMD) has the
    root complex of that controller: the first one of its path, which is also what a network card beside it has.
    """
    link = sysfs_root / "bus/pci/devices" / address
    try:
        parts = link.readlink().parts
    except OSError:
        return None
    return next((part for part in parts if _ROOT.fullmatch(part)), None)


def numa_node(sysfs_root: Path, address: str) -> int | None:
    """Return the NUMA node of a device; None when there is none, which the kernel writes as -1."""
    node = _integer(sysfs_root / "bus/pci/devices" / address / "numa_node")
    return node if node is not None and node >= 0 else None


def nearest_nodes(sysfs_root: Path, node: int) -> tuple[int, ...]:
    """Return a NUMA node and, after it in order, those of its socket that are nearest to it.

    A processor may show its socket as several nodes; and the memory of a coherent GPU is a node without processors,
    next to that of its socket. A node whose socket is not known counts as one of the same.
    """
    nodes = sysfs_root / "devices/system/node"
    try:
        distances = [int(word) for word in (nodes / f"node{node}" / "distance").read_text().split()]
        online = _numbers((nodes / "online").read_text())
    except (OSError, ValueError):
        return (node,)
    if node not in online or len(distances) != len(online):
        return (node,)
    others = {other: distance for other, distance in zip(online, distances, strict=True) if other != node}
    least = min(others.values(), default=0)
    nearest = [other for other, distance in others.items() if distance == least]
    socket = _socket(sysfs_root, node)
    return (node, *(other for other in nearest if _same(socket, _socket(sysfs_root, other))))


def _same(socket: int | None, other: int | None) -> bool:
    return socket is None or other is None or socket == other


def _socket(sysfs_root: Path, node: int) -> int | None:
    """Return the socket of a node's first processor."""
    try:
        cpus = _numbers((sysfs_root / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return None
    if not cpus:
        return None
    return _integer(sysfs_root / f"devices/system/cpu/cpu{cpus[0]}/topology/physical_package_id")


def _integer(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list as the kernel writes it: `0-3,8`.

    Raises:
        ValueError: it is none.
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
