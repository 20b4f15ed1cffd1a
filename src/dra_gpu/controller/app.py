"""Composes the controller and runs it until SIGTERM: an election, and the loops of whoever wins it."""

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from dra_gpu import __version__, logs
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import ConnectionConfigError, from_kubeconfig, in_cluster
from dra_gpu.apiserver.leader_election import LeaderElection
from dra_gpu.controller import settings
from dra_gpu.controller.kinds import Kinds
from dra_gpu.controller.loops import Loops
from dra_gpu.controller.settings import Settings
from dra_gpu.metrics.controller import ControllerMetrics
from dra_gpu.metrics.endpoint import Endpoint, routes
from dra_gpu.metrics.health import Check
from dra_gpu.metrics.registry import Registry

_log = structlog.get_logger(__name__)


class StartError(Exception):
    """The controller cannot run here; the message says why and what to do."""


def main(arguments: Sequence[str]) -> int:
    """Run the controller; returns its exit status."""
    chosen = settings.parse(arguments, os.environ)
    identity = f"{chosen.pod_name or socket.gethostname()}_{uuid.uuid4()}"
    logs.configure(chosen.log_level, instance=f"controller/{__version__}/{identity}")
    try:
        asyncio.run(Controller(chosen, identity).run())
    except StartError as error:
        _log.critical("the controller cannot start", reason=str(error))
        return 1
    return 0


class Controller:
    """One replica, from its settings to its end.

    Args:
        chosen: its settings.
        identity: under which it leads; unique.
    """

    def __init__(self, chosen: Settings, identity: str) -> None:
        self._settings = chosen
        self._identity = identity

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; a leader gives its lease away then.

        Raises:
            StartError: a setting is in the way.
        """
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            await self._serve(stack, stop)
        _log.info("stopped")

    async def _serve(self, stack: AsyncExitStack, stop: asyncio.Event) -> None:
        chosen = self._settings
        api = self._api(stack)
        registry = Registry("controller")
        metrics = ControllerMetrics.of(registry)
        election = LeaderElection(
            api, chosen.lease_name, chosen.namespace, self._identity, times=chosen.times, on_change=metrics.leads.set
        )
        loops = Loops(api, election, chosen, metrics)
        registry.before_render(loops.show)
        if chosen.http_endpoint is not None:
            ready = (Check("election", loops.problem), Check("kinds", Kinds(api).problem))
            endpoint = Endpoint(routes(registry, chosen.metrics_path, (), ready))
            stack.push_async_callback(registry.close)
            stack.push_async_callback(endpoint.close)
            try:
                await endpoint.start(chosen.http_endpoint)
            except OSError as error:
                raise StartError(
                    f"metrics cannot be served on {chosen.http_endpoint} ({error}): give another --http-endpoint"
                ) from error
        await _until_stopped(stop, {"election": election.run(loops.run), "lag": metrics.lag.run()})

    def _api(self, stack: AsyncExitStack) -> HttpKubernetesApi:
        try:
            kubeconfig = self._settings.kubeconfig
            api = HttpKubernetesApi(from_kubeconfig(kubeconfig) if kubeconfig is not None else in_cluster())
        except ConnectionConfigError as error:
            raise StartError(str(error)) from error
        stack.callback(api.close)
        return api


async def _until_stopped(stop: asyncio.Event, background: dict[str, Coroutine[Any, Any, None]]) -> None:
    """Run until asked to stop; a task that ends by itself ends the process: nothing would replace it."""
    tasks = [asyncio.create_task(work, name=name) for name, work in background.items()]
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            raise RuntimeError(f"the task {task.get_name()!r} ended") from task.exception()
    finally:
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
