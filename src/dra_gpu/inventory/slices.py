"""How devices are laid out in ResourceSlices, within the limits of Kubernetes v1.37.

Counter sets stand in slices of their own, at most eight a slice; devices follow in their order, at most 64 a slice,
since any of them may carry a taint or counters (validation of resource.k8s.io/v1). Equal devices give equal slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dra_gpu.api import resource_v1
from dra_gpu.inventory.views import Layout

MAX_COUNTER_SETS = 8
MAX_DEVICES = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SliceContent:
    """What one ResourceSlice carries: counter sets, or devices, never both."""

    devices: tuple[resource_v1.Device, ...] = ()
    counter_sets: tuple[resource_v1.CounterSet, ...] = ()


def arrange(layout: Layout) -> tuple[SliceContent, ...]:
    """Return the slices of a pool: counters first, then devices; one empty slice when there is nothing.

    An empty slice says "the driver is up and has no devices", which no slice at all does not.
    """
    devices = [device.wire for device in layout.inventory.devices.values()]
    contents = [SliceContent(counter_sets=sets) for sets in _chunks(layout.counter_sets, MAX_COUNTER_SETS)]
    contents += [SliceContent(devices=chunk) for chunk in _chunks(devices, MAX_DEVICES)]
    return tuple(contents) or (SliceContent(),)


def _chunks(items: Sequence[T], size: int) -> list[tuple[T, ...]]:
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)]
