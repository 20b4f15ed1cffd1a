"""Metrics of how well GPUs are."""

from dataclasses import dataclass

from dra_gpu.metrics.registry import Registry, Snapshot

_PART = ("gpu", "partition")


@dataclass(frozen=True, slots=True)
class GpuHealthMetrics:
    """How well GPUs and partitions are, and what happened to them.

    Attributes:
        health: 1 or 0.
        faults: what is wrong.
        stays: waits for a person.
        xids: how often, by number.
        events: how often, other than XIDs.
        resets: that were asked for.
    """

    health: Snapshot
    faults: Snapshot
    stays: Snapshot
    xids: Snapshot
    events: Snapshot
    resets: Snapshot

    @classmethod
    def of(cls, registry: Registry) -> "GpuHealthMetrics":
        """Define them."""
        return cls(
            health=registry.snapshot(
                "dra_gpu_health",
                "gauge",
                "1 while a GPU is well, 0 while it is not; nothing before it was looked at. A partition, by its "
                "device's name, has a line of its own only while it is sick for itself",
                _PART,
            ),
            faults=registry.snapshot(
                "dra_gpu_health_fault",
                "gauge",
                "1 for each thing that is wrong, by name of the taint behind the driver's domain; with its value, such "
                "as the number of an XID, and its effect (None: a notice)",
                (*_PART, "fault", "value", "effect"),
            ),
            stays=registry.snapshot(
                "dra_gpu_health_stays",
                "gauge",
                "1 where a GPU was sick again three times within an hour, and stays so until a person clears it",
                _PART,
            ),
            xids=registry.snapshot(
                "dra_gpu_xid_errors_total", "counter", "XIDs since the plugin started, ignored ones too", ("gpu", "xid")
            ),
            events=registry.snapshot(
                "dra_gpu_health_events_total",
                "counter",
                "What else was reported of a GPU since the plugin started: ecc (uncorrectable memory errors), lost, "
                "recovery action (it changed)",
                ("gpu", "event"),
            ),
            resets=registry.snapshot(
                "dra_gpu_resets_total",
                "counter",
                "Resets of a GPU that were asked for since the plugin started: done, or failed, as a refusal counts, "
                "too",
                ("gpu", "result"),
            ),
        )
