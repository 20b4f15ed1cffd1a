"""What the MPS service shows of itself: metrics and health. Composed only where an endpoint is asked for.

No liveness probe should look at it: a service that is started again changes nothing for its daemons, and ending their
clients is the last thing that a probe should be able to do.
"""

import asyncio
from dataclasses import dataclass, field

from dra_gpu.metrics.address import Address
from dra_gpu.metrics.endpoint import Endpoint, routes
from dra_gpu.metrics.mps import MpsMetrics
from dra_gpu.metrics.registry import Registry
from dra_gpu.mps.service import MpsService

LOOK_SECONDS = 10.0
"""Between two looks at the daemons at least, however often a scrape comes."""


@dataclass(slots=True)
class MpsObserver:
    """Serves the metrics of one service.

    Attributes:
        service: whom to ask.
        period: seconds between two looks.
        registry: takes the metrics.
    """

    service: MpsService
    period: float = LOOK_SECONDS
    registry: Registry = field(default_factory=lambda: Registry("mps"))
    _metrics: MpsMetrics = field(init=False)
    _looked_at: float | None = None

    def __post_init__(self) -> None:
        self._metrics = MpsMetrics.of(self.registry)
        self.registry.before_render(self.refresh)

    async def run(self, address: Address, metrics_path: str) -> None:
        """Serve until cancelled.

        Raises:
            OSError: the address cannot be had.
        """
        endpoint = Endpoint(routes(self.registry, metrics_path))
        await endpoint.start(address)
        try:
            await self._metrics.lag.run()
        finally:
            await endpoint.close()
            await self.registry.close()

    async def refresh(self) -> None:
        """Look, unless the last look is recent."""
        now = asyncio.get_running_loop().time()
        if self._looked_at is not None and now - self._looked_at < self.period:
            return
        found = await self.service.clients()
        self._looked_at = now
        metrics = self._metrics
        metrics.up.replace({(one.daemon.gpu,): float(one.daemon.pid != 0) for one in found})
        metrics.restarts.replace({(one.daemon.gpu,): float(one.daemon.restarts) for one in found})
        metrics.shares.replace({(one.daemon.gpu,): float(len(one.shares)) for one in found})
        metrics.unknown.replace({(one.daemon.gpu,): 1.0 for one in found if one.problem})
        # With classic MPS all clients of a GPU stand with each of its shares.
        attached = {one.daemon.gpu: {pid for share in one.shares for pid in share.clients} for one in found}
        problems = {one.daemon.gpu for one in found if one.problem}
        metrics.clients.replace({(gpu,): float(len(pids)) for gpu, pids in attached.items() if gpu not in problems})
