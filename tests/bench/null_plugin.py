"""A plugin that answers and does nothing: what the protocol itself costs, and what the client is tried on.

python -m tests.bench.null_plugin --registry DIR --plugins DIR --driver D --pool P

Its one device is healthy, sick after SIGUSR1, and healthy again after SIGUSR2.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_gpu.kubelet.health import DeviceHealth, HealthFeed, HealthStatus
from dra_gpu.kubelet.server import KubeletServer
from dra_gpu.kubelet.service import ClaimRef, PreparedClaim, PreparedDevice
from dra_gpu.kubelet.sockets import socket_paths


class Null:
    """Prepares anything at once."""

    def __init__(self, driver: str, pool: str) -> None:
        self._driver = driver
        self._pool = pool

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PreparedClaim]:
        del deadline
        return {claim.uid: PreparedClaim((self._device(claim),)) for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, None]:
        del deadline
        return dict.fromkeys(claim.uid for claim in claims)

    def _device(self, claim: ClaimRef) -> PreparedDevice:
        return PreparedDevice(("gpu",), self._pool, "gpu-0", (f"k8s.{self._driver}/claim={claim.uid}-gpu-0",))


class NullHealth:
    """How well the one device is."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._sick = False
        self.feed = HealthFeed(self._read)

    def become(self, sick: bool) -> None:  # noqa: FBT001 - a signal's handler takes no names
        self._sick = sick
        self.feed.changed()

    async def _read(self) -> Sequence[DeviceHealth]:
        status, message = (HealthStatus.UNHEALTHY, "XID 79") if self._sick else (HealthStatus.HEALTHY, "")
        return [DeviceHealth(self._pool, "gpu-0", status, message)]


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM, and say so once the kubelet has registered it."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    paths = socket_paths(options.registry, options.plugins, options.driver, options.pod_uid)
    health = NullHealth(options.pool)
    server = KubeletServer(options.driver, paths, Null(options.driver, options.pool), "null", health=health.feed)
    for number, sick in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):
        asyncio.get_running_loop().add_signal_handler(number, health.become, sick)
    await server.start()
    telling = asyncio.create_task(_tell_registration(server))
    await stop.wait()
    telling.cancel()
    await server.stop()


async def _tell_registration(server: KubeletServer) -> None:
    await server.registration.registered.wait()
    sys.stdout.write("registered\n")
    sys.stdout.flush()


def main() -> None:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(prog="tests.bench.null_plugin")
    parser.add_argument("--registry", type=Path, required=True)
    parser.add_argument("--plugins", type=Path, required=True)
    parser.add_argument("--pod-uid", help="gives it sockets of its own")
    parser.add_argument("--driver", required=True)
    parser.add_argument("--pool", required=True)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
