"""Taints of a device against the tolerations of a request.

Only NoSchedule and NoExecute keep a device from being allocated; admin access is kept out by them like anybody.
Source: k8s.io/dynamic-resource-allocation v0.37 resourceclaim/devicetoleration.go, allocator `taintPreventsAllocation`.
"""

from collections.abc import Sequence

from dra_gpu.api.resource_v1 import Device, DeviceTaint, DeviceToleration

_PREVENTING = frozenset(("NoSchedule", "NoExecute"))


def preventing(device: Device, tolerations: Sequence[DeviceToleration]) -> DeviceTaint | None:
    """Return the first taint that keeps a request from the device, None if nothing does."""
    for taint in device.taints:
        if taint.effect in _PREVENTING and not any(_tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == taint.value)
