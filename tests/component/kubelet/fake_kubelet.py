"""A kubelet whose every word a test chooses: registrations by socket, refusals, both DRA versions, raw answers.

How it introduces itself to a plugin is the local mode's (`dra_gpu_sim.local.kubelet`).
"""

import asyncio
from pathlib import Path

from grpclib.client import Channel

from dra_gpu.kubelet._proto import dra_v1_pb2, dra_v1beta1_pb2
from dra_gpu.kubelet._proto.dra_v1_grpc import DRAPluginStub as DraV1Stub
from dra_gpu.kubelet._proto.dra_v1beta1_grpc import DRAPluginStub as DraV1Beta1Stub
from dra_gpu.kubelet._proto.registration_v1_pb2 import PluginInfo, RegistrationStatus
from dra_gpu_sim.local import kubelet as local
from dra_gpu_sim.local.kubelet import Plugin

PATIENCE = 30.0  # seconds for what takes milliseconds: the machine may be busy with something else


class FakeKubelet:
    """One kubelet life: registers plugins, holds one connection to each, and drops them when it stops."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}

    async def info(self, registration: Path) -> PluginInfo:
        async with local.introduced(registration, PATIENCE) as (_, info):
            return info

    async def register(self, registration: Path) -> Plugin:
        plugin = await local.register(registration, PATIENCE)
        self.channels[plugin.endpoint] = plugin.channel
        return plugin

    async def refuse(self, registration: Path, error: str) -> None:
        async with local.introduced(registration, PATIENCE) as (stub, _):
            await stub.NotifyRegistrationStatus(
                RegistrationStatus(plugin_registered=False, error=error), timeout=PATIENCE
            )

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


async def until_removed(path: Path, seconds: float = PATIENCE) -> None:
    """Wait as the kubelet's registry watch does, by looking; the kubelet has inotify, this file has a deadline."""
    async with asyncio.timeout(seconds):
        while path.exists():
            await asyncio.sleep(0.005)


def _claims(messages, claims):
    return [messages.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
