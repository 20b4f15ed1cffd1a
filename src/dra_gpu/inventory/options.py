"""What an operator may choose about how GPUs are offered."""

from dataclasses import dataclass

from dra_gpu.inventory.model import View

DEFAULT_VIEWS = (View.GPU, View.SHARED, View.MIG, View.MONITOR)


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Which devices a GPU is published as. Each one costs the scheduler time, most of all MIG placements.

    Attributes:
        views: the views to publish, where a GPU can serve them.
        mig_profiles: names of the profiles to publish (`1g.10gb`); None for all but those with `+me` or `+gfx`.
        shared_mig_profiles: names of the profiles of which fractions are published, too.
        numa_lists: `numaNode` lists the nodes nearest to a GPU instead of naming one. Only for clusters whose API
            server and scheduler have the feature gate `DRAListTypeAttributes`: others refuse the slice.
    """

    views: tuple[View, ...] = DEFAULT_VIEWS
    mig_profiles: tuple[str, ...] | None = None
    shared_mig_profiles: tuple[str, ...] = ()
    numa_lists: bool = False
