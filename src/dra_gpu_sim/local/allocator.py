"""Stands in for kube-scheduler in the local mode: the first free device whose view the class names.

It keeps what a first-fit by class must keep (one holder of an exclusive device, admin access beside it, the order of
the slices) and no more: no selectors, no capacities, no constraints.
"""

from collections.abc import Collection, Iterable
from typing import Any

VIEW_OF_CLASS = {"gpu.nvidia.com": "gpu", "monitor.nvidia.com": "monitor"}


class UnschedulableError(Exception):
    """No device is free for a request; the message is what a pod's events would say."""


def allocate(
    requests: Iterable[dict[str, Any]], slices: Collection[dict[str, Any]], taken: Collection[tuple[str, str]]
) -> dict[str, Any]:
    """Return the allocation of a claim.

    Args:
        requests: `spec.devices.requests` of the claim, each with `exactly`.
        slices: every published ResourceSlice.
        taken: (pool, device) of what other claims hold exclusively.

    Raises:
        UnschedulableError: a request finds no device.
    """
    results: list[dict[str, Any]] = []
    held = set(taken)
    for request in requests:
        exactly = request["exactly"]
        admin = exactly.get("adminAccess", False)
        for _ in range(exactly.get("count", 1)):
            pool, driver, device = _first(exactly["deviceClassName"], slices, set() if admin else held, results)
            results.append({"request": request["name"], "driver": driver, "pool": pool, "device": device})
            if admin:
                results[-1]["adminAccess"] = True
            else:
                held.add((pool, device))
    return {"devices": {"results": results}}


def _first(
    class_name: str,
    slices: Collection[dict[str, Any]],
    held: Collection[tuple[str, str]],
    chosen: Collection[dict[str, Any]],
) -> tuple[str, str, str]:
    view = VIEW_OF_CLASS[class_name]
    mine = {(result["pool"], result["device"]) for result in chosen}
    for published in sorted(slices, key=lambda item: item["metadata"]["name"]):
        spec = published["spec"]
        pool = spec["pool"]["name"]
        for device in spec.get("devices", ()):
            key = (pool, device["name"])
            if device["attributes"]["type"]["string"] == view and key not in held and key not in mine:
                return pool, spec["driver"], device["name"]
    raise UnschedulableError(f"cannot allocate all claims: no free device of class {class_name}")
