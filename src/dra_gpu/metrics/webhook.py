"""The metrics of the webhook."""

import enum
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

from dra_gpu.metrics.lag import LoopLag
from dra_gpu.metrics.registry import Registry

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class WebhookMetrics:
    """Everything the webhook tells.

    Attributes:
        reviews: answers.
        durations: of answers.
        refusals: requests that were none.
        dropped: connections that had to make room.
        expires: of the certificate.
        lag: of the event loop.
    """

    reviews: Counter
    durations: Histogram
    refusals: Counter
    dropped: Counter
    expires: Gauge
    lag: LoopLag

    @classmethod
    def of(cls, registry: Registry) -> "WebhookMetrics":
        """Define them all."""
        return cls(
            reviews=registry.counter(
                "dra_gpu_webhook_reviews_total",
                "Objects that API servers asked about, by what was answered: allowed, denied, foreign (nothing of "
                "ours, or nothing new), unchecked (denied since the check failed or took too long)",
                ("kind", "operation", "outcome"),
            ),
            durations=registry.histogram(
                "dra_gpu_webhook_review_duration_seconds", "How long answers took", buckets=_BUCKETS
            ),
            refusals=registry.counter(
                "dra_gpu_webhook_refused_requests_total",
                "Requests that were no review, by the HTTP status that they got",
                ("status",),
            ),
            dropped=registry.counter(
                "dra_gpu_webhook_dropped_connections_total",
                "Connections that were closed since too many were open: those that have said nothing for longest, or "
                "new ones where all are being answered",
            ),
            expires=registry.gauge(
                "dra_gpu_webhook_certificate_expiry_timestamp_seconds",
                "Until when the certificate in use is valid, in seconds since 1970; 0 before there is one",
            ),
            lag=LoopLag.of(registry),
        )

    def reviewed(self, kind: str, operation: str, outcome: enum.Enum, seconds: float) -> None:
        """Count an answer; kind and operation are among few."""
        self.reviews.labels(kind, operation, outcome.value).inc()
        self.durations.observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that was answered with a status of 400 or more."""
        self.refusals.labels(str(status)).inc()

    def hung_up(self) -> None:
        """Count a connection that was closed to make room."""
        self.dropped.inc()

    def certificate(self, expires: float) -> None:
        """Note until when the certificate in use is valid."""
        self.expires.set(expires)
