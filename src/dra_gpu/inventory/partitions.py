"""Which partitions a GPU offers, which views of the whole GPU it offers beside them, and what keeps it from more.

A GPU whose mode changes live (Hopper and later) offers everything at once, whatever its mode is and whichever of this
driver's own partitions exist: nothing published moves when a claim comes or goes. A GPU whose mode waits for a reset
offers what is possible now. Instances that somebody else made are used and never destroyed: they stand in the way of
the whole GPU, and of every partition that cannot exist beside them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dra_gpu.api.resource_v1 import DeviceTaint
from dra_gpu.inventory import counters, order
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, MigProfile, View
from dra_gpu.inventory.options import ViewOptions

MODE_PENDING = "gpu.nvidia.com/mig-mode-pending"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition that a GPU offers.

    Attributes:
        profile: what it is.
        placement: where it lies.
        instance: the administrator's, which is there already; None for one that a claim creates.
        views: how it can be had: as a whole, in fractions, or either.
    """

    profile: MigProfile
    placement: MigPlacement
    instance: MigInstance | None
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """How one GPU can be used.

    Attributes:
        whole: it can be had as a whole, or in shares.
        partitions: in the order in which the scheduler should try them.
        divisible: its counter set counts what partitions take.
        foreign: the instances that somebody else made.
    """

    whole: bool
    partitions: tuple[Partition, ...]
    divisible: bool
    foreign: tuple[MigInstance, ...]


def offer(gpu: Gpu, options: ViewOptions, ours: Collection[tuple[str, MigPlacement]]) -> Offer:
    """Return how a GPU can be used now.

    Args:
        gpu: its facts.
        options: what the operator chose.
        ours: by GPU UUID, the partitions that this driver made for its claims, or is about to make.
    """
    foreign = tuple(found for found in gpu.mig_instances if (gpu.uuid, found.placement) not in ours)
    possible = gpu.mig_live or bool(gpu.mig_enabled)
    divisible = possible and bool(gpu.mig_profiles) and bool({View.MIG, View.SHARED_MIG} & set(options.views))
    return Offer(
        whole=not foreign and (gpu.mig_live or not gpu.mig_enabled),
        partitions=_partitions(gpu, options, foreign) if divisible else (),
        divisible=divisible,
        foreign=foreign,
    )


def taints(gpu: Gpu) -> list[DeviceTaint]:
    """Return what keeps new claims off a GPU whose mode is about to change with its next reset."""
    if not mode_pending(gpu):
        return []
    return [DeviceTaint(key=MODE_PENDING, value="enabled" if gpu.mig_pending else "disabled", effect="NoSchedule")]


def mode_pending(gpu: Gpu) -> bool:
    """Whether the GPU waits for a reset. One whose mode changes live is switched by the claim that needs it."""
    return not gpu.mig_live and gpu.mig_pending is not None and gpu.mig_pending != bool(gpu.mig_enabled)


def _partitions(gpu: Gpu, options: ViewOptions, foreign: Collection[MigInstance]) -> tuple[Partition, ...]:
    existing = {found.placement: found for found in foreign}
    offered = []
    for profile, placement in order.placements(gpu.mig_profiles, existing):
        instance = existing.get(placement)
        views = _views(profile, options, exists=instance is not None)
        if views and (_usable(instance) if instance is not None else _creatable(gpu, placement, existing)):
            offered.append(Partition(profile, placement, instance, views))
    return tuple(offered)


def _views(profile: MigProfile, options: ViewOptions, *, exists: bool) -> tuple[View, ...]:
    # Where nothing is chosen, `+me` and `+gfx` are left out: one more device at every place of their like.
    chosen = options.mig_profiles
    whole = "+" not in profile.name if chosen is None else _named(profile, chosen)
    wanted = {View.MIG: whole or exists, View.SHARED_MIG: _named(profile, options.shared_mig_profiles)}
    return tuple(view for view, chosen in wanted.items() if chosen and view in options.views)


def _named(profile: MigProfile, names: Collection[str]) -> bool:
    return profile.name.lower() in (name.lower() for name in names)


def _usable(instance: MigInstance) -> bool:
    """Only an instance with one compute instance that spans it can be given to somebody as a whole."""
    return instance.compute_instance is not None and instance.uuid is not None


def _creatable(gpu: Gpu, placement: MigPlacement, existing: Collection[MigPlacement]) -> bool:
    overlaps = any(placement.units & other.units for other in existing)
    return not overlaps and (not existing or counters.beside(gpu, placement, existing))
