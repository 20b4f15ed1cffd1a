"""What a node publishes once its claims have given something back: the hardware, and that. Pure.

Only the amounts of shareable devices change, so that the server is written in place: same devices, same order.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dra_gpu.api import quantity
from dra_gpu.api.resource_v1 import Device
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.inventory.slices import SliceContent


def with_given_back(contents: Sequence[SliceContent], more: Mapping[str, Amounts]) -> tuple[SliceContent, ...]:
    """Return slices in which devices have so much more.

    Args:
        contents: the slices of the hardware.
        more: by name of the device; a device that is not published, and a capacity that it lacks, is left out.
    """
    if not any(more.values()):
        return tuple(contents)
    return tuple(
        SliceContent(tuple(_device(one, more.get(one.name)) for one in content.devices), content.counter_sets)
        for content in contents
    )


def _device(device: Device, more: Amounts | None) -> Device:
    if not more or not device.allow_multiple_allocations:
        return device
    added = more.wire()
    capacity = {
        name: replace(one, value=_sum(one.value, added[name])) if name in added else one
        for name, one in device.capacity.items()
    }
    return replace(device, capacity=capacity)


def _sum(value: str, more: str) -> str:
    total = quantity.parse_int(value) + quantity.parse_int(more)
    return quantity.format_bytes(total) if not (value.isdecimal() and more.isdecimal()) else str(total)
