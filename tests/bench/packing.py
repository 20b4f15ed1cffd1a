"""`python -m tests.bench.packing`: how full a node of eight H100 gets before a claim is refused.

The traces of `tests.bench.traces`, each run against kube-scheduler's own allocator with the devices in the driver's
order and in that of their names. Beside them stands what the claims present need at least, each moment by itself:
without departures that is the best any order or scheduler could do, with them it would take moving running claims.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_gpu.inventory.model import Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.bench import published, traces
from tests.bench.claims import claim
from tests.bench.figures import Figure, over_runs, table
from tests.bench.needs import gpus_needed
from tests.bench.real_allocator import RealAllocator
from tests.bench.traces import GPUS, UNITS, Ask, Trace

OPTIONS = ViewOptions((View.GPU, View.SHARED, View.MIG, View.MONITOR))
_WORSE = 10
"""On so many of 100 seeds the driver's order may be worse than that of names."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a trace came.

    Attributes:
        served: claims that had got their devices before the first one was refused.
        given: memory units that these took, in nodes.
        filled: memory units in use when the first claim was refused, as a part of the node.
    """

    served: int
    given: float
    filled: float


def run(allocator: RealAllocator, slices: Sequence[dict[str, Any]], trace: Trace) -> Outcome:
    """Let the claims of a trace come and go until one is refused."""
    allocator.load(slices)
    held: dict[int, Ask] = {}
    for arrival in trace.arrivals:
        for number in arrival.departed:
            allocator.release(f"job-{number}")
            del held[number]
        if allocator.place(claim(arrival.number, arrival.ask)) is None:
            return _outcome(trace, arrival.number, held)
        held[arrival.number] = arrival.ask
    return _outcome(trace, len(trace.arrivals), held)


def bound(trace: Trace) -> Outcome:
    """Return how far a trace could come if whatever is present could be packed anew at every moment."""
    held: dict[int, Ask] = {}
    for arrival in trace.arrivals:
        for number in arrival.departed:
            del held[number]
        if gpus_needed([*held.values(), arrival.ask]) > GPUS:
            return _outcome(trace, arrival.number, held)
        held[arrival.number] = arrival.ask
    return _outcome(trace, len(trace.arrivals), held)


def _outcome(trace: Trace, served: int, held: Mapping[int, Ask]) -> Outcome:
    node = GPUS * UNITS
    given = sum(arrival.ask.units for arrival in trace.arrivals[:served]) / node
    return Outcome(served, given, sum(ask.units for ask in held.values()) / node)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes of all seeds, in their order."""

    ours: tuple[Outcome, ...]
    alphabetical: tuple[Outcome, ...]
    best: tuple[Outcome, ...]

    def not_worse(self) -> int:
        """On how many seeds the driver's order served at least as many claims as that of names."""
        return sum(ours.served >= other.served for ours, other in zip(self.ours, self.alphabetical, strict=True))


def compare(seen: Scan, seeds: Sequence[int] = traces.SEEDS) -> Comparison:
    """Run the traces of seeds with both orders."""
    made = [traces.trace(seed) for seed in seeds]
    ours, names = published.published(seen, OPTIONS), published.alphabetical(seen, OPTIONS)
    with RealAllocator() as allocator:
        return Comparison(
            tuple(run(allocator, ours, trace) for trace in made),
            tuple(run(allocator, names, trace) for trace in made),
            tuple(bound(trace) for trace in made),
        )


def by_mix(comparison: Comparison, seeds: Sequence[int] = traces.SEEDS) -> str:
    """Return the comparison as text: mean and worst of each mix, without and with departures."""
    heading = "filled at the first refusal, percent of the node: mean (worst)"
    lines = [heading, f"{'':28}{'seeds':>6}{'ours':>12}{'by name':>12}{'best':>12}   not worse, of seeds"]
    made = [traces.trace(seed) for seed in seeds]
    groups = {
        f"{mix}, {'with' if departures else 'no'} departures": [
            position for position, one in enumerate(made) if (one.mix, one.departures) == (mix, departures)
        ]
        for departures in (False, True)
        for mix in traces.MIXES
    }
    groups["all"] = list(range(len(made)))
    for name, positions in groups.items():
        if positions:
            part = Comparison(*(tuple(kind[position] for position in positions) for kind in _kinds(comparison)))
            cells = "".join(f"{_mean_and_worst(kind):>12}" for kind in _kinds(part))
            lines.append(f"{name:28}{len(positions):>6}{cells}{part.not_worse():>8}")
    return "\n".join(lines)


def _kinds(comparison: Comparison) -> tuple[tuple[Outcome, ...], ...]:
    return comparison.ours, comparison.alphabetical, comparison.best


def _mean_and_worst(outcomes: Sequence[Outcome]) -> str:
    filled = [100 * outcome.filled for outcome in outcomes]
    return f"{statistics.mean(filled):.1f} ({min(filled):.0f})"


def figures(comparison: Comparison) -> list[Figure]:
    """Return the comparison as figures: means and worst, and the two targets."""
    found = []
    served = [statistics.mean(outcome.served for outcome in kind) for kind in _kinds(comparison)]
    for name, kind in zip(("ours", "by name"), (comparison.ours, comparison.alphabetical), strict=True):
        filled, best = ([100 * outcome.filled for outcome in one] for one in (kind, comparison.best))
        label = f"packing, {name}: node filled at the first refusal"
        found.append(Figure(f"{label}, mean", statistics.mean(filled), "%", statistics.mean(best)))
        found.append(Figure(f"{label}, worst", min(filled), "%", min(best)))
    worse = len(comparison.ours) - comparison.not_worse()
    return [
        *found,
        Figure("packing: claims before the first refusal, by name / ours", served[1] / served[0], "x", None, 1, "1"),
        Figure(f"packing: seeds of {len(comparison.ours)} on which ours is worse", worse, "", 0, _WORSE, f"{_WORSE}"),
    ]


def main() -> int:
    """Print the comparison; 1 if a target is missed."""
    argparse.ArgumentParser(prog="python -m tests.bench.packing", description=__doc__).parse_args()
    comparison = compare(published.scan())
    rows = over_runs([figures(comparison)])
    sys.stdout.write(f"{by_mix(comparison)}\n\n{table(rows)}\n")
    return int(any(row.verdict == "MISS" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
