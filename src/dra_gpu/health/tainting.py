"""Puts the taints of sick GPUs onto their devices, and nothing else. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC

import msgspec

from dra_gpu.api.resource_v1 import DeviceTaint
from dra_gpu.health.state import GpuHealth, HealthTaint, of_device
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import View
from dra_gpu.inventory.views import Layout

MAX_TAINTS = 16
"""On one device. Source: K8s v1.37 k8s.io/api/resource/v1 DeviceTaintsMaxLength."""


def tainted(layout: Layout, states: Mapping[str, GpuHealth]) -> Layout:
    """Return the layout with its devices tainted; devices, their order and their counters stay as they are.

    The `monitor` view has no taint, so that whoever looks at GPUs sees a sick one, too; not even admin access would be
    spared by an eviction.
    """
    devices = {name: _tainted(device, states) for name, device in layout.inventory.devices.items()}
    return replace(layout, inventory=replace(layout.inventory, devices=devices))


def _tainted(device: PublishedDevice, states: Mapping[str, GpuHealth]) -> PublishedDevice:
    if device.view is View.MONITOR:
        return device
    own = {taint.key for taint in device.wire.taints}
    added = [_wire(taint) for taint in of_device(states, device).taints if taint.key not in own]
    if not added:
        return device
    taints = [*device.wire.taints, *added][:MAX_TAINTS]
    return replace(device, wire=msgspec.structs.replace(device.wire, taints=taints))


def _wire(taint: HealthTaint) -> DeviceTaint:
    return DeviceTaint(
        taint.key, taint.effect.value, taint.value, taint.added.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
