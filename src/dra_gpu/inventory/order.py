"""In which order the places of a GPU's partitions stand in its slice: all that a driver can do for packing.

The scheduler takes the first device of the list that matches and fits (Kubernetes v1.37, structured allocator: no
scoring of devices). So each profile lists first the place that costs the least of what larger profiles could still
use, then the next, as if those before it were taken: small ones go where a big one is impossible already. Smaller
profiles stand before larger ones, so that a claim that names only a size gets the smallest that is enough.
"""

from collections.abc import Collection, Iterable, Sequence

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
    possible = [(profile, place) for profile in ranked for place in profile.placements]
    return [(profile, place) for profile in ranked for place in _by_cost(profile, possible, existing)]


def _size(profile: MigProfile) -> tuple[int, int, int, int]:
    """Small before large; of two equal ones the one that takes fewer of the engines, of which there are few."""
    size = max((place.size for place in profile.placements), default=0)
    engines = profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
    return size, profile.slices, engines, profile.profile


def _by_cost(
    profile: MigProfile,
    possible: Sequence[tuple[MigProfile, MigPlacement]],
    existing: Collection[MigPlacement],
) -> list[MigPlacement]:
    """Return the places of one profile, each time the cheapest next to those before it; of equal ones the last."""
    left = [place for place in profile.placements if place not in existing]
    order = sorted((place for place in profile.placements if place in existing), key=lambda place: place.start)
    taken = _union(existing)
    while left:
        best = min(left, key=lambda place: (_cost(place, possible, taken), -place.start))
        left.remove(best)
        order.append(best)
        taken |= best.units
    return order


def _cost(place: MigPlacement, possible: Sequence[tuple[MigProfile, MigPlacement]], taken: int) -> int:
    """Return what a place takes from others: compute times memory of all that is possible now and not beside it.

    A memory unit that nothing can use any more counts as its part of the whole GPU: the seventh 1g of a GPU of seven
    slices and eight units leaves one over, which a 1g of two units would have used.
    """
    now = [(profile, other) for profile, other in possible if not other.units & taken]
    lost = sum(profile.slices * other.size for profile, other in now if other.units & place.units)
    beside = [other for _, other in now if not other.units & place.units]
    wasted = _union(other for _, other in now) & ~_union(beside) & ~place.units
    return lost + wasted.bit_count() * max((profile.slices for profile, _ in possible), default=0)


def _union(places: Iterable[MigPlacement]) -> int:
    units = 0
    for place in places:
        units |= place.units
    return units
