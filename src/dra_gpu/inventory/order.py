"""In which order the places of a GPU's partitions stand in its slice: all that a driver can do for packing.

The scheduler takes the first device of the list that matches and fits (Kubernetes v1.37, structured allocator: no
scoring of devices). So each profile lists its places by what they cost, each time as if those before it were taken:

1. A place that holds more compute slices than the profile takes wastes them: on an H100 a 3g belongs into the upper
   half, which has three slices, and not into the lower one, which has four.
2. Then counts what a place takes from profiles that could lie there without waste, by how many of them a GPU can have:
   that is how often they are asked for. Small ones go where a big one is impossible already; the first of them on an
   H100 breaks the lower half, which one 4g could have, and leaves the upper one to 3g, of which there can be two.

Traces of claims on a node of eight GPUs decided the second rule (`make bench`). To count all profiles alike would keep
the lower half whole: a GPU by itself then serves more of what fits on it, in whatever order it comes, but a node less.

Smaller profiles stand before larger ones, so that a claim that names only a size gets the smallest that is enough.
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
    ranked = sorted((profile for profile in profiles if profile.placements), key=_size)
    there = _union(place.units for place in existing)
    every = [
        _Place(profile, place, _waste(profile, place, ranked[0])) for profile in ranked for place in profile.placements
    ]
    least = {profile: min(one.waste for one in every if one.profile is profile) for profile in ranked}
    possible = [one for one in every if one.waste == least[one.profile] and not one.place.units & there]
    ordered = []
    for profile in ranked:
        places = [one for one in every if one.profile is profile]
        ordered += [(profile, place) for place in _by_cost(places, possible, existing)]
    return ordered


class _Place(NamedTuple):
    """Where a partition of a profile can lie.

    Attributes:
        profile: what it is.
        place: where it lies.
        waste: compute slices that lie there and that it does not take.
    """

    profile: MigProfile
    place: MigPlacement
    waste: int

    @property
    def worth(self) -> int:
        """How much memory is asked for in this form."""
        return self.place.size * self.profile.max_instances


def _size(profile: MigProfile) -> tuple[int, int, int, int]:
    """Small before large; of two equal ones the one that takes fewer of the engines, of which there are few."""
    size = max(place.size for place in profile.placements)
    engines = profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
    return size, profile.slices, engines, profile.profile


def _waste(profile: MigProfile, place: MigPlacement, smallest: MigProfile) -> int:
    """Compute slices lie where partitions of the smallest profile can lie."""
    there = sum(smallest.slices for other in smallest.placements if not other.units & ~place.units)
    return max(there - profile.slices, 0)


def _by_cost(
    places: Iterable[_Place], possible: Sequence[_Place], existing: Collection[MigPlacement]
) -> list[MigPlacement]:
    """Return the places of one profile, each time the cheapest next to those before it; of equal ones the last."""
    left = [one for one in places if one.place not in existing]
    order = sorted((one.place for one in places if one.place in existing), key=lambda place: place.start)
    while left:
        best = min(left, key=lambda one: (one.waste, _taken(one.place, possible), -one.place.start))
        left.remove(best)
        order.append(best.place)
        possible = [one for one in possible if not one.place.units & best.place.units]
    return order


def _taken(place: MigPlacement, possible: Iterable[_Place]) -> int:
    """Return the worth of all that is possible now and not beside a place."""
    return sum(one.worth for one in possible if one.place.units & place.units)


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
