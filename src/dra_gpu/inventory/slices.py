"""How devices are laid out in ResourceSlices, within the limits of Kubernetes v1.37.

Counter sets stand in slices of their own, at most eight a slice; devices follow in their order, at most 64 a slice,
since any of them may carry a taint or counters (validation of resource.k8s.io/v1). The views of whole GPUs come first;
partitions stand two GPUs a slice, so that a change of one GPU touches two slices. Equal devices give equal slices.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from dra_gpu.api import resource_v1
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.views import Layout

MAX_COUNTER_SETS = 8
MAX_DEVICES = 64
_GPUS_WITH_PARTITIONS = 2

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
    devices = layout.inventory.devices.values()
    whole = [device.wire for device in devices if device.placement is None]
    contents = [SliceContent(counter_sets=sets) for sets in _chunks(layout.counter_sets, MAX_COUNTER_SETS)]
    contents += [SliceContent(devices=chunk) for chunk in _chunks(whole, MAX_DEVICES)]
    contents += [
        SliceContent(devices=chunk)
        for few in _partitions(device for device in devices if device.placement is not None)
        for chunk in _chunks(few, MAX_DEVICES)
    ]
    return tuple(contents) or (SliceContent(),)


def _partitions(devices: Iterable[PublishedDevice]) -> list[list[resource_v1.Device]]:
    """Return the partitions of two GPUs together, or of one alone where two would not fit into a slice."""
    slices: list[list[resource_v1.Device]] = []
    gpus = 0
    for _, group in groupby(devices, key=lambda device: device.gpu.uuid):
        of_gpu = [device.wire for device in group]
        if slices and gpus < _GPUS_WITH_PARTITIONS and len(slices[-1]) + len(of_gpu) <= MAX_DEVICES:
            slices[-1] += of_gpu
            gpus += 1
        else:
            slices.append(of_gpu)
            gpus = 1
    return slices


def _chunks(items: Sequence[T], size: int) -> list[tuple[T, ...]]:
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)]
