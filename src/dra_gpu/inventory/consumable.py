"""Whole GPUs and partitions that several claims have at once, where the operator wants what NVIDIA's option gives.

They draw on the same counters as ever: the first claim takes them for all, which excludes the GPU's other views.
"""

from dataclasses import replace

import msgspec

from dra_gpu.inventory import capacities
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.options import ConsumableShares


def opened(device: PublishedDevice, shares: ConsumableShares | None) -> PublishedDevice:
    """Return a device of the `gpu` or `mig` view as several claims can have it; itself where that is not wanted.

    A device whose memory is to be counted, but not known, stays one claim's alone.
    """
    if shares is None or (shares.counts_memory and capacities.MEMORY not in device.wire.capacity):
        return device
    wire = msgspec.structs.replace(
        device.wire,
        capacity=capacities.counted(device.wire.capacity, shares),
        allow_multiple_allocations=True,
    )
    return replace(device, wire=wire)
