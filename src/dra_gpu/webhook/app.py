"""Composes the webhook and runs it until SIGTERM.

It answers health checks from the start, and is ready once it shows a certificate that API servers were told of. At the
stop it is unready at once and serves on until API servers have heard of that.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import structlog

from dra_gpu import __version__, logs
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import ConnectionConfigError, from_kubeconfig, in_cluster
from dra_gpu.metrics.endpoint import Endpoint, routes
from dra_gpu.metrics.registry import Registry
from dra_gpu.metrics.webhook import WebhookMetrics as PrometheusMetrics
from dra_gpu.webhook import reviewer, settings
from dra_gpu.webhook.certificate_files import CertificateFiles
from dra_gpu.webhook.http_server import Handler, HttpsServer, Request, Response
from dra_gpu.webhook.metrics import NoMetrics, WebhookMetrics
from dra_gpu.webhook.reviewer import Reviewer
from dra_gpu.webhook.rotation import Rotation
from dra_gpu.webhook.serving import Serving
from dra_gpu.webhook.settings import Settings

_END_SECONDS = 10.0  # for requests that run when the drain is over

_log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the webhook; returns its exit status."""
    chosen = settings.parse(arguments, os.environ)
    logs.configure(chosen.log_level, instance=f"webhook/{__version__}/{os.getpid()}")
    try:
        asyncio.run(_observed(chosen))
    except (ConnectionConfigError, OSError) as error:
        _log.critical("the webhook cannot start", reason=str(error))
        return 1
    return 0


async def _observed(chosen: Settings) -> None:
    """Serve, with metrics where they are wanted."""
    if chosen.http_endpoint is None:
        await serve(chosen)
        return
    registry = Registry("webhook")
    metrics = PrometheusMetrics.of(registry)
    endpoint = Endpoint(routes(registry, chosen.metrics_path))
    await endpoint.start(chosen.http_endpoint)
    lag = asyncio.create_task(metrics.lag.run(), name="lag")
    try:
        await serve(chosen, metrics)
    finally:
        lag.cancel()
        await asyncio.gather(lag, return_exceptions=True)
        await endpoint.close()
        await registry.close()


class Routes:
    """Which path is answered by whom.

    Args:
        serving: makes ready.
        handlers: by path.
    """

    def __init__(self, serving: Serving, handlers: Mapping[str, Handler]) -> None:
        self._serving = serving
        self._handlers = {"/healthz": self._health, "/readyz": self._readiness, **handlers}
        self.stopping = False

    async def handle(self, request: Request) -> Response:
        """Answer a request."""
        handler = self._handlers.get(request.path)
        if handler is None:
            return Response.text(404, f"nothing is here: try {', '.join(self._handlers)}")
        return await handler(request)

    async def _health(self, _: Request) -> Response:
        return Response.text(200, "ok")

    async def _readiness(self, _: Request) -> Response:
        if self.stopping:
            return Response.text(503, "stopping")
        if not self._serving.ready:
            return Response.text(503, "there is no certificate yet; the log says what is in its way")
        return Response.text(200, "ok")


async def serve(
    chosen: Settings, metrics: WebhookMetrics | None = None, more: Mapping[str, Handler] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        chosen: how.
        metrics: counts what happens.
        more: answers further paths, such as `/metrics`.

    Raises:
        ConnectionConfigError: the cluster cannot be reached as configured.
        OSError: the port cannot be had.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    counts = metrics or NoMetrics()
    serving = Serving(counts.certificate)
    async with AsyncExitStack() as stack:
        certificate = _certificate(chosen, serving, stack)
        reviews = Reviewer(counts)
        stack.callback(reviews.close)
        routes = Routes(serving, {reviewer.PATH: reviews.handle, **(more or {})})
        server = HttpsServer(routes.handle, on_refusal=counts.refused, on_drop=counts.hung_up)
        await server.start(None, chosen.port, serving.context)
        _log.info("the webhook listens", port=server.port)
        keeping = asyncio.create_task(certificate.run(), name="certificate")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([keeping, stopping], return_when=asyncio.FIRST_COMPLETED)
            routes.stopping = True
            if keeping in done:
                raise RuntimeError("the task that keeps the certificate ended") from keeping.exception()
            await asyncio.sleep(chosen.drain_seconds)
        finally:
            await server.stop(_END_SECONDS)
            for task in (keeping, stopping):
                task.cancel()
            await asyncio.gather(keeping, stopping, return_exceptions=True)
    _log.info("stopped")


def _certificate(chosen: Settings, serving: Serving, stack: AsyncExitStack) -> CertificateFiles | Rotation:
    if chosen.files is not None:
        return CertificateFiles(*chosen.files, serving)
    connection = from_kubeconfig(chosen.kubeconfig) if chosen.kubeconfig is not None else in_cluster()
    api = HttpKubernetesApi(connection)
    stack.callback(api.close)
    return Rotation(api, chosen.place, serving, lambda: datetime.now(UTC))
