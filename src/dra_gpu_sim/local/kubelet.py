"""A kubelet's side of the DRA protocol: finds a plugin in the registry, registers it, prepares and unprepares claims.

It behaves as the kubelet does where a driver could tell (Kubernetes v1.37, pkg/kubelet/pluginmanager and
pkg/kubelet/cm/dra): one connection for all calls, `GetInfo` within a second, 45 s for a call, the most recently
registered instance is used, and a registration socket that goes away takes its registration with it.
"""

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError

from dra_gpu.kubelet._proto import dra_v1_pb2
from dra_gpu.kubelet._proto.dra_v1_grpc import DRAPluginStub
from dra_gpu.kubelet._proto.registration_v1_grpc import RegistrationStub
from dra_gpu.kubelet._proto.registration_v1_pb2 import InfoRequest, PluginInfo, RegistrationStatus

INFO_SECONDS = 1.0
CALL_SECONDS = 45.0  # K8s v1.37 pkg/kubelet/cm/dra/plugin/dra_plugin.go
_LOOK_SECONDS = 0.02  # the kubelet has inotify and a loop of 1 s; a test wants to see a socket at once


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def message(self) -> dra_v1_pb2.Claim:
        """Return it as the protocol has it."""
        return dra_v1_pb2.Claim(namespace=self.namespace, name=self.name, uid=self.uid)


@dataclass(frozen=True, slots=True)
class Device:
    """A prepared device, as the plugin answered it."""

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the plugin said about one claim: devices, or an error."""

    devices: tuple[Device, ...] = ()
    error: str = ""


@dataclass(slots=True)
class Plugin:
    """A registered plugin and the connection to it."""

    socket: Path
    name: str
    endpoint: str
    versions: tuple[str, ...]
    channel: Channel


@dataclass(slots=True)
class Kubelet:
    """One node's kubelet.

    Attributes:
        root: the kubelet's directory; `plugins` and `plugins_registry` lie below it.
        plugins: what is registered, the most recent last.
    """

    root: Path
    plugins: list[Plugin] = field(default_factory=list)

    @property
    def registry(self) -> Path:
        """Directory in which plugins put their registration sockets."""
        return self.root / "plugins_registry"

    async def wait_registered(self, driver: str, *, count: int = 1, within: float = 60.0) -> Plugin:
        """Register what appears until `count` instances of the driver are there; return the newest.

        Raises:
            TimeoutError: they did not come in time.
        """
        async with asyncio.timeout(within):
            while True:
                await self.look()
                found = [plugin for plugin in self.plugins if plugin.name == driver]
                if len(found) >= count:
                    return found[-1]
                await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Register plugins whose sockets appeared, forget those whose sockets are gone."""
        present = self._sockets()
        for plugin in [plugin for plugin in self.plugins if plugin.socket not in present]:
            plugin.channel.close()
            self.plugins.remove(plugin)
        known = {plugin.socket for plugin in self.plugins}
        for socket in sorted(present.keys() - known, key=present.__getitem__):
            with contextlib.suppress(OSError, TimeoutError, GRPCError, StreamTerminatedError):
                self.plugins.append(await register(socket))

    def restart(self) -> None:
        """Forget everything, as a kubelet that starts anew; registrations come again with the next look."""
        for plugin in self.plugins:
            plugin.channel.close()
        self.plugins.clear()

    close = restart

    async def prepare(self, *claims: Claim, driver: str, within: float = CALL_SECONDS) -> dict[str, Answer]:
        """Call NodePrepareResources on the newest instance of the driver; the answers by claim UID."""
        stub = DRAPluginStub(self._newest(driver).channel)
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim.message() for claim in claims])
        response = await stub.NodePrepareResources(request, timeout=within)
        return {uid: _answer(claim) for uid, claim in response.claims.items()}

    async def unprepare(self, *claims: Claim, driver: str, within: float = CALL_SECONDS) -> dict[str, str]:
        """Call NodeUnprepareResources; the errors by claim UID, empty for success."""
        stub = DRAPluginStub(self._newest(driver).channel)
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[claim.message() for claim in claims])
        response = await stub.NodeUnprepareResources(request, timeout=within)
        return {uid: claim.error for uid, claim in response.claims.items()}

    def _sockets(self) -> dict[Path, int]:
        """Return the sockets in the registry with the time at which they were made; plugins come and go meanwhile."""
        found = {}
        for path in self.registry.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISSOCK(status.st_mode):
                    found[path] = status.st_mtime_ns
        return found

    def _newest(self, driver: str) -> Plugin:
        found = [plugin for plugin in self.plugins if plugin.name == driver]
        if not found:
            raise LookupError(f"DRA driver {driver} is not registered")
        return found[-1]


@contextlib.asynccontextmanager
async def introduced(socket: Path, within: float = INFO_SECONDS) -> AsyncIterator[tuple[RegistrationStub, PluginInfo]]:
    """Connect to a registration socket and let the plugin behind it say who it is within so many seconds."""
    with contextlib.closing(Channel(path=str(socket))) as channel:
        stub = RegistrationStub(channel)
        yield stub, await stub.GetInfo(InfoRequest(), timeout=within)


async def register(socket: Path, within: float = INFO_SECONDS) -> Plugin:
    """Register the plugin behind a registration socket; the kubelet connects to its service before it tells.

    The kubelet gives a plugin a second to say who it is and comes back to one that did not; whoever does not come back
    is more patient.
    """
    async with introduced(socket, within) as (stub, info):
        plugin = Plugin(socket, info.name, info.endpoint, tuple(info.supported_versions), Channel(path=info.endpoint))
        try:
            await plugin.channel.__connect__()
            await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=CALL_SECONDS)
        except BaseException:
            plugin.channel.close()
            raise
    return plugin


def _answer(claim: dra_v1_pb2.NodePrepareResourceResponse) -> Answer:
    return Answer(devices=_devices(claim.devices), error=claim.error)


def _devices(devices: Sequence[dra_v1_pb2.Device]) -> tuple[Device, ...]:
    return tuple(
        Device(
            request_names=tuple(device.request_names),
            pool=device.pool_name,
            device=device.device_name,
            cdi_ids=tuple(device.cdi_device_ids),
            share_id=device.share_id if device.HasField("share_id") else None,
        )
        for device in devices
    )
