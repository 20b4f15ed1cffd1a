"""How many H100 a set of claims needs at least, whoever places them: an exact search, by the hardware's own rules.

Whole GPUs, shares and partitions never lie on one GPU together, so each kind is counted by itself. A GPU is divided in
one of few ways (disjoint memory units, at most seven compute slices; MIG User Guide r580), and shares need as many GPUs
as bins of 100 percent: theirs is the larger part in all asks of the traces.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from tests.bench.traces import UNITS, Ask, Partition, Share, Whole

_SLICES = 7
_HUNDRED = 100
_PLACES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "7g.80gb": (7, 8, (0,)),
    "4g.40gb": (4, 4, (0,)),
    "3g.40gb": (3, 4, (0, 4)),
    "2g.20gb": (2, 2, (0, 2, 4)),
    "1g.20gb": (1, 2, (0, 2, 4, 6)),
    "1g.10gb": (1, 1, (0, 1, 2, 3, 4, 5, 6)),
}
"""By profile: compute slices, memory units, starts; largest first. Source: as tests/unit/inventory/mig_boards.json."""

_PROFILES = tuple(_PLACES)
_PERCENTS = (50, 25, 20, 10)

Counts = tuple[int, ...]


def gpus_needed(asks: Iterable[Ask]) -> int:
    """Return the least number of GPUs on which all of these fit at once."""
    counted = Counter(asks)
    profiles: Counter[str] = Counter()
    percents: Counter[int] = Counter()
    whole = 0
    for ask, count in counted.items():
        if isinstance(ask, Partition):
            profiles[ask.profile] += count
        elif isinstance(ask, Share):
            percents[ask.percent] += count
        elif isinstance(ask, Whole):
            whole += count
    partitions = tuple(profiles[name] for name in _PROFILES)
    return whole + _bins(partitions, _divisions()) + _bins(tuple(percents[p] for p in _PERCENTS), _shares())


@cache
def _bins(counts: Counts, kinds: tuple[Counts, ...]) -> int:
    """Return into how many bins of the given kinds everything goes: first of all one for the largest thing left."""
    largest = next((position for position, count in enumerate(counts) if count), None)
    if largest is None:
        return 0
    rest = {
        tuple(max(count - taken, 0) for count, taken in zip(counts, kind, strict=True))
        for kind in kinds
        if kind[largest]
    }
    return 1 + min(_bins(left, kinds) for left in _least(rest))


def _least(candidates: Iterable[Counts]) -> list[Counts]:
    """Leave out what is at least as much of everything as another one."""
    ordered = sorted(candidates, key=sum)
    kept: list[Counts] = []
    for candidate in ordered:
        if not any(all(a <= b for a, b in zip(other, candidate, strict=True)) for other in kept):
            kept.append(candidate)
    return kept


@cache
def _divisions() -> tuple[Counts, ...]:
    return _maximal({_counts(division) for division in _divided(0, 0, ())})


def _counts(division: Iterable[str]) -> Counts:
    counted = Counter(division)
    return tuple(counted[name] for name in _PROFILES)


def _divided(start: int, slices: int, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield names
    for begin in range(start, UNITS):
        for name, (takes, size, starts) in _PLACES.items():
            if begin in starts and slices + takes <= _SLICES:
                yield from _divided(begin + size, slices + takes, (*names, name))


@cache
def _shares() -> tuple[Counts, ...]:
    found = {
        (halves, quarters, fifths, tenths)
        for halves in range(3)
        for quarters in range(5)
        for fifths in range(6)
        for tenths in range(11)
        if 50 * halves + 25 * quarters + 20 * fifths + 10 * tenths <= _HUNDRED
    }
    return _maximal(found)


def _maximal(found: Iterable[Counts]) -> tuple[Counts, ...]:
    kept: list[Counts] = []
    for candidate in sorted(found, key=lambda counts: (-sum(counts), counts)):
        if not any(all(a >= b for a, b in zip(other, candidate, strict=True)) for other in kept):
            kept.append(candidate)
    return tuple(kept)
