"""What sysfs says of a PCI device: its root complex and its NUMA node.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci; `pcieRoot` as k8s.io/dynamic-resource-allocation v0.37 has it.
"""

import re
from pathlib import Path

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def pcie_root(sysfs_root: Path, address: str) -> str | None:
    """Return `pci<domain>:<bus>` of the root complex a device hangs on, None when sysfs does not tell."""
    link = sysfs_root / "bus/pci/devices" / address
    try:
        parts = link.readlink().parts
    except OSError:
        return None
    return next((part for part in parts if _ROOT.fullmatch(part)), None)


def numa_node(sysfs_root: Path, address: str) -> int | None:
    """Return the NUMA node of a device; None when there is none, which the kernel writes as -1."""
    try:
        node = int((sysfs_root / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
