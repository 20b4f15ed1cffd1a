"""NVLink groups: which GPUs of a node reach each other over NVLink, directly or through switches.

`nvlinkGroup` is equal on GPUs of which every pair has such a path, so that `matchAttribute` on it gives a joined set.
GPUs that share no path with anybody have their own UUID there and match nobody: equal fillers would.

Groups do not overlap, hence a GPU between two others is in one group only. The division is the one with the largest
groups: the first is as large as any joined set can be, the second as large as that leaves, and so on. Equal hardware
gives equal groups, in whatever order it is listed.
"""

from collections.abc import Iterator, Sequence

from dra_gpu.inventory.model import Gpu

_MOST_EXACT = 16
"""GPUs joined by direct links, up to which every division is tried; boards have 2, 4, 8 or, through switches, 16."""

_MOST_STATES = 300
"""Sets of GPUs that one search divides before it takes the first division instead of the best."""


def nvlink_groups(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the group of every GPU by UUID. The group is named by the lowest UUID in it."""
    ordered = sorted(gpus, key=lambda gpu: gpu.uuid)
    graph = tuple(sum(1 << position for position, other in enumerate(ordered) if joined(gpu, other)) for gpu in ordered)
    groups: dict[str, str] = {}
    for component in _components(graph):
        for clique in _Division(graph).of(component):
            members = [ordered[position].uuid for position in _bits(clique)]
            groups.update(dict.fromkeys(members, members[0]))
    return groups


def joined(gpu: Gpu, other: Gpu) -> bool:
    """Whether two GPUs reach each other over NVLink, without a third one between them.

    A direct link counts when both ends say so. Through switches all GPUs reach each other that are in the same fabric;
    from Hopper on, only those that have registered with it (Fabric Manager User Guide, "Initializing NVSwitch and
    NVLink"), and none across the cliques of a divided one.
    """
    if gpu.uuid == other.uuid:
        return False
    if _points_at(gpu, other) and _points_at(other, gpu):
        return True
    return _on_switches(gpu) and _on_switches(other) and gpu.fabric == other.fabric


def _on_switches(gpu: Gpu) -> bool:
    """On an NVSwitch board the remote end is a switch, never a GPU."""
    linked = any(link.active and link.remote_is_switch for link in gpu.nvlinks)
    return linked and gpu.fabric_registered is not False


def _points_at(gpu: Gpu, other: Gpu) -> bool:
    return other.pci_address is not None and any(
        link.active and not link.remote_is_switch and link.remote_address == other.pci_address for link in gpu.nvlinks
    )


def _components(graph: Sequence[int]) -> Iterator[int]:
    left = (1 << len(graph)) - 1
    while left:
        found, fresh = 0, left & -left
        while fresh:
            found |= fresh
            reached = 0
            for position in _bits(fresh):
                reached |= graph[position]
            fresh = reached & ~found
        yield found
        left &= ~found


class _Division:
    """Divides connected GPUs into joined sets. Sets of GPUs are bit masks over the order of UUIDs."""

    def __init__(self, graph: Sequence[int]) -> None:
        self._graph = graph
        self._known: dict[int, list[int]] = {}

    def of(self, among: int) -> list[int]:
        """Return the joined sets, largest first."""
        if among.bit_count() > _MOST_EXACT:
            return self._quick(among)
        if among not in self._known:
            self._known[among] = self._best(among)
        return self._known[among]

    def _best(self, among: int) -> list[int]:
        cliques = list(self._maximal_cliques(among))
        size = max((clique.bit_count() for clique in cliques), default=0)
        if size <= 1:
            return [1 << position for position in _bits(among)]
        count, rest = divmod(among.bit_count(), size)
        ideal = [size] * count + [rest] * (rest > 0)
        best: list[int] = []
        for clique in sorted((clique for clique in cliques if clique.bit_count() == size), key=_bits):
            division = [clique, *self.of(among & ~clique)]
            if not best or _sizes(division) > _sizes(best):
                best = division
            if _sizes(best) == ideal or len(self._known) > _MOST_STATES:
                break
        return best

    def _maximal_cliques(self, among: int) -> Iterator[int]:
        """Bron-Kerbosch with pivoting."""
        stack = [(0, among, 0)]
        while stack:
            clique, candidates, excluded = stack.pop()
            if not candidates:
                if not excluded:
                    yield clique
                continue
            pivot = max(_bits(candidates | excluded), key=lambda node: (self._graph[node] & candidates).bit_count())
            for node in _bits(candidates & ~self._graph[pivot]):
                stack.append((clique | 1 << node, candidates & self._graph[node], excluded & self._graph[node]))
                candidates &= ~(1 << node)
                excluded |= 1 << node

    def _quick(self, among: int) -> list[int]:
        """Grow a set from every GPU and keep the largest, again and again: for graphs that no board has."""
        division: list[int] = []
        while among:
            grown = [self._grown(node, among) for node in _bits(among)]
            division.append(max(grown, key=lambda clique: (clique.bit_count(), [-node for node in _bits(clique)])))
            among &= ~division[-1]
        return sorted(division, key=lambda clique: -clique.bit_count())

    def _grown(self, node: int, among: int) -> int:
        clique, candidates = 1 << node, among & self._graph[node]
        while candidates:
            lowest = candidates & -candidates
            clique |= lowest
            candidates &= self._graph[lowest.bit_length() - 1]
        return clique


def _sizes(division: Sequence[int]) -> list[int]:
    return [clique.bit_count() for clique in division]


def _bits(mask: int) -> list[int]:
    return [position for position in range(mask.bit_length()) if mask >> position & 1]
