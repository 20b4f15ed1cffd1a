"""The counter set of a GPU: what its views draw on, so that the scheduler gives nothing away twice.

Counters of partitions allow exactly what the hardware allows: memory units do not overlap (`memory-slice-<n>`), and
engines are not handed out twice. What a GPU has of a thing is the most that its profiles prove: what one of them takes,
times how many of it there can be at once (Source: NVML, nvmlGpuInstanceProfileInfo_t). `memory` and `multiprocessors`
are large enough for every division: rounding of the sizes that NVML reports must not make two halves more than a whole.
Compute slices, and the instances of a profile, are counted only on GPUs where nothing else limits them already.
"""

from collections.abc import Callable, Iterable

from dra_gpu.api import quantity
from dra_gpu.api.resource_v1 import Counter, CounterSet, DeviceCounterConsumption
from dra_gpu.inventory.model import Gpu, MigPlacement, MigProfile

MEMORY = "memory"
MULTIPROCESSORS = "multiprocessors"
COMPUTE_SLICES = "compute-slices"
_ENGINES: dict[str, Callable[[MigProfile], int]] = {
    "copy-engines": lambda profile: profile.copy_engines,
    "decoders": lambda profile: profile.decoders,
    "encoders": lambda profile: profile.encoders,
    "jpeg-engines": lambda profile: profile.jpeg_engines,
    "ofa-engines": lambda profile: profile.ofa_engines,
}


def set_name(gpu_name: str) -> str:
    """Return the name of a GPU's counter set, as NVIDIA's driver spells it."""
    return f"{gpu_name}-counter-set"


def of_gpu(gpu: Gpu, gpu_name: str, *, partitions: bool) -> CounterSet:
    """Return all that a GPU has.

    Args:
        gpu: its facts.
        gpu_name: the name of its slot.
        partitions: it offers partitions, so that what these draw on is part of the set.
    """
    return CounterSet(name=set_name(gpu_name), counters=_texts(_totals(gpu, partitions=partitions)))


def all_of(counter_set: CounterSet) -> DeviceCounterConsumption:
    """Return what a view of the whole GPU takes: everything."""
    return DeviceCounterConsumption(counter_set=counter_set.name, counters=counter_set.counters)


def of_partition(profile: MigProfile, placement: MigPlacement, counter_set: CounterSet) -> DeviceCounterConsumption:
    """Return what a partition takes of a counter set that counts partitions."""
    takes = _takes(profile, placement)
    kept = {name: amount for name, amount in takes.items() if name in counter_set.counters and amount}
    return DeviceCounterConsumption(counter_set=counter_set.name, counters=_texts(kept))


def beside(gpu: Gpu, placement: MigPlacement, others: Iterable[MigPlacement]) -> bool:
    """Tell whether a partition can exist while all the others do."""
    left = _totals(gpu, partitions=True)
    for place in (placement, *others):
        profile = gpu.mig_profile(place)
        takes = _takes(profile, place) if profile is not None else {}
        for name in left.keys() & takes.keys():
            left[name] -= takes[name]
    return min(left.values()) >= 0


def _totals(gpu: Gpu, *, partitions: bool) -> dict[str, int]:
    """A GPU that tells nothing still has one unit, so that it is given away once."""
    totals: dict[str, int] = {}
    if gpu.memory_bytes is not None:
        totals[MEMORY] = gpu.memory_bytes
    if gpu.multiprocessors is not None:
        totals[MULTIPROCESSORS] = gpu.multiprocessors
    if partitions:
        totals |= _divisible(gpu, totals)
    return totals or {"unit": 1}


def _divisible(gpu: Gpu, whole: dict[str, int]) -> dict[str, int]:
    profiles = gpu.mig_profiles
    totals = {
        MEMORY: max(whole.get(MEMORY, 0), _most(gpu, lambda profile: profile.memory_bytes)),
        MULTIPROCESSORS: max(whole.get(MULTIPROCESSORS, 0), _most(gpu, lambda profile: profile.multiprocessors)),
    }
    if _most(gpu, lambda profile: profile.slices) > gpu.mig_slices:
        totals[COMPUTE_SLICES] = gpu.mig_slices
    for name, amount in _ENGINES.items():
        totals[name] = max(amount(profile) * profile.max_instances for profile in profiles)
    bound = dict(totals)
    totals |= {_instances(profile): profile.max_instances for profile in profiles if not _counted(profile, bound)}
    ends = [place.start + place.size for profile in profiles for place in profile.placements]
    totals |= {_memory_slice(unit): 1 for unit in range(max(ends, default=0))}
    return {name: total for name, total in totals.items() if total}


def _takes(profile: MigProfile, place: MigPlacement) -> dict[str, int]:
    takes = {MEMORY: profile.memory_bytes, MULTIPROCESSORS: profile.multiprocessors, COMPUTE_SLICES: profile.slices}
    takes |= {name: amount(profile) for name, amount in _ENGINES.items()}
    takes |= {_memory_slice(unit): 1 for unit in range(place.start, place.start + place.size)}
    return takes | {_instances(profile): 1}


def _counted(profile: MigProfile, totals: dict[str, int]) -> bool:
    """Whether places or other counters already keep a profile from being had more often than it can be."""
    if _disjoint(profile) <= profile.max_instances:
        return True
    limits = {COMPUTE_SLICES: profile.slices} | {name: amount(profile) for name, amount in _ENGINES.items()}
    return any(
        takes and name in totals and totals[name] // takes <= profile.max_instances for name, takes in limits.items()
    )


def _disjoint(profile: MigProfile) -> int:
    """Return how many partitions of one profile fit side by side."""
    count, end = 0, 0
    for place in sorted(profile.placements, key=lambda place: place.start + place.size):
        if place.start >= end:
            count, end = count + 1, place.start + place.size
    return count


def _most(gpu: Gpu, amount: Callable[[MigProfile], int]) -> int:
    """Return the most of an amount that partitions side by side can add up to, whatever else forbids them."""
    places = [(place, amount(profile)) for profile in gpu.mig_profiles for place in profile.placements]
    best = {0: 0}
    for end in range(1, max((place.start + place.size for place, _ in places), default=0) + 1):
        here = [best[place.start] + value for place, value in places if place.start + place.size == end]
        best[end] = max([best[end - 1], *here])
    return best.get(len(best) - 1, 0)


def _memory_slice(unit: int) -> str:
    return f"memory-slice-{unit}"


def _instances(profile: MigProfile) -> str:
    return f"instances-of-{profile.profile_id}"


def _texts(amounts: dict[str, int]) -> dict[str, Counter]:
    return {
        name: Counter(value=quantity.format_bytes(amount) if name == MEMORY else str(amount))
        for name, amount in amounts.items()
    }
