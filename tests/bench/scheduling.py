"""What a node's slices cost the scheduler: time for one pending pod, by kube-scheduler's own allocator, and their size.

The node has eight H100 and is full, so that the pod waits: that is what happens again and again, for every such node.
The pod asks for what costs most of all that can be asked for. The floor is a decision about a node without slices.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from dra_gpu.inventory.model import Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.bench import published, traces
from tests.bench.claims import claim
from tests.bench.figures import Figure
from tests.bench.real_allocator import RealAllocator

_TIMES = 40
_RUNS = 3
_MILLISECOND = 1_000_000
_FEW_NAME = "gpu and shared"
_FEW = (View.GPU, View.SHARED)
_USUAL = (View.GPU, View.SHARED, View.MIG, View.MONITOR)


def measure(seen: Scan) -> list[list[Figure]]:
    """Return the figures of every run."""
    names = tuple(profile.name for profile in seen.gpus[0].mig_profiles)
    kinds: dict[str, tuple[ViewOptions, traces.Ask, float]] = {
        "all views, all profiles": (ViewOptions(_USUAL, mig_profiles=names), traces.ONE, 15.0),
        "default views": (ViewOptions(_USUAL), traces.ONE, 15.0),
        _FEW_NAME: (ViewOptions(_FEW), traces.WHOLE, 0.5),
    }
    with RealAllocator() as allocator:
        return [
            [
                figure
                for kind, (options, ask, limit) in kinds.items()
                for figure in _of_node(allocator, published.published(seen, options), kind, ask, limit)
            ]
            for _ in range(_RUNS)
        ]


def _of_node(
    allocator: RealAllocator, slices: Sequence[dict[str, Any]], kind: str, ask: traces.Ask, limit: float
) -> Iterator[Figure]:
    allocator.load([])
    floor = _milliseconds(allocator, claim(-1, traces.WHOLE))
    allocator.load(slices)
    number = 0
    while allocator.place(claim(number, ask)) is not None:
        number += 1
    slowest = max(_milliseconds(allocator, pending) for pending in _pending(kind))
    devices = sum(len(one["spec"].get("devices", ())) for one in slices)
    label = f"{kind}: {devices} devices"
    yield Figure(f"pending pod, full node, {label}", slowest, "ms", floor, limit, f"{limit:g}")
    yield Figure(
        f"slices of the node, {label}", sum(len(json.dumps(one, separators=(",", ":"))) for one in slices) / 1000, "KB"
    )


def _pending(kind: str) -> Iterator[dict[str, Any]]:
    """Yield what may wait on such a node; a partition by its memory takes an evaluation of every partition there is."""
    whole: tuple[traces.Ask, ...] = (traces.WHOLE, traces.FIFTH)
    yield from (claim(-1, ask) for ask in whole)
    if kind != _FEW_NAME:
        yield from (claim(-1, ask) for ask in (traces.ONE, traces.TWO, traces.THREE, traces.SEVEN))
        by_memory = claim(-1, traces.THREE)
        [request] = by_memory["spec"]["devices"]["requests"]
        [selector] = request["exactly"]["selectors"]
        memory = f'device.capacity["{published.DRIVER}"].memory'
        selector["cel"]["expression"] = f'{memory}.compareTo(quantity("30Gi")) >= 0'
        yield by_memory


def _milliseconds(allocator: RealAllocator, waiting: dict[str, Any]) -> float:
    return statistics.median(allocator.nanoseconds(waiting, _TIMES)) / _MILLISECOND
