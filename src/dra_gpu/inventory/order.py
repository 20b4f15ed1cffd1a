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
    fixed = 0
    for place in existing:
        fixed |= place.units
    ordered = []
    for profile in ranked:
        ordered += [(profile, place) for place in _by_cost(profile, possible, fixed, existing)]
    return ordered


def _size(profile: MigProfile) -> tuple[int, int, int, int]:
    """Small before large; of two equal ones the one that takes fewer of the engines, of which there are few."""
    size = max((place.size for place in profile.placements), default=0)
    engines = profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
    return size, profile.slices, engines, profile.profile


def _by_cost(
    profile: MigProfile,
    possible: Sequence[tuple[MigProfile, MigPlacement]],
    fixed: int,
    existing: Collection[MigPlacement],
) -> list[MigPlacement]:
    """Return the places of one profile, each time the cheapest next to those before it; of equal ones the last."""
    left = [place for place in profile.placements if place not in existing]
    order = sorted((place for place in profile.placements if place in existing), key=lambda place: place.start)
    taken = fixed
    while left:
        best = min(left, key=lambda place: (_cost(place, possible, taken), -place.start))
        left.remove(best)
        order.append(best)
        taken |= best.units
    return order


def _cost(place: MigPlacement, possible: Sequence[tuple[MigProfile, MigPlacement]], taken: int) -> int:
    """Return what a place takes from others: the compute and memory of all that is possible now and not beside it."""
    return sum(
        profile.slices * other.size
        for profile, other in possible
        if not other.units & taken and other.units & place.units
    )
