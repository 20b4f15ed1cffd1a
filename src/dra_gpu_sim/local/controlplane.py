"""The local mode's scheduler and controllers together: settled step by step by a test, or running by themselves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dra_gpu_sim.apiserver.server import ApiServer
from dra_gpu_sim.apiserver.store import Change
from dra_gpu_sim.local.cluster_objects import ClusterObjects
from dra_gpu_sim.local.controllers import ClaimController
from dra_gpu_sim.local.scheduling import PodScheduler


class ControlPlane:
    """Scheduler and controllers of a cluster with one node.

    Args:
        api: the API server in memory.
        node_name: where every pod runs.
    """

    def __init__(self, api: ApiServer, node_name: str) -> None:
        self.objects = ClusterObjects(api)
        self.scheduler = PodScheduler(self.objects, node_name)
        self.controller = ClaimController(self.objects)
        self.binds = True
        """Whether the scheduler writes what it has decided: one that is busy, or paused, does so much later."""
        self._awake = asyncio.Event()
        self._unsubscribe = api.store.subscribe(self._on_change)

    def close(self) -> None:
        """Listen to the server no more."""
        self._unsubscribe()

    def step(self) -> bool:
        """Do one thing; tell whether there was one to do."""
        return self.controller.tidy() or self.scheduler.decide() or (self.binds and self.scheduler.bind())

    def wake(self) -> None:
        """Look again, where nothing has changed at the server."""
        self._awake.set()

    def settle(self) -> None:
        """Go on until nothing is left to do."""
        while self.step():
            pass

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["ControlPlane"]:
        """Settle whenever anything changes, for the length of a block."""
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self.settle()
            self._awake.clear()
            await self._awake.wait()

    def _on_change(self, change: Change) -> None:
        self.scheduler.notice(change)
        self._awake.set()
