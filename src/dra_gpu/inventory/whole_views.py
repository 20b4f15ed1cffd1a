"""The views of a whole GPU: `gpu`, `shared` and `monitor`, as they stand in a slice."""

from dra_gpu.api.resource_v1 import CounterSet, Device
from dra_gpu.inventory import attributes, capacities, counters, partitions
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import DriverVersions, Gpu, View


def whole(gpu: Gpu, name: str, versions: DriverVersions, nvlink_group: str, counter_set: CounterSet) -> PublishedDevice:
    """Return the `gpu` view: it takes everything, so that the scheduler gives no other view away meanwhile."""
    wire = Device(
        name=name,
        attributes=attributes.of_whole_gpu(gpu, versions, nvlink_group),
        capacity=capacities.of_whole_gpu(gpu),
        consumes_counters=[counters.all_of(counter_set)],
        taints=partitions.taints(gpu),
    )
    return PublishedDevice(name, View.GPU, gpu, wire)


def shared(
    gpu: Gpu, name: str, versions: DriverVersions, nvlink_group: str, counter_set: CounterSet
) -> PublishedDevice:
    """Return the `shared` view: every capacity can be asked for in part; the first share takes everything for all."""
    wire = Device(
        name=f"{name}-shared",
        attributes=attributes.of_shared(gpu, versions, nvlink_group),
        capacity=capacities.of_shared(gpu, versions),
        consumes_counters=[counters.all_of(counter_set)],
        taints=partitions.taints(gpu),
        allow_multiple_allocations=True,
    )
    return PublishedDevice(wire.name, View.SHARED, gpu, wire)


def monitor(gpu: Gpu, name: str, versions: DriverVersions) -> PublishedDevice:
    """Return the `monitor` view: it takes nothing and has no taint, so that it can be had while the GPU is busy."""
    wire = Device(
        name=f"{name}-monitor", attributes=attributes.of_monitor(gpu, versions), allow_multiple_allocations=True
    )
    return PublishedDevice(wire.name, View.MONITOR, gpu, wire)
