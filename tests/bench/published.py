"""What a node of simulated GPUs publishes, as the objects that the scheduler reads: made by the driver's own code."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dra_gpu.api.resource_v1 import ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import Scan
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.inventory.slices import SliceContent
from dra_gpu.vendors.cgroups import PodCgroups
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.presence import Presence
from dra_gpu.vendors.nvidia.scan import Scanner
from dra_gpu.vendors.watchdog import Watchdog
from dra_gpu_sim.node import SimulatedNode

DRIVER, NODE = "gpu.nvidia.com", "node-0"


def scan(profile: str = "H100", gpus: int = 8) -> Scan:
    """Return what the driver sees on a simulated node.

    Once per process: nvidia-ml-py keeps the first library it has loaded.
    """
    with tempfile.TemporaryDirectory(prefix="dg-") as directory:
        node = SimulatedNode.create(Path(directory) / "node", profile, gpus=gpus, seed="bench", devices=False)
        watchdog = Watchdog()
        cgroups = PodCgroups(Path("/sys/fs/cgroup"))
        presence = Presence(node.sysfs_root, node.dev_root)
        return asyncio.run(Scanner(Nvml(lambda: node.library), watchdog, node.sysfs_root, presence, cgroups).scan())


def published(seen: Scan, options: ViewOptions) -> list[dict[str, Any]]:
    """Return the slices of a node, in the driver's own order."""
    layout = views.build(seen, naming.assign({}, seen.gpus), options)
    return _objects(slices.arrange(layout))


def alphabetical(seen: Scan, options: ViewOptions) -> list[dict[str, Any]]:
    """Return the same devices in the order of their names."""
    layout = views.build(seen, naming.assign({}, seen.gpus), options)
    named = {name: replace(device, placement=None) for name, device in sorted(layout.inventory.devices.items())}
    return _objects(slices.arrange(replace(layout, inventory=Inventory(named, seen.versions))))


def _objects(contents: Sequence[SliceContent]) -> list[dict[str, Any]]:
    pool = ResourcePool(name=NODE, generation=1, resource_slice_count=len(contents))
    return [
        msgspec.to_builtins(
            ResourceSlice(
                api_version="resource.k8s.io/v1",
                kind="ResourceSlice",
                metadata=ObjectMeta(name=f"{NODE}-{number:02}"),
                spec=ResourceSliceSpec(
                    driver=DRIVER,
                    pool=pool,
                    node_name=NODE,
                    devices=list(content.devices),
                    shared_counters=list(content.counter_sets),
                ),
            )
        )
        for number, content in enumerate(contents)
    ]
