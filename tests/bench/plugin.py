"""A DRA plugin as the kubelet calls it: one connection to its socket, calls of DRA v1 with 45 s each."""

import asyncio
import time
from pathlib import Path

from grpclib.client import Channel

from dra_gpu.kubelet._proto.dra_v1_grpc import DRAPluginStub
from dra_gpu.kubelet._proto.dra_v1_pb2 import NodePrepareResourcesRequest, NodeUnprepareResourcesRequest
from dra_gpu.kubelet._proto.registration_v1_grpc import RegistrationStub
from dra_gpu.kubelet._proto.registration_v1_pb2 import InfoRequest, PluginInfo, RegistrationStatus
from dra_gpu_sim.local.kubelet import CALL_SECONDS, Claim


class CallFailedError(Exception):
    """The plugin answered a claim with an error, or not at all."""


class Plugin:
    """The plugin behind one socket. Every method returns the seconds it took."""

    def __init__(self, socket: Path) -> None:
        self._channel = Channel(path=str(socket))
        self._stub = DRAPluginStub(self._channel)

    async def prepare(self, *claims: Claim) -> float:
        request = NodePrepareResourcesRequest(claims=[claim.message() for claim in claims])
        started = time.perf_counter()
        response = await self._stub.NodePrepareResources(request, timeout=CALL_SECONDS)
        took = time.perf_counter() - started
        for claim in claims:
            entry = response.claims.get(claim.uid)
            if entry is None or entry.error or not entry.devices:
                raise CallFailedError(f"prepare {claim.name}: {entry.error if entry else 'no entry'}")
        return took

    async def unprepare(self, *claims: Claim) -> float:
        request = NodeUnprepareResourcesRequest(claims=[claim.message() for claim in claims])
        started = time.perf_counter()
        response = await self._stub.NodeUnprepareResources(request, timeout=CALL_SECONDS)
        took = time.perf_counter() - started
        for claim in claims:
            if claim.uid not in response.claims or response.claims[claim.uid].error:
                raise CallFailedError(f"unprepare {claim.name}: {response.claims[claim.uid].error or 'no entry'}")
        return took

    def close(self) -> None:
        self._channel.close()


async def register(registration: Path) -> PluginInfo:
    """Ask the plugin who it is and tell it that it is registered, as the kubelet does."""
    channel = Channel(path=str(registration))
    try:
        stub = RegistrationStub(channel)
        info = await stub.GetInfo(InfoRequest(), timeout=CALL_SECONDS)  # a kubelet that gets none asks again
        await stub.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=CALL_SECONDS)
    finally:
        channel.close()
    return info


async def wait_for_socket(path: Path, seconds: float) -> None:
    """Return as soon as somebody listens at `path`."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(str(path))
            except OSError:
                await asyncio.sleep(0.002)
            else:
                writer.close()
                await writer.wait_closed()
                return
