"""The metrics of the controller."""

from dataclasses import dataclass

from prometheus_client import Gauge, Histogram

from dra_gpu.metrics.lag import LoopLag
from dra_gpu.metrics.registry import Registry, Snapshot


@dataclass(frozen=True, slots=True)
class ControllerMetrics:
    """Everything the controller tells.

    Attributes:
        leads: this replica.
        lag: of the event loop.
        queue: what waits to be done.
        failures: work that failed.
        dropped: work that was given up.
        touched: pods.
        removed: slices.
        watch_age: since the API server was heard of.
        resizes: ClaimResizes, by phase.
        growths: what the scheduler was asked for.
        resize_seconds: from a wish to its being in force.
    """

    leads: Gauge
    lag: LoopLag
    queue: Snapshot
    failures: Snapshot
    dropped: Snapshot
    touched: Snapshot
    removed: Snapshot
    watch_age: Snapshot
    resizes: Snapshot
    growths: Snapshot
    resize_seconds: Histogram

    @classmethod
    def of(cls, registry: Registry) -> "ControllerMetrics":
        """Define them all."""
        return cls(
            leads=registry.gauge("dra_gpu_leader", "1 while this replica leads"),
            lag=LoopLag.of(registry),
            queue=registry.snapshot("dra_gpu_queue_length", "gauge", "What waits to be done, by queue", ("queue",)),
            failures=registry.snapshot(
                "dra_gpu_queue_failures_total", "counter", "Work that failed and is tried again, by queue", ("queue",)
            ),
            dropped=registry.snapshot(
                "dra_gpu_queue_dropped_total",
                "counter",
                "Work that was given up: too much waited, or it failed too often",
                ("queue",),
            ),
            touched=registry.snapshot(
                "dra_gpu_pods_woken_total",
                "counter",
                "Waiting pods that were touched since a device for them came free, so that the kubelet tried again",
            ),
            removed=registry.snapshot(
                "dra_gpu_slices_removed_total", "counter", "ResourceSlices of nodes that do not exist any more"
            ),
            watch_age=registry.snapshot(
                "dra_gpu_reflector_age_seconds",
                "gauge",
                "Since the API server was last heard of, by what is watched; up to about 140 s is normal where nothing "
                "changes",
                ("resource",),
            ),
            resizes=registry.snapshot(
                "dra_gpu_claim_resizes", "gauge", "ClaimResizes of the cluster, by phase", ("phase",)
            ),
            growths=registry.snapshot(
                "dra_gpu_growths_total",
                "counter",
                "Growths of claims: asked of the scheduler, granted by it, refused by the API server (quota, policies)",
                ("outcome",),
            ),
            resize_seconds=registry.histogram(
                "dra_gpu_claim_resize_seconds",
                "From when a new wish in a ClaimResize was seen until it was in force",
                buckets=(0.1, 0.25, 0.5, 1, 2, 5, 15, 60, 300, 3600),
            ),
        )
