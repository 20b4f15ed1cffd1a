"""From GPUs to the devices of a node: every view of every GPU, with the counters that keep views exclusive.

One physical GPU is one counter set. The `gpu` view takes all of it, so that the scheduler gives no other view of that
GPU away meanwhile; `monitor` takes nothing, so that it can be had while the GPU is busy.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dra_gpu.api import quantity, resource_v1
from dra_gpu.inventory import attributes, capacities, naming, topology
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import DriverVersions, Gpu, MigPlacement, Scan, View
from dra_gpu.inventory.options import ViewOptions


@dataclass(frozen=True, slots=True)
class Layout:
    """The inventory, and the counter sets it draws on in the order of their GPUs."""

    inventory: Inventory
    counter_sets: tuple[resource_v1.CounterSet, ...]


def build(
    scan: Scan,
    names: Mapping[str, str],
    options: ViewOptions | None = None,
    ours: Collection[tuple[str, MigPlacement]] = (),  # noqa: ARG001 - for the views of partitions
) -> Layout:
    """Return every device of a node in the order in which the scheduler should try them.

    Whole GPUs stand last to first and all other views first to last, so that whole GPUs and parts of GPUs grow
    towards each other; NVLink groups stay together, so that `count: 2` takes neighbours.

    Args:
        scan: what the vendor's library reported.
        names: the name of each slot, from `naming.assign`.
        options: what the operator chose.
        ours: by GPU UUID, the partitions that claims of this driver hold or are about to: whatever else exists on a GPU
            is the administrator's.
    """
    views = (options or ViewOptions()).views
    groups = topology.nvlink_groups(scan.gpus)
    gpus = _ordered(scan.gpus, groups)
    devices: list[PublishedDevice] = []
    if View.GPU in views:
        devices += [_whole(gpu, names, scan.versions, groups) for gpu in reversed(gpus)]
    if View.SHARED in views:
        devices += [_shared(gpu, names, scan.versions, groups) for gpu in gpus]
    if View.MONITOR in views:
        devices += [_monitor(gpu, names, scan.versions) for gpu in gpus]
    draws = View.GPU in views or View.SHARED in views
    counter_sets = tuple(_counter_set(gpu, names) for gpu in gpus) if draws else ()
    inventory = Inventory({device.name: device for device in devices}, scan.versions, scan.sick)
    return Layout(inventory, counter_sets)


def counter_set_name(gpu_name: str) -> str:
    """Return the name of a GPU's counter set, as NVIDIA's driver spells it."""
    return f"{gpu_name}-counter-set"


def _ordered(gpus: Sequence[Gpu], groups: Mapping[str, str]) -> list[Gpu]:
    first_slot: dict[str, str] = {}
    for gpu in gpus:
        group = groups[gpu.uuid]
        first_slot[group] = min(first_slot.get(group, naming.slot(gpu)), naming.slot(gpu))
    return sorted(gpus, key=lambda gpu: (first_slot[groups[gpu.uuid]], naming.slot(gpu)))


def _whole(gpu: Gpu, names: Mapping[str, str], versions: DriverVersions, groups: Mapping[str, str]) -> PublishedDevice:
    name = names[naming.slot(gpu)]
    wire = resource_v1.Device(
        name=name,
        attributes=attributes.of_whole_gpu(gpu, versions, groups[gpu.uuid]),
        capacity=capacities.of_whole_gpu(gpu),
        consumes_counters=[
            resource_v1.DeviceCounterConsumption(counter_set=counter_set_name(name), counters=_counters(gpu))
        ],
    )
    return PublishedDevice(name, View.GPU, gpu, wire)


def _shared(gpu: Gpu, names: Mapping[str, str], versions: DriverVersions, groups: Mapping[str, str]) -> PublishedDevice:
    """Fractions of a GPU: every capacity can be asked for in part; the first share takes the counters for all."""
    gpu_name = names[naming.slot(gpu)]
    wire = resource_v1.Device(
        name=f"{gpu_name}-shared",
        attributes=attributes.of_shared(gpu, versions, groups[gpu.uuid]),
        capacity=capacities.of_shared(gpu, versions),
        consumes_counters=[
            resource_v1.DeviceCounterConsumption(counter_set=counter_set_name(gpu_name), counters=_counters(gpu))
        ],
        allow_multiple_allocations=True,
    )
    return PublishedDevice(wire.name, View.SHARED, gpu, wire)


def _monitor(gpu: Gpu, names: Mapping[str, str], versions: DriverVersions) -> PublishedDevice:
    name = f"{names[naming.slot(gpu)]}-monitor"
    wire = resource_v1.Device(
        name=name, attributes=attributes.of_monitor(gpu, versions), allow_multiple_allocations=True
    )
    return PublishedDevice(name, View.MONITOR, gpu, wire)


def _counter_set(gpu: Gpu, names: Mapping[str, str]) -> resource_v1.CounterSet:
    return resource_v1.CounterSet(name=counter_set_name(names[naming.slot(gpu)]), counters=_counters(gpu))


def _counters(gpu: Gpu) -> dict[str, resource_v1.Counter]:
    """Return all that a GPU has. A GPU that tells nothing still has one unit, so that it is given away once."""
    counters: dict[str, resource_v1.Counter] = {}
    if gpu.memory_bytes is not None:
        counters["memory"] = resource_v1.Counter(value=quantity.format_bytes(gpu.memory_bytes))
    if gpu.multiprocessors is not None:
        counters["multiprocessors"] = resource_v1.Counter(value=str(gpu.multiprocessors))
    return counters or {"unit": resource_v1.Counter(value="1")}
