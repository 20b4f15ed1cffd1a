"""The views of a partition: `mig` and `shared-mig`, as they stand in a slice.

Both take the same of the GPU, so that a partition is had as a whole or in fractions, never as both.
"""

from dra_gpu.api.resource_v1 import CounterSet, Device
from dra_gpu.inventory import attributes, capacities, counters, naming, partitions
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import DriverVersions, Gpu, View
from dra_gpu.inventory.partitions import Partition


def mig(
    gpu: Gpu, name: str, versions: DriverVersions, partition: Partition, counter_set: CounterSet
) -> PublishedDevice:
    """Return the `mig` view of a partition of the GPU of that name."""
    wire = Device(
        name=naming.partition(name, partition.profile, partition.placement),
        attributes=attributes.of_mig(gpu, versions, partition),
        capacity=capacities.of_mig(partition.profile),
        consumes_counters=[counters.of_partition(partition.profile, partition.placement, counter_set)],
        taints=partitions.taints(gpu),
    )
    return PublishedDevice(wire.name, View.MIG, gpu, wire, partition.placement)


def shared_mig(
    gpu: Gpu, name: str, versions: DriverVersions, partition: Partition, counter_set: CounterSet
) -> PublishedDevice:
    """Return the `shared-mig` view of a partition: the first share takes what the partition takes, for all."""
    wire = Device(
        name=naming.partition(name, partition.profile, partition.placement, shared=True),
        attributes=attributes.of_shared_mig(gpu, versions, partition),
        capacity=capacities.of_shared_mig(gpu, partition.profile, versions),
        consumes_counters=[counters.of_partition(partition.profile, partition.placement, counter_set)],
        taints=partitions.taints(gpu),
        allow_multiple_allocations=True,
    )
    return PublishedDevice(wire.name, View.SHARED_MIG, gpu, wire, partition.placement)
