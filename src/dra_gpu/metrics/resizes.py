"""Metrics of capacity that moves between claims, as far as it is the node's."""

from dataclasses import dataclass

from prometheus_client import Histogram

from dra_gpu.metrics.registry import Registry, Snapshot

_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class ResizeMetrics:
    """How far the resizes of a node are.

    Attributes:
        states: resized shares, by how far they are.
        given_back: what is published beyond the hardware.
        seconds: from the wish to the limit.
    """

    states: Snapshot
    given_back: Snapshot
    seconds: Histogram

    @classmethod
    def of(cls, registry: Registry) -> "ResizeMetrics":
        """Define them."""
        return cls(
            states=registry.snapshot(
                "dra_gpu_resizes",
                "gauge",
                "Shares of this node with a ClaimResize, by state: in-force, changing, waiting-for-workload (processes "
                "still have, or could take, more), no-room (other claims have not left yet), limits-not-set (a GPU or "
                "MPS refused), not-prepared",
                ("state",),
            ),
            given_back=registry.snapshot(
                "dra_gpu_capacity_given_back",
                "gauge",
                "What claims have given back of a GPU and is published beyond its hardware: computePercent, memory "
                "(bytes), clients, nvlinkBandwidth (bytes/s)",
                ("gpu", "capacity"),
            ),
            seconds=registry.histogram(
                "dra_gpu_resize_duration_seconds",
                "From the moment that this node saw other amounts wanted of a share until its limits were those; it "
                "includes what the share's processes, and a growth, take",
                buckets=_SECONDS,
            ),
        )
