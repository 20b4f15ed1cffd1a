"""NVLink groups: which GPUs of a node reach each other over NVLink, directly or through switches.

`nvlinkGroup` is equal within a largest set in which every pair has such a path. GPUs that share no path with anybody
have their own UUID there, so that `matchAttribute` never pairs them: equal fillers would.
"""

from collections.abc import Iterable, Mapping, Sequence

from dra_gpu.inventory.model import Gpu


def nvlink_groups(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the group of every GPU by UUID. The group is named by the lowest UUID in it.

    The sets are found greedily, largest first, ties broken by UUID, so that equal hardware gives equal groups.
    """
    neighbours = {gpu.uuid: {other.uuid for other in gpus if _joined(gpu, other)} for gpu in gpus}
    groups: dict[str, str] = {}
    left = {gpu.uuid for gpu in gpus}
    while left:
        best = min(_maximal_cliques(neighbours, left), key=lambda clique: (-len(clique), sorted(clique)))
        groups.update(dict.fromkeys(best, min(best)))
        left -= best
    return groups


def _joined(gpu: Gpu, other: Gpu) -> bool:
    if gpu.uuid == other.uuid:
        return False
    return (_switched(gpu) and _switched(other)) or (_points_at(gpu, other) and _points_at(other, gpu))


def _switched(gpu: Gpu) -> bool:
    """On an NVSwitch board the remote end is a switch, never a GPU: all GPUs on switches reach each other."""
    return any(link.active and link.remote_is_switch for link in gpu.nvlinks)


def _points_at(gpu: Gpu, other: Gpu) -> bool:
    return other.pci_address is not None and any(
        link.active and not link.remote_is_switch and link.remote_address == other.pci_address for link in gpu.nvlinks
    )


def _maximal_cliques(neighbours: Mapping[str, set[str]], among: set[str]) -> Iterable[frozenset[str]]:
    """Bron-Kerbosch with pivoting; a node has at most 16 GPUs, so the worst case stays small."""
    stack: list[tuple[frozenset[str], set[str], set[str]]] = [(frozenset(), set(among), set())]
    while stack:
        clique, candidates, excluded = stack.pop()
        if not candidates and not excluded:
            yield clique
            continue
        pivot = max(sorted(candidates | excluded), key=lambda node: len(neighbours[node] & candidates))
        for node in sorted(candidates - neighbours[pivot]):
            stack.append((clique | {node}, candidates & neighbours[node], excluded & neighbours[node]))
            candidates = candidates - {node}
            excluded = excluded | {node}
