"""In which order the places of a GPU's partitions stand in its slice: all that a driver can do for packing.

The scheduler takes the first device of the list that matches and fits (Kubernetes v1.37, structured allocator: no
scoring of devices). So each profile lists first the place that costs the least of what larger profiles could still
use, then the next, as if those before it were taken: small ones go where a big one is impossible already. Smaller
profiles stand before larger ones, so that a claim that names only a size gets the smallest that is enough.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from dra_gpu.inventory.model import MigPlacement, MigProfile


def placements(
    profiles: Iterable[MigProfile], existing: Collection[MigPlacement] = ()
) -> list[tuple[MigProfile, MigPlacement]]:
    """Return every place of every profile of one GPU in the order in which the scheduler should try them.

    Args:
        profiles: what the GPU offers.
        existing: partitions that are there and stay, whoever uses them: taken first by those who want their profile,
            since that costs nothing, and in the way of all others.
    """
    ranked = sorted(profiles, key=_size)
    there = _union(place.units for place in existing)
    possible = [
        _Possible(place.units, profile.slices * place.size)
        for profile in ranked
        for place in profile.placements
        if not place.units & there
    ]
    return [(profile, place) for profile in ranked for place in _by_cost(profile, possible, existing)]


class _Possible(NamedTuple):
    """A place that nothing lies in.

    Attributes:
        units: its memory units, as a bit mask.
        worth: compute slices times memory units of what could lie there.
    """

    units: int
    worth: int


def _size(profile: MigProfile) -> tuple[int, int, int, int]:
    """Small before large; of two equal ones the one that takes fewer of the engines, of which there are few."""
    size = max((place.size for place in profile.placements), default=0)
    engines = profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
    return size, profile.slices, engines, profile.profile


def _by_cost(
    profile: MigProfile, possible: Sequence[_Possible], existing: Collection[MigPlacement]
) -> list[MigPlacement]:
    """Return the places of one profile, each time the cheapest next to those before it; of equal ones the last."""
    left = [place for place in profile.placements if place not in existing]
    order = sorted((place for place in profile.placements if place in existing), key=lambda place: place.start)
    # What the whole GPU is worth, by memory unit.
    unit = max((one.worth // one.units.bit_count() for one in possible), default=0)
    while left:
        best = min(left, key=lambda place: (_cost(place.units, possible, unit), -place.start))
        left.remove(best)
        order.append(best)
        possible = [one for one in possible if not one.units & best.units]
    return order


def _cost(units: int, possible: Sequence[_Possible], unit: int) -> int:
    """Return what is lost by a place: the worth of all that is possible now and not beside it.

    A memory unit that nothing can use any more counts as its part of the whole GPU: the seventh 1g of a GPU of seven
    slices and eight units leaves one over, which a 1g of two units would have used.

    Args:
        units: the place, as a bit mask.
        possible: what is possible now.
        unit: worth of one memory unit.
    """
    lost = sum(one.worth for one in possible if one.units & units)
    beside = _union(one.units for one in possible if not one.units & units)
    wasted = _union(one.units for one in possible) & ~beside & ~units
    return lost + wasted.bit_count() * unit


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
