"""The metrics of the node plugin. Names of NVIDIA's driver (`nvidia_dra_`) where the meaning is the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from dra_gpu.metrics.gpu_health import GpuHealthMetrics
from dra_gpu.metrics.lag import LoopLag
from dra_gpu.metrics.registry import Registry, Snapshot
from dra_gpu.metrics.resizes import ResizeMetrics

PREPARE, UNPREPARE = "prepare", "unprepare"
_CLAIM = ("namespace", "claim", "gpu")


class CallMetrics:
    """What the kubelet's calls came to.

    Args:
        registry: takes the metrics.
        driver: our name, a label of each.
    """

    def __init__(self, registry: Registry, driver: str) -> None:
        self._driver = driver
        labels = ("driver", "operation")
        self._requests = registry.counter(
            "nvidia_dra_requests_total",
            "Calls of the kubelet (operation prepare or unprepare), each for all claims of a pod",
            labels,
        )
        self._durations = registry.histogram(
            "nvidia_dra_request_duration_seconds",
            "How long these calls took, those with refused claims among them",
            labels,
        )
        self._in_flight = registry.gauge(
            "nvidia_dra_requests_inflight", "Calls of the kubelet that are being worked on", labels
        )
        errors = "by the kind of obstacle; the message is in the pod's events and the log"
        self._errors = {
            PREPARE: registry.counter(
                "nvidia_dra_node_prepare_errors_total",
                f"Claims that were not prepared, {errors}",
                ("driver", "error_type"),
            ),
            UNPREPARE: registry.counter(
                "nvidia_dra_node_unprepare_errors_total",
                f"Claims that were not given back, {errors}",
                ("driver", "error_type"),
            ),
        }
        for operation in (PREPARE, UNPREPARE):  # series that exist before anything has happened
            self._requests.labels(driver, operation)
            self._durations.labels(driver, operation)
            self._in_flight.labels(driver, operation)

    @contextmanager
    def call(self, operation: str) -> Iterator[None]:
        """Count the enclosed block as one call, however it ends."""
        running = self._in_flight.labels(self._driver, operation)
        self._requests.labels(self._driver, operation).inc()
        running.inc()
        try:
            with self._durations.labels(self._driver, operation).time():
                yield
        finally:
            running.dec()

    def failed(self, operation: str, kind: str) -> None:
        """Count a claim that was refused; `kind` is one of few words."""
        self._errors[operation].labels(self._driver, kind).inc()


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Everything the node plugin tells; what has no other source is set at each scrape.

    Attributes:
        calls: of the kubelet.
        lag: of the event loop.
        prepared: devices that claims have, by view.
        claims: records of the journal, by state.
        journal_bytes: of the journal's files.
        gpus: of the node, working or sick.
        capacity: what each GPU has.
        held: what claims hold of it.
        free: what they do not.
        watch_age: since the API server was heard of.
        registered: with the kubelet.
        published: the slices are what they should be.
        events_dropped: Events that were lost.
        dropped: what was lost of each queue.
        usage: what claims use.
        health: how well GPUs are.
        resizes: how far they are.
    """

    calls: CallMetrics
    lag: LoopLag
    prepared: Snapshot
    claims: Snapshot
    journal_bytes: Gauge
    gpus: Snapshot
    capacity: Snapshot
    held: Snapshot
    free: Snapshot
    watch_age: Snapshot
    registered: Gauge
    published: Gauge
    events_dropped: Snapshot
    dropped: Snapshot
    usage: "UsageMetrics"
    health: GpuHealthMetrics
    resizes: ResizeMetrics

    @classmethod
    def of(cls, registry: Registry, driver: str) -> "NodeMetrics":
        """Define them all."""
        of_gpu = ("gpu", "capacity")
        return cls(
            calls=CallMetrics(registry, driver),
            lag=LoopLag.of(registry),
            prepared=registry.snapshot(
                "nvidia_dra_prepared_devices",
                "gauge",
                "Devices that claims have on this node, by view; from the journal, so a restart changes nothing",
                ("node", "driver", "device_type"),
            ),
            claims=registry.snapshot(
                "dra_gpu_claims", "gauge", "Claims in the journal of this node, by state", ("state",)
            ),
            journal_bytes=registry.gauge("dra_gpu_journal_bytes", "Size of the journal's files"),
            gpus=registry.snapshot("dra_gpu_gpus", "gauge", "GPUs of this node that work, and that do not", ("state",)),
            capacity=registry.snapshot(
                "dra_gpu_capacity",
                "gauge",
                "What a GPU has: memory in bytes, computePercent of its SMs, MPS clients, nvlinkBandwidth in bytes/s "
                "of one direction",
                of_gpu,
            ),
            held=registry.snapshot(
                "dra_gpu_capacity_held",
                "gauge",
                "What of it claims hold, in the same units; whether they use it is told by the metrics of usage",
                of_gpu,
            ),
            free=registry.snapshot(
                "dra_gpu_capacity_free",
                "gauge",
                "What of it no claim holds; a partition needs a free place as well",
                of_gpu,
            ),
            watch_age=registry.snapshot(
                "dra_gpu_reflector_age_seconds",
                "gauge",
                "Since the API server was last heard of, by what is watched; up to about 140 s is normal where nothing "
                "changes",
                ("resource",),
            ),
            registered=registry.gauge("dra_gpu_registered", "1 while the kubelet has this driver registered"),
            published=registry.gauge(
                "dra_gpu_published", "1 while the ResourceSlices of this node are known to be as they should be"
            ),
            events_dropped=registry.snapshot(
                "dra_gpu_events_dropped_total", "counter", "Kubernetes Events that could not be delivered"
            ),
            dropped=registry.snapshot(
                "dra_gpu_queue_dropped_total",
                "counter",
                "What was given up since too much waited, or it failed too often: claim-statuses (the next start says "
                "them again), events, waiting-claims (their pods are tried again by the kubelet alone), resizes (all "
                "are looked at again within seconds)",
                ("queue",),
            ),
            usage=UsageMetrics.of(registry),
            health=GpuHealthMetrics.of(registry),
            resizes=ResizeMetrics.of(registry),
        )


@dataclass(frozen=True, slots=True)
class UsageMetrics:
    """What claims use of what they hold.

    Attributes:
        memory: bytes, with where the figure comes from.
        memory_held: bytes.
        sm: share of the time.
        unavailable: what cannot be told, and why.
        unattributed: bytes on a GPU that belong to no claim.
        gpu_memory: bytes in use on a GPU, whoever has them.
        nvlink: bytes since the driver was loaded.
        age: seconds since the last look.
        failures: looks at GPUs that failed.
    """

    memory: Snapshot
    memory_held: Snapshot
    sm: Snapshot
    unavailable: Snapshot
    unattributed: Snapshot
    gpu_memory: Snapshot
    nvlink: Snapshot
    age: Snapshot
    failures: Counter

    @classmethod
    def of(cls, registry: Registry) -> "UsageMetrics":
        """Define them."""
        return cls(
            memory=registry.snapshot(
                "dra_gpu_claim_memory_used_bytes",
                "gauge",
                "Device memory that the processes of a claim use on a GPU; source cgroup is what the driver charges "
                "its pods, process the sum over its processes",
                (*_CLAIM, "source"),
            ),
            memory_held=registry.snapshot(
                "dra_gpu_claim_memory_held_bytes", "gauge", "Device memory that a claim holds on a GPU", _CLAIM
            ),
            sm=registry.snapshot(
                "dra_gpu_claim_sm_utilization_ratio",
                "gauge",
                "Share of the time in which the claim's processes kept the SMs of the GPU busy since the last look, 0 "
                "to 1",
                _CLAIM,
            ),
            unavailable=registry.snapshot(
                "dra_gpu_claim_usage_unavailable",
                "gauge",
                "1 where a metric of usage (what: memory or sm) cannot be told for a claim, with the reason: mig (NVML "
                "gives no samples of partitions), unsupported (nor of this GPU or driver), shared-pod (several claims "
                "of one pod share the GPU), unknown-pod (no process can be assigned yet), gpu (it does not answer)",
                (*_CLAIM, "what", "reason"),
            ),
            unattributed=registry.snapshot(
                "dra_gpu_unattributed_memory_bytes",
                "gauge",
                "Device memory of processes that belong to no claim, or to nobody knows which",
                ("gpu",),
            ),
            gpu_memory=registry.snapshot(
                "dra_gpu_memory_used_bytes", "gauge", "Device memory in use on a GPU, whoever has it", ("gpu",)
            ),
            nvlink=registry.snapshot(
                "dra_gpu_nvlink_bytes_total",
                "counter",
                "Data that went over all NVLinks of a GPU (direction sent or received); what claims asked for is "
                'dra_gpu_capacity_held{capacity="nvlinkBandwidth"}',
                ("gpu", "direction"),
            ),
            age=registry.snapshot(
                "dra_gpu_usage_age_seconds",
                "gauge",
                "Since usage was last looked at; the GPUs are asked by scrapes, at most every ten seconds",
            ),
            failures=registry.counter("dra_gpu_usage_failures_total", "Looks at a GPU's usage that failed"),
        )
