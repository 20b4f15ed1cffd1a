"""Slices as a node publishes them, for tests of the commands."""

from collections.abc import Sequence

from dra_gpu.api import resource_v1 as api
from dra_gpu.cli.listing import DRIVER
from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.model import Gpu, Scan, View
from dra_gpu.inventory.options import ViewOptions


def slices_of(
    *gpus: Gpu, node: str = "node-a", of: Sequence[View] = (View.GPU, View.SHARED, View.MONITOR)
) -> list[api.ResourceSlice]:
    """Return what a node with these GPUs publishes."""
    layout = views.build(Scan(gpus=gpus), naming.assign({}, gpus), ViewOptions(tuple(of)))
    return [
        api.ResourceSlice(
            spec=api.ResourceSliceSpec(
                driver=DRIVER,
                pool=api.ResourcePool(name=node),
                node_name=node,
                devices=list(content.devices),
                shared_counters=list(content.counter_sets),
            )
        )
        for content in slices.arrange(layout)
    ]
