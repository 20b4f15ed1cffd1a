"""After the driver has left a node: a process that does nothing, alive and ready, until it is told to end.

A DaemonSet starts a pod again whenever it ends, and with it all that has just been taken off the node would come back.
Whoever leaves as a DaemonSet's pod therefore stays, and is Ready only now: by `kubectl rollout status` one waits until
all nodes are left.
"""

import asyncio
import signal

import structlog

from dra_gpu.metrics.address import Address

_log = structlog.get_logger(__name__)


async def stay(address: Address | None, metrics_path: str) -> None:
    """Return at SIGTERM or SIGINT.

    Args:
        address: where `/healthz` and `/readyz` are answered meanwhile; None for nowhere.
        metrics_path: is answered, too.

    Raises:
        OSError: the address cannot be had.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _log.info("nothing of the driver is on this node; waiting to be ended")
    if address is None:
        await stop.wait()
        return
    from dra_gpu.metrics.endpoint import Endpoint, routes  # as in app.py: who serves nothing does not pay for it
    from dra_gpu.metrics.registry import Registry

    registry = Registry("node")
    endpoint = Endpoint(routes(registry, metrics_path))
    try:
        await endpoint.start(address)
        await stop.wait()
    finally:
        await endpoint.close()
        await registry.close()
