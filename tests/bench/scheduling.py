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
_FEW = (View.GPU, View.SHARED)
_USUAL = (View.GPU, View.SHARED, View.MIG, View.MONITOR)


def measure(seen: Scan) -> list[list[Figure]]:
    """Return the figures of every run."""
    names = tuple(profile.name for profile in seen.gpus[0].mig_profiles)
    kinds: dict[str, tuple[ViewOptions, traces.Ask, float]] = {
        "all views, all profiles": (ViewOptions(_USUAL, mig_profiles=names), traces.ONE, 15.0),
        "default views": (ViewOptions(_USUAL), traces.ONE, 15.0),
        "gpu and shared": (ViewOptions(_FEW), traces.WHOLE, 0.5),
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
    floor = _milliseconds(allocator, traces.WHOLE)
    allocator.load(slices)
    number = 0
    while allocator.place(claim(number, ask)) is not None:
        number += 1
    slowest = max(_milliseconds(allocator, pending) for pending in _asks(kind))
    devices = sum(len(one["spec"].get("devices", ())) for one in slices)
    label = f"{kind}: {devices} devices"
    yield Figure(f"pending pod, full node, {label}", slowest, "ms", floor, limit, f"{limit:g}")
    yield Figure(
        f"slices of the node, {label}", sum(len(json.dumps(one, separators=(",", ":"))) for one in slices) / 1000, "KB"
    )


def _asks(kind: str) -> tuple[traces.Ask, ...]:
    whole = (traces.WHOLE, traces.FIFTH)
    return whole if kind == "gpu and shared" else (*whole, traces.ONE, traces.TWO, traces.THREE, traces.SEVEN)


def _milliseconds(allocator: RealAllocator, ask: traces.Ask) -> float:
    return statistics.median(allocator.nanoseconds(claim(-1, ask), _TIMES)) / _MILLISECOND
