"""Counters that devices of a pool draw on together.

Allocated devices are charged once, however many shares they have. The scheduler compares every counter of the pool and
not only those the device needs: a counter that is overdrawn (its published value was lowered under live allocations)
keeps all counter-consuming devices of the pool from use. Source: allocator_incubating.go `checkAvailableCounters`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dra_gpu.scheduler.amount import Amount
from dra_gpu.scheduler.held import Held
from dra_gpu.scheduler.model import Candidate
from dra_gpu.scheduler.pools import Pool


@dataclass(frozen=True, slots=True)
class Shortage:
    """A counter that does not suffice; `available` is negative where it is overdrawn already."""

    counter_set: str
    counter: str
    wanted: Amount
    available: Amount


class CounterLedger:
    """What is left of the counters of all pools during one attempt to allocate."""

    def __init__(self, pools: Sequence[Pool], held: Held) -> None:
        self._totals = {pool.id: _totals(pool) for pool in pools}
        self._left = {pool.id: _left(pool, self._totals[pool.id], held) for pool in pools}

    def reserve(self, candidate: Candidate) -> Shortage | None:
        """Charge a device; return what is short instead, with nothing charged."""
        left = self._left[candidate.id.pool_id]
        self._charge(candidate, 1)
        short = next((key for key, value in left.items() if value < 0), None)
        if short is None:
            return None
        self._charge(candidate, -1)
        wanted = dict(_wanted(candidate)).get(short, Fraction(0))
        notation = self._totals[candidate.id.pool_id][short].notation
        return Shortage(*short, wanted=Amount(wanted, notation), available=Amount(left[short], notation))

    def release(self, candidate: Candidate) -> None:
        """Give back what `reserve` charged."""
        self._charge(candidate, -1)

    def _charge(self, candidate: Candidate, sign: int) -> None:
        left = self._left[candidate.id.pool_id]
        for key, value in _wanted(candidate):
            left[key] -= sign * value


def _totals(pool: Pool) -> dict[tuple[str, str], Amount]:
    return {
        (counter_set.name, name): Amount.parse(counter.value)
        for counter_set in pool.counter_sets.values()
        for name, counter in counter_set.counters.items()
    }


def _left(pool: Pool, totals: Mapping[tuple[str, str], Amount], held: Held) -> dict[tuple[str, str], Fraction]:
    left = {key: amount.value for key, amount in totals.items()}
    for candidate in (*pool.candidates, *pool.elsewhere):
        if held.in_use(candidate.id):
            for key, value in _wanted(candidate):
                left[key] -= value
    return left


def _wanted(candidate: Candidate) -> Iterable[tuple[tuple[str, str], Fraction]]:
    for consumption in candidate.device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (consumption.counter_set, name), Amount.parse(counter.value).value
