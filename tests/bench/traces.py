"""Traces of claims on a node of eight H100, for the benchmark of packing.

They were written down before any order of devices was tuned to them, and are not to be changed with it. A trace follows
from its seed alone: only `Random.random` is used, which gives the same numbers in every version of Python.

- The mix follows from the seed's last digit: five kinds of nodes, two seeds in ten each (`MIXES`).
- Half of the traces have no departures (seeds 0 to 49): the node fills up. In the others (50 to 99) a claim lives for a
  number of arrivals that is distributed exponentially, long enough that 1.2 nodes are asked for on average.
- Arrivals are independent draws from the mix; there are `ARRIVALS` of them, more than a node can take.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

SEEDS = range(100)
ARRIVALS = 400
GPUS = 8
UNITS = 8
"""Memory units of an H100, and the measure of sizes here: a GPU has eight, a node 64."""

_LOAD = 1.2
_GPU_GIB = 80
_WITHOUT_DEPARTURES = 50


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole GPU."""

    @property
    def units(self) -> float:
        return UNITS


@dataclass(frozen=True, slots=True)
class Share:
    """A fraction of a GPU: percent of its compute, and GiB of its memory."""

    percent: int
    gib: int

    @property
    def units(self) -> float:
        return UNITS * max(self.percent / 100, self.gib / _GPU_GIB)


@dataclass(frozen=True, slots=True)
class Partition:
    """A MIG partition of a profile that takes so many memory units."""

    profile: str
    size: int

    @property
    def units(self) -> float:
        return self.size


Ask = Whole | Share | Partition

ONE, ONE_WIDE, TWO = Partition("1g.10gb", 1), Partition("1g.20gb", 2), Partition("2g.20gb", 2)
THREE, FOUR, SEVEN = Partition("3g.40gb", 4), Partition("4g.40gb", 4), Partition("7g.80gb", 8)
WHOLE = Whole()
TENTH, FIFTH, QUARTER, HALF = Share(10, 5), Share(20, 10), Share(25, 20), Share(50, 40)

MIXES: Mapping[str, Mapping[Ask, int]] = {
    "services": {ONE: 60, ONE_WIDE: 5, TWO: 20, THREE: 10, FOUR: 5},
    "training": {TWO: 15, THREE: 35, FOUR: 15, SEVEN: 15, WHOLE: 20},
    "balanced": {ONE: 30, ONE_WIDE: 10, TWO: 25, THREE: 20, FOUR: 10, SEVEN: 5},
    "everything": {ONE: 25, TWO: 15, THREE: 10, FOUR: 5, WHOLE: 10, TENTH: 10, FIFTH: 10, QUARTER: 10, HALF: 5},
    "notebooks": {ONE: 40, TWO: 15, WHOLE: 5, TENTH: 15, FIFTH: 15, QUARTER: 10},
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A claim comes, and others have gone just before it.

    Attributes:
        number: of the claim, from 0.
        ask: what it asks for.
        departed: numbers of the claims that have ended since the arrival before.
    """

    number: int
    ask: Ask
    departed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A sequence of arrivals and departures."""

    seed: int
    mix: str
    departures: bool
    arrivals: tuple[Arrival, ...]


def has_departures(seed: int) -> bool:
    """Return whether claims end in the trace of a seed."""
    return seed >= _WITHOUT_DEPARTURES


def trace(seed: int) -> Trace:
    """Return the trace of a seed."""
    random = Random(seed)
    mix = tuple(MIXES)[seed % len(MIXES)]
    departures = has_departures(seed)
    return Trace(seed, mix, departures, tuple(_arrivals(random, MIXES[mix], departures=departures)))


def _arrivals(random: Random, mix: Mapping[Ask, int], *, departures: bool) -> Iterator[Arrival]:
    mean = sum(ask.units * weight for ask, weight in mix.items()) / sum(mix.values())
    lifetime = _LOAD * GPUS * UNITS / mean
    ends: dict[int, list[int]] = {}
    for number in range(ARRIVALS):
        ask = _drawn(random, mix)
        if departures:
            lived = 1 + int(-lifetime * math.log(1 - random.random()))
            ends.setdefault(number + lived, []).append(number)
        yield Arrival(number, ask, tuple(ends.get(number, ())))


def _drawn(random: Random, mix: Mapping[Ask, int]) -> Ask:
    left = random.random() * sum(mix.values())
    for ask, weight in mix.items():
        left -= weight
        if left < 0:
            return ask
    return ask
