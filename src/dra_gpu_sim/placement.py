"""Where the GPUs of a node sit: PCI addresses, root complexes, NUMA nodes and CPUs."""

from dataclasses import dataclass

_HGX = ((0x1B, 0x15), (0x29, 0x15), (0x43, 0x37), (0x52, 0x37), (0x9D, 0x97), (0xAB, 0x97), (0xC3, 0xB7), (0xDF, 0xB7))
"""Bus and root bus of eight GPUs: two share a root complex, four a socket."""

_CPUS_PER_SOCKET = 112
_SOCKETS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """One GPU's place. ``gpu_numa_node``: the node its own memory forms on a coherent platform, else -1."""

    domain: int
    bus: int
    device: int
    root: int
    numa_node: int
    gpu_numa_node: int
    cpu_first: int
    cpu_count: int


def place(index: int, *, rack: bool) -> Place:
    """The place of the GPU at an index: an HGX board per PCI domain, or a rack tray with a domain per GPU."""
    if rack:
        socket = index // 2 % _SOCKETS
        domain = 0x8 + 0x10 * (index // 2) + index % 2
        return Place(domain, 0x01, 0, 0x00, socket, 2 + 8 * index, socket * 72, 72)
    bus, root = _HGX[index % len(_HGX)]
    socket = index % len(_HGX) // (len(_HGX) // _SOCKETS)
    return Place(index // len(_HGX), bus, 0, root, socket, -1, socket * _CPUS_PER_SOCKET, _CPUS_PER_SOCKET)


def bdf(domain: int, bus: int, device: int) -> str:
    """The address as the kernel spells it: lower case, at least four digits of domain."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def nvml_bus_id(domain: int, bus: int, device: int) -> str:
    """The address as NVML spells it: upper case, eight digits of domain."""
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def parse_bus_id(text: str) -> tuple[int, int, int]:
    """Domain, bus and device of an address in any spelling.

    Raises:
        ValueError: it is not one.
    """
    parts = text.strip().split(":")
    if len(parts) == 2:  # noqa: PLR2004 - bus:device without a domain
        parts = ["0", *parts]
    try:
        domain, bus, rest = (*parts,)
        return int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    except ValueError:
        raise ValueError(f"{text!r} is not a PCI address: write it as 0000:1b:00.0") from None
