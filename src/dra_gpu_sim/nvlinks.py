"""NVLinks: what boards have, how GPUs of a node are joined by them, and links that go down.

Link counts and one-direction speeds are those that ``nvidia-smi nvlink -s`` prints.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_gpu_sim.state import SimGpu, SimState

Joint = tuple[int, int, int]
"""Two GPUs, and the number of direct links between them."""

_REMOTE_GPU, _REMOTE_SWITCH = 0, 2
"""NVML_NVLINK_DEVICE_TYPE_*."""

_FIRST_SWITCH_BUS = 0x05


@dataclass(frozen=True, slots=True)
class NvLinks:
    """How a board is linked.

    Attributes:
        links: how many it has.
        version: NVML_NVLINK_VERSION_*.
        speed_mbps: MB/s of one link in one direction.
        to_switches: its links end at switches, and not at other boards.
        switches: how many of them are in the node; 0 where they are in trays of a rack, outside this node's PCI.
    """

    links: int
    version: int
    speed_mbps: int
    to_switches: bool = True
    switches: int = 0


CUBE = NvLinks(links=6, version=2, speed_mbps=25_781, to_switches=False)
BRIDGED = NvLinks(links=12, version=4, speed_mbps=25_781, to_switches=False)
GEN3 = NvLinks(links=12, version=4, speed_mbps=25_781, switches=6)
GEN4 = NvLinks(links=18, version=6, speed_mbps=26_562, switches=4)
GEN5 = NvLinks(links=18, version=7, speed_mbps=53_125, switches=2)
RACK = NvLinks(links=18, version=7, speed_mbps=53_125)

PAIRS: tuple[Joint, ...] = ((0, 1, 12), (2, 3, 12))

_HALF_CUBE: tuple[Joint, ...] = ((0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2))
CUBE_MESH: tuple[Joint, ...] = (
    *_HALF_CUBE,
    *((first + 4, second + 4, links) for first, second, links in _HALF_CUBE),
    *((0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)),
)
"""Two fully meshed halves and a link or two across, as a DGX-1 with V100 has (its User Guide). The first half alone is
what cloud machines with four V100 are."""


def fill_links(gpu: SimGpu, board: NvLinks) -> None:
    """Write the links of a board. Those to other boards stay inactive until :func:`join` connects them."""
    gpu.link_count = board.links
    for number in range(board.links):
        link = gpu.links[number]
        link.version, link.speed_mbps, link.remote_link = board.version, board.speed_mbps, number
        if board.to_switches:
            link.state, link.remote_type = 1, _REMOTE_SWITCH
        if board.switches:
            link.remote_bus = _FIRST_SWITCH_BUS + number % board.switches


def join(state: SimState, joints: Sequence[Joint]) -> None:
    """Connect GPUs directly, in the order given; links to GPUs that the node does not have stay inactive."""
    used = [0] * len(state.gpus)
    for first, second, links in joints:
        for _ in range(links):
            if max(first, second) < state.gpu_count:
                _connect(state.gpus[first], used[first], state.gpus[second], used[second])
                _connect(state.gpus[second], used[second], state.gpus[first], used[first])
            used[first] += 1
            used[second] += 1


def _connect(gpu: SimGpu, number: int, peer: SimGpu, peer_number: int) -> None:
    link = gpu.links[number]
    link.state, link.remote_type, link.remote_link = 1, _REMOTE_GPU, peer_number
    link.remote_domain, link.remote_bus, link.remote_device = peer.pci_domain, peer.pci_bus, peer.pci_device


def set_links(state: SimState, gpu: int, links: Iterable[int] | None, *, up: bool) -> None:
    """Let links of a GPU go down or come up; all of them where none are named.

    Raises:
        ValueError: the GPU does not have such a link.
    """
    has = range(state.gpus[gpu].link_count)
    for number in has if links is None else links:
        if number not in has:
            raise ValueError(f"GPU {gpu} has no link {number}: it has {len(has)}, counted from 0")
        state.gpus[gpu].links[number].state = int(up)
