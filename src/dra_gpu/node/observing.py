"""What the node plugin shows of itself: metrics, health, readiness. Composed only where an endpoint is asked for."""

import asyncio
from contextlib import AsyncExitStack

from dra_gpu.metrics.address import Address
from dra_gpu.metrics.endpoint import Endpoint, routes
from dra_gpu.metrics.health import Check
from dra_gpu.metrics.node import NodeMetrics
from dra_gpu.metrics.registry import Registry
from dra_gpu.node import figures, health_figures, resize_figures
from dra_gpu.node.observed import Observed
from dra_gpu.node.usage_meter import PodsOfClaims, UsageMeter

_JOURNAL_SECONDS = 5.0
_ALL_GPUS = "all GPUs"  # as `InventoryWatch.inventory` says that the last look failed as a whole


class NodeObserver:
    """The metrics of one instance, from its start on; what there is to look at comes later.

    Args:
        driver: our driver name.
        leaving: this instance takes the driver off the node; as long as it is there, it has not.
    """

    def __init__(self, driver: str, *, leaving: bool = False) -> None:
        self._leaving = leaving
        self.pods = PodsOfClaims()
        self.registry = Registry("node")
        self.metrics = NodeMetrics.of(self.registry, driver)
        self._observed: Observed | None = None
        self._endpoint = Endpoint({})

    async def serve(self, address: Address, metrics_path: str, stack: AsyncExitStack) -> None:
        """Serve until the stack is left.

        Raises:
            OSError: the address cannot be had.
        """
        self._endpoint = Endpoint(routes(self.registry, metrics_path, self._alive(), self._ready()))
        stack.push_async_callback(self.registry.close)
        stack.push_async_callback(self._endpoint.close)
        await self._endpoint.start(address)

    async def run(self, observed: Observed) -> None:
        """Look at these when a scrape comes, and measure what is measured all the time, until cancelled."""
        self._observed = observed
        usage = UsageMeter(
            observed.vendor,
            observed.inventory,
            observed.journal.records,
            observed.journal.boot_id,
            self.pods,
            observed.instance_of,
            self.metrics.usage,
            observed.mps,
        )
        self.registry.before_render(self._refresh)
        self.registry.before_render(usage.refresh)
        await self.metrics.lag.run()

    def _alive(self) -> tuple[Check, ...]:
        async def journal() -> str:
            if self._observed is None:
                return ""
            async with asyncio.timeout(_JOURNAL_SECONDS):
                await self._observed.journal.check()
            return ""

        return (Check("journal", journal),)

    def _ready(self) -> tuple[Check, ...]:
        async def registered() -> str:
            known = self._observed is not None and self._observed.registered()
            return "" if known else "the kubelet has not registered this driver yet"

        async def published() -> str:
            return "it has just started" if self._observed is None else self._observed.publishing.problem

        async def gpus() -> str:
            sick = self._observed.inventory().sick if self._observed is not None else ()
            return next((one.reason for one in sick if one.where == _ALL_GPUS), "")

        async def left() -> str:
            return "the driver has not left this node yet: see the log"

        if self._leaving:
            return (Check("left", left),)
        return (Check("registered", registered), Check("published", published), Check("gpus", gpus))

    async def _refresh(self) -> None:
        it, metrics = self._observed, self.metrics
        if it is None:
            return
        ages = {("resourceslices",): it.publisher.watch_age, ("claimresizes",): it.resizes.watch_age}
        metrics.watch_age.replace({key: age for key, age in ages.items() if age is not None})
        metrics.registered.set(it.registered())
        metrics.published.set(it.publisher.settled.is_set())
        metrics.events_dropped.set(it.events.dropped)
        metrics.dropped.replace(
            {
                ("claim-statuses",): float(it.statuses.dropped),
                ("events",): float(it.events.dropped),
                ("resizes",): float(it.resizes.dropped),
                ("waiting-claims",): float(it.waiting.dropped),
            }
        )
        metrics.journal_bytes.set(await it.journal.size())
        inventory = it.inventory()
        sick = len(inventory.sick)
        metrics.gpus.replace({("working",): float(len(inventory.gpus)), ("sick",): float(sick)})
        records = await it.journal.records()
        node, driver = it.identity.pool, it.identity.driver
        views = figures.prepared_by_view(records, it.journal.boot_id)
        metrics.prepared.replace({(node, driver, view): float(count) for view, count in views.items()})
        metrics.claims.replace({(state,): float(count) for state, count in figures.by_state(records).items()})
        health_figures.show(metrics.health, inventory, it.health.states.states(), it.health.events)
        names = figures.names_of_gpus(inventory)
        metrics.health.resets.replace(
            {(names.get(uuid, uuid), result): float(count) for (uuid, result), count in it.resets.items()}
        )
        resize_figures.show(metrics.resizes, inventory, await it.journal.resizes(), it.resizes.reasons)
        has = figures.capacity_of(inventory)
        held = figures.held_of(inventory, records, it.journal.boot_id)
        free = {uuid: {name: one - held[uuid][name] for name, one in amounts.items()} for uuid, amounts in has.items()}
        for metric, found in ((metrics.capacity, has), (metrics.held, held), (metrics.free, free)):
            metric.replace(
                {
                    (names.get(uuid, uuid), name): amount
                    for uuid, amounts in found.items()
                    for name, amount in amounts.items()
                }
            )
