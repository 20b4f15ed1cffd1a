"""Speaks to a DRA plugin as the kubelet does: finds its registration socket, asks, connects, notifies, calls."""

import asyncio
from pathlib import Path

from grpclib.client import Channel

from dra_gpu.kubelet._proto import dra_v1_pb2, dra_v1beta1_pb2
from dra_gpu.kubelet._proto.dra_v1_grpc import DRAPluginStub as DraV1Stub
from dra_gpu.kubelet._proto.dra_v1beta1_grpc import DRAPluginStub as DraV1Beta1Stub
from dra_gpu.kubelet._proto.registration_v1_grpc import RegistrationStub
from dra_gpu.kubelet._proto.registration_v1_pb2 import InfoRequest, PluginInfo, RegistrationStatus


class FakeKubelet:
    """One kubelet life: registers plugins, holds one connection to each, and drops them when it stops."""

    KNOWN = ("v1.DRAPlugin", "v1beta1.DRAPlugin")

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.infos: dict[str, PluginInfo] = {}

    async def info(self, registration: Path) -> PluginInfo:
        channel = Channel(path=str(registration))
        try:
            return await RegistrationStub(channel).GetInfo(InfoRequest(), timeout=1)
        finally:
            channel.close()

    async def register(self, registration: Path, error: str = "") -> PluginInfo:
        channel = Channel(path=str(registration))
        try:
            stub = RegistrationStub(channel)
            info = await stub.GetInfo(InfoRequest(), timeout=1)
            if not error:
                await self.connect(info)
            status = RegistrationStatus(plugin_registered=not error, error=error)
            await stub.NotifyRegistrationStatus(status, timeout=5)
        finally:
            channel.close()
        return info

    async def connect(self, info: PluginInfo) -> None:
        channel = Channel(path=info.endpoint)
        await channel.__connect__()
        self.channels[info.endpoint] = channel
        self.infos[info.endpoint] = info

    def deregister(self, endpoint: str) -> None:
        self.channels.pop(endpoint).close()

    def stop(self) -> None:
        for endpoint in list(self.channels):
            self.deregister(endpoint)

    async def prepare(self, endpoint: str, *claims: tuple[str, str, str], timeout: float = 45):
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims(dra_v1_pb2, claims))
        return await DraV1Stub(self.channels[endpoint]).NodePrepareResources(request, timeout=timeout)

    async def unprepare(self, endpoint: str, *claims: tuple[str, str, str], timeout: float = 45):
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims(dra_v1_pb2, claims))
        return await DraV1Stub(self.channels[endpoint]).NodeUnprepareResources(request, timeout=timeout)

    async def prepare_v1beta1(self, endpoint: str, *claims: tuple[str, str, str], timeout: float = 45):
        request = dra_v1beta1_pb2.NodePrepareResourcesRequest(claims=_claims(dra_v1beta1_pb2, claims))
        return await DraV1Beta1Stub(self.channels[endpoint]).NodePrepareResources(request, timeout=timeout)

    async def unprepare_v1beta1(self, endpoint: str, *claims: tuple[str, str, str], timeout: float = 45):
        request = dra_v1beta1_pb2.NodeUnprepareResourcesRequest(claims=_claims(dra_v1beta1_pb2, claims))
        return await DraV1Beta1Stub(self.channels[endpoint]).NodeUnprepareResources(request, timeout=timeout)


async def until_removed(path: Path, seconds: float = 5) -> None:
    """Wait as the kubelet's registry watch does, by looking; the kubelet has inotify, this file has a deadline."""
    async with asyncio.timeout(seconds):
        while path.exists():
            await asyncio.sleep(0.005)


def _claims(messages, claims):
    return [messages.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
