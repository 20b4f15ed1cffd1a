"""The metrics of the MPS service; GPUs and partitions go by their UUIDs there."""

from dataclasses import dataclass

from dra_gpu.metrics.lag import LoopLag
from dra_gpu.metrics.registry import Registry, Snapshot


@dataclass(frozen=True, slots=True)
class MpsMetrics:
    """Everything the MPS service tells.

    Attributes:
        up: control daemons.
        restarts: of them.
        shares: on them.
        clients: attached to them.
        unknown: GPUs of which nobody can tell who is attached.
        lag: of the event loop.
    """

    up: Snapshot
    restarts: Snapshot
    shares: Snapshot
    clients: Snapshot
    unknown: Snapshot
    lag: LoopLag

    @classmethod
    def of(cls, registry: Registry) -> "MpsMetrics":
        """Define them all."""
        gpu = ("gpu",)
        return cls(
            up=registry.snapshot(
                "dra_gpu_mps_daemon_up", "gauge", "1 while the control daemon of a shared GPU or partition runs", gpu
            ),
            restarts=registry.snapshot(
                "dra_gpu_mps_daemon_restarts_total",
                "counter",
                "How often it had to be started again; each time its clients were lost",
                gpu,
            ),
            shares=registry.snapshot("dra_gpu_mps_shares", "gauge", "Shares on it", gpu),
            clients=registry.snapshot("dra_gpu_mps_clients", "gauge", "Processes attached to it", gpu),
            unknown=registry.snapshot(
                "dra_gpu_mps_clients_unknown", "gauge", "1 where the daemon does not tell who is attached", gpu
            ),
            lag=LoopLag.of(registry),
        )
