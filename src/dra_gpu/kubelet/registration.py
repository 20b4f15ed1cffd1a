"""How the driver introduces itself to the kubelet, and whether the kubelet knows it right now.

The kubelet finds the registration socket, asks `GetInfo` (it allows one second, so the answer comes from memory) and
reports with `NotifyRegistrationStatus`. It does so again after each of its own restarts, for which nothing has to be
done here but to keep answering. Source: K8s v1.37 pkg/kubelet/pluginmanager.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from dra_gpu.kubelet._proto import registration_v1_pb2
from dra_gpu.kubelet._proto.registration_v1_grpc import RegistrationBase
from dra_gpu.kubelet.connections import peer_pid

PLUGIN_TYPE = "DRAPlugin"
"""What the kubelet calls a DRA driver (K8s v1.37 pkg/apis/pluginregistration/v1)."""

INSTANCE_HEADER = "dra-gpu-instance"
"""Metadata key in our `GetInfo` answers by which two instances of this driver recognise each other (see `foreign`)."""

RECONNECT_SECONDS = 0.5
"""How long the kubelet's connection may be away before it counts as gone.

gRPC drops a connection that was idle for 30 minutes and the kubelet dials again at once; when it stays away, the
kubelet has stopped. A kubelet that starts registers plugins anew within about a second.
"""

SILENCE_SECONDS = 30.0
"""After how long without a kubelet at the registration socket a person is told; it looks there every second."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PluginIdentity:
    """What `GetInfo` answers.

    Attributes:
        driver: name of the DRA driver.
        endpoint: absolute path of the socket that serves `services`.
        services: gRPC services served there, most wanted first, as `v1.DRAPlugin`.
        instance: names this instance (version and pod UID) to other instances of us; printable ASCII.
    """

    driver: str
    endpoint: str
    services: tuple[str, ...]
    instance: str


@dataclass(frozen=True, slots=True)
class RegistrationReport:
    """The kubelet's view of the driver changed, or it refused it again.

    Attributes:
        registered: whether the kubelet sends pods' claims here.
        message: why not, and what to do; empty when registered.
    """

    registered: bool
    message: str = ""


class RegistrationState:
    """Whether the kubelet has registered the driver and is still there.

    `registered` is an event to wait for; `report`, if given, hears each change and each refusal, from the event loop.
    """

    def __init__(self, driver: str, report: Callable[[RegistrationReport], None] | None = None) -> None:
        self.registered = asyncio.Event()
        self._driver = driver
        self._report = report
        self._accepted = False
        self._kubelet_pid: int | None = None
        self._connections: Counter[int | None] = Counter()  # by process: a probe of ours is not the kubelet
        self._absence: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None

    @property
    def kubelet_connections(self) -> int:
        """How many connections the kubelet holds to the DRA socket."""
        return self._connections[self._kubelet_pid] if self._kubelet_pid is not None else 0

    def expect(self, registry: Path) -> None:
        """The registration socket stands in `registry`: a kubelet that looks there takes it within seconds."""
        self._silence = asyncio.get_running_loop().call_later(SILENCE_SECONDS, self._unheard, registry)

    def notified(self, error: str, *, registered: bool, pid: int | None) -> None:
        """Take the kubelet's verdict; `pid` is the process that brought it."""
        self._kubelet_pid = pid
        self._accepted = registered
        self._end_absence()
        self._end_silence()
        if registered:
            self._become(RegistrationReport(registered=True))
        else:
            self._become(RegistrationReport(registered=False, message=refusal(self._driver, error)), always=True)

    def connected(self, pid: int | None) -> None:
        """A connection to the DRA socket was opened by process `pid`."""
        self._connections[pid] += 1
        if pid is None or pid != self._kubelet_pid:
            return
        self._end_absence()
        if self._accepted:
            self._become(RegistrationReport(registered=True))

    def disconnected(self, pid: int | None) -> None:
        """A connection to the DRA socket, opened by process `pid`, ended."""
        self._connections[pid] -= 1
        if self._connections[pid] > 0:
            return
        del self._connections[pid]
        if self._accepted and pid is not None and pid == self._kubelet_pid:
            self._end_absence()
            self._absence = asyncio.get_running_loop().call_later(RECONNECT_SECONDS, self._gone)

    def close(self) -> None:
        """Forget the kubelet: the driver takes its registration back."""
        self._accepted = False
        self._end_absence()
        self._end_silence()
        self.registered.clear()

    def _gone(self) -> None:
        self._absence = None
        message = (
            f"the kubelet closed its connection to {self._driver}; it registers the driver again when it is back"
            " (see `systemctl status kubelet` if it is not)"
        )
        self._become(RegistrationReport(registered=False, message=message))

    def _unheard(self, registry: Path) -> None:
        message = (
            f"no kubelet took the registration socket in {registry} within {SILENCE_SECONDS:.0f} s: it does not run, or"
            " it has another --root-dir: give that as kubeletRoot to the chart, or --kubelet-registrar-dir and"
            " --kubelet-plugins-dir to this program"
        )
        self._become(RegistrationReport(registered=False, message=message), always=True)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _end_absence(self) -> None:
        if self._absence is not None:
            self._absence.cancel()
            self._absence = None

    def _become(self, report: RegistrationReport, *, always: bool = False) -> None:
        if report.registered == self.registered.is_set() and not always:
            return
        if report.registered:
            self.registered.set()
            _log.info("registered with the kubelet", driver=self._driver)
        else:
            self.registered.clear()
            _log.warning("not registered with the kubelet", driver=self._driver, reason=report.message)
        if self._report is not None:
            self._report(report)


def refusal(driver: str, error: str) -> str:
    """Say what the kubelet's refusal means and what to do."""
    reason = error or "it gave no reason"
    if "supported by the kubelet" in error:
        remedy = "upgrade the kubelet to 1.32 or later with dynamic resource allocation switched on"
    elif "already registered" in error:
        remedy = "another instance uses this socket: give each instance its pod UID, or stop the other one"
    elif "no handler registered" in error:
        remedy = "switch on dynamic resource allocation in this kubelet"
    else:
        remedy = "see the kubelet's log"
    return f"the kubelet refused to register {driver}: {reason}; {remedy}. The kubelet tries again by itself"


class Registration(RegistrationBase):
    """Service `pluginregistration.Registration`."""

    def __init__(self, identity: PluginIdentity, state: RegistrationState, stopping: Callable[[], bool]) -> None:
        self._answer = registration_v1_pb2.PluginInfo(
            type=PLUGIN_TYPE,
            name=identity.driver,
            endpoint=identity.endpoint,
            supported_versions=identity.services,
        )
        self._metadata = {INSTANCE_HEADER: identity.instance}
        self._state = state
        self._stopping = stopping

    async def GetInfo(  # noqa: N802 - the protocol's name
        self, stream: Stream[registration_v1_pb2.InfoRequest, registration_v1_pb2.PluginInfo]
    ) -> None:
        """Answer from memory; refuse while stopping, so that a kubelet does not choose an instance that leaves."""
        await stream.recv_message()
        if self._stopping():
            raise GRPCError(Status.UNAVAILABLE, "this instance is stopping: register the next one")
        await stream.send_initial_metadata(metadata=self._metadata)
        await stream.send_message(self._answer)

    async def NotifyRegistrationStatus(  # noqa: N802 - the protocol's name
        self,
        stream: Stream[registration_v1_pb2.RegistrationStatus, registration_v1_pb2.RegistrationStatusResponse],
    ) -> None:
        """Take the kubelet's verdict."""
        status = await stream.recv_message()
        if status is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the call ended without a status: send exactly one")
        self._state.notified(status.error, registered=status.plugin_registered, pid=peer_pid())
        await stream.send_message(registration_v1_pb2.RegistrationStatusResponse())
