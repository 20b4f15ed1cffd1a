"""How late the event loop is: what a blocking call in it costs everybody."""

import asyncio
from dataclasses import dataclass

from prometheus_client import Histogram

from dra_gpu.metrics.registry import Registry

PERIOD_SECONDS = 0.5
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class LoopLag:
    """Measures how much later than asked the loop wakes a task.

    Attributes:
        histogram: takes the seconds.
        period: seconds between two measurements.
    """

    histogram: Histogram
    period: float = PERIOD_SECONDS

    @classmethod
    def of(cls, registry: Registry) -> "LoopLag":
        """Define the metric."""
        return cls(
            registry.histogram(
                "dra_gpu_event_loop_lag_seconds",
                "How much later than asked the event loop woke a task, measured twice a second",
                buckets=_BUCKETS,
            )
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self.period
            await asyncio.sleep(self.period)
            self.histogram.observe(max(0.0, loop.time() - due))
