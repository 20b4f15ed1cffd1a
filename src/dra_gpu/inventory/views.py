"""From GPUs to the devices of a node: every view of every GPU, with the counters that keep views exclusive."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_gpu.api.resource_v1 import CounterSet
from dra_gpu.inventory import consumable, counters, naming, notes, partition_views, partitions, topology, whole_views
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import DriverVersions, Gpu, MigPlacement, Scan, View
from dra_gpu.inventory.notes import Note
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.inventory.partitions import Offer


@dataclass(frozen=True, slots=True)
class Layout:
    """What a node publishes.

    Attributes:
        inventory: the devices, in the order in which the scheduler should try them.
        counter_sets: what they draw on, in the order of their GPUs.
        notes: what keeps GPUs from being offered in full, for a person.
    """

    inventory: Inventory
    counter_sets: tuple[CounterSet, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class _Planned:
    """A GPU with all that was decided about it."""

    gpu: Gpu
    name: str
    nvlink_group: str
    offer: Offer
    counter_set: CounterSet


def build(
    scan: Scan,
    names: Mapping[str, str],
    options: ViewOptions | None = None,
    ours: Collection[tuple[str, MigPlacement]] = (),
) -> Layout:
    """Return every device of a node in the order in which the scheduler should try them.

    Whole GPUs stand last to first and all other views first to last, so that whole GPUs and parts of GPUs grow
    towards each other; NVLink groups stay together, so that `count: 2` takes neighbours. Partitions stand GPU by GPU.

    A GPU that was lost is published as it was: claims may have it, and others must not get what they have.

    Args:
        scan: what the vendor's library reported.
        names: the name of each slot, from `naming.assign`.
        options: what the operator chose.
        ours: by GPU UUID, the partitions that this driver made for its claims, or is about to make. Whatever else
            exists on a GPU is the administrator's; so is an instance of his that a claim merely uses.
    """
    chosen = options or ViewOptions()
    working = {gpu.uuid: gpu for gpu in scan.gpus}
    lost = {one.last.uuid: one.last for one in scan.sick if one.last is not None and one.last.uuid not in working}
    gpus = [gpu if chosen.numa_lists else replace(gpu, numa_nodes=()) for gpu in (*scan.gpus, *lost.values())]
    groups = topology.nvlink_groups(gpus)
    planned = [_plan(gpu, names, groups, chosen, ours) for gpu in _ordered(gpus, groups)]
    devices = [*_of_whole_gpus(planned, scan.versions, chosen), *_of_partitions(planned, scan.versions, chosen)]
    drawn_on = {drawn.counter_set for device in devices for drawn in device.wire.consumes_counters}
    return Layout(
        Inventory(
            {device.name: device for device in devices},
            scan.versions,
            scan.sick,
            working,
            lost,
        ),
        tuple(one.counter_set for one in planned if one.counter_set.name in drawn_on),
        tuple(note for one in planned for note in notes.about(one.gpu, one.name, one.offer)),
    )


def _ordered(gpus: Sequence[Gpu], groups: Mapping[str, str]) -> list[Gpu]:
    first_slot: dict[str, str] = {}
    for gpu in gpus:
        group = groups[gpu.uuid]
        first_slot[group] = min(first_slot.get(group, naming.slot(gpu)), naming.slot(gpu))
    return sorted(gpus, key=lambda gpu: (first_slot[groups[gpu.uuid]], naming.slot(gpu)))


def _plan(
    gpu: Gpu,
    names: Mapping[str, str],
    groups: Mapping[str, str],
    options: ViewOptions,
    ours: Collection[tuple[str, MigPlacement]],
) -> _Planned:
    name, offer = names[naming.slot(gpu)], partitions.offer(gpu, options, ours)
    return _Planned(gpu, name, groups[gpu.uuid], offer, counters.of_gpu(gpu, name, partitions=offer.divisible))


def _of_whole_gpus(
    planned: Sequence[_Planned], versions: DriverVersions, options: ViewOptions
) -> Iterator[PublishedDevice]:
    for one in reversed(planned):
        if View.GPU in options.views and one.offer.whole:
            device = whole_views.whole(one.gpu, one.name, versions, one.nvlink_group, one.counter_set)
            yield consumable.opened(device, options.consumable_shares)
    for one in planned:
        if View.SHARED in options.views and one.offer.whole:
            yield whole_views.shared(one.gpu, one.name, versions, one.nvlink_group, one.counter_set)
    for one in planned:
        if View.MONITOR in options.views:
            yield whole_views.monitor(one.gpu, one.name, versions)


def _of_partitions(
    planned: Sequence[_Planned], versions: DriverVersions, options: ViewOptions
) -> Iterator[PublishedDevice]:
    for one in planned:
        for partition in one.offer.partitions:
            if View.MIG in partition.views:
                device = partition_views.mig(one.gpu, one.name, versions, partition, one.counter_set)
                yield consumable.opened(device, options.consumable_shares)
        for partition in one.offer.partitions:
            if View.SHARED_MIG in partition.views:
                yield partition_views.shared_mig(one.gpu, one.name, versions, partition, one.counter_set)
