"""The driver's two gRPC sockets, from start to drain.

Order at start: the DRA socket listens before the registration socket appears, because the kubelet dials it as soon as
it has seen the other one.

Order at stop. Removing the registration socket first would be the obvious way to be left alone, but the kubelet answers
it by closing its connection, which cancels the calls that run (Source: K8s v1.37
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go, remove), and their pods would wait for a minute or more until it asks
again. So:

1. New calls are refused claim by claim, with the reason, and `GetInfo` is refused too. Taking them as well would let a
   busy node put the end off for as long as it likes; where another instance runs already, the kubelet prefers it, and
   where none does, the call would be refused a moment later anyway.
2. Running calls are waited for, up to the grace. What is left then is cancelled and given time to undo its steps.
3. The registration socket goes. The DRA socket still answers until the kubelet has closed its connection (its loop
   takes a second), so that no call in between meets a closed door.
4. The DRA socket goes, and with it the health streams, which nobody waits for.

Each step is bounded; the sum stays below Kubernetes' 30 s. ResourceSlices are nobody's business here.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from dra_gpu.kubelet.calls import RunningCalls
from dra_gpu.kubelet.connections import GrpcSocket
from dra_gpu.kubelet.dra import ClaimCalls, DraV1, DraV1Beta1
from dra_gpu.kubelet.health import HealthFeed, HealthV1, HealthV1Alpha1
from dra_gpu.kubelet.registration import PluginIdentity, Registration, RegistrationReport, RegistrationState
from dra_gpu.kubelet.service import ClaimService
from dra_gpu.kubelet.sockets import SocketPaths

if TYPE_CHECKING:
    from grpclib._typing import IServable

DRAIN_SECONDS = 20.0  # running calls; Kubernetes kills after 30
UNDO_SECONDS = 4.0  # cancelled calls put back what they began
DEREGISTRATION_SECONDS = 2.0  # the kubelet looks at its registry every second
CLOSE_SECONDS = 0.5  # buffered answers leave
CHECK_SECONDS = 1.0  # how soon a removed socket is noticed, as often as the kubelet looks itself

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How a stop went.

    Attributes:
        finished: every running call ended by itself.
        abandoned: how many pieces of work did not even end after they were cancelled.
    """

    finished: bool
    abandoned: int


class KubeletServer:
    """Serves the kubelet for one driver.

    Made inside a running event loop. `start`, then `watch_sockets` in the caller's task group, then `stop`.
    `registration.registered` says whether the kubelet sends claims here. With `health` it is told, too, how well
    devices are.
    """

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        service: ClaimService,
        instance: str,
        report: Callable[[RegistrationReport], None] | None = None,
        health: HealthFeed | None = None,
    ) -> None:
        self.paths = paths
        self.running = RunningCalls()
        self.registration = RegistrationState(driver, report)
        calls = ClaimCalls(driver, service, self.running)
        services: list[IServable] = [DraV1(calls), DraV1Beta1(calls)]
        if health is not None:
            services += [HealthV1(health), HealthV1Alpha1(health)]
        identity = PluginIdentity(driver, str(paths.service), advertised(services), instance)
        self._dra = GrpcSocket(paths.service, services, self.registration.connected, self.registration.disconnected)
        self._registry = GrpcSocket(
            paths.registration, [Registration(identity, self.registration, lambda: self.running.closed)]
        )
        self._stopped: asyncio.Task[DrainReport] | None = None

    async def start(self) -> None:
        """Listen on both sockets, the DRA socket first.

        Raises:
            SocketBusyError: another process has one of the paths.
            OSError: a socket cannot be made.
        """
        await self._dra.listen()
        try:
            await self._registry.listen()
        except BaseException:
            self._dra.stop_listening()
            raise
        self.registration.expect(self.paths.registration.parent)
        _log.info("listening for the kubelet", service=str(self.paths.service), registry=str(self.paths.registration))

    async def watch_sockets(self) -> None:
        """Make a socket again when its file was removed or replaced; runs until cancelled or stopped.

        A kubelet's directory may be wiped under a running driver. Connections that are open are not disturbed; a new
        registration socket makes the kubelet register the driver again.
        """
        complaint = ""
        while self._stopped is None:
            try:
                await self._restore_sockets()
                complaint = ""
            except OSError as error:
                if str(error) != complaint:  # once, not every second
                    complaint = str(error)
                    _log.error("a socket for the kubelet is gone and cannot be made again", reason=complaint)
            await asyncio.sleep(CHECK_SECONDS)

    async def stop(self, grace: float = DRAIN_SECONDS) -> DrainReport:
        """Drain and close, as the module says; `grace` is how long running calls may take, in seconds.

        A second call waits for the first one's end.
        """
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop(grace))
        return await asyncio.shield(self._stopped)

    async def _stop(self, grace: float) -> DrainReport:
        self.running.close()
        finished = await self.running.wait_idle(grace)
        abandoned = 0
        if not finished:
            _log.warning("calls did not end in time and are undone", running=self.running.count, seconds=grace)
            abandoned = await self.running.cancel(UNDO_SECONDS)
        self._registry.stop_listening()
        if self.registration.kubelet_connections:
            await self._dra.wait_unused(DEREGISTRATION_SECONDS)
        self.registration.close()
        await self._registry.close(CLOSE_SECONDS)
        await self._dra.close(CLOSE_SECONDS)
        return DrainReport(finished, abandoned)

    async def _restore_sockets(self) -> None:
        for sock in (self._dra, self._registry):
            if not sock.in_place() and not self.running.closed:
                _log.warning("socket was removed and is made again", path=str(sock.path))
                sock.stop_listening()
                await sock.listen()


def advertised(services: Collection["IServable"]) -> tuple[str, ...]:
    """Names of `services` as the kubelet wants them: version and service, in the order given.

    The kubelet takes the first DRA service that it knows, so the newest stands first.
    """
    names: dict[str, None] = {}
    for service in services:
        for path in service.__mapping__():
            package, _, name = path.split("/")[1].rpartition(".")
            names[f"{package.rpartition('.')[2]}.{name}"] = None
    return tuple(names)
