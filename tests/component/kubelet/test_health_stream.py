"""How well devices are, over real sockets, as a kubelet of either version hears it."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import StreamClosedError

from dra_gpu.kubelet import health
from dra_gpu.kubelet._proto import health_v1_pb2, health_v1alpha1_pb2
from dra_gpu.kubelet._proto.health_v1_grpc import DRAResourceHealthStub as HealthV1Stub
from dra_gpu.kubelet._proto.health_v1alpha1_grpc import DRAResourceHealthStub as HealthV1Alpha1Stub
from dra_gpu.kubelet.health import DeviceHealth, HealthFeed, HealthStatus
from tests.component.kubelet.conftest import Node
from tests.component.kubelet.fake_kubelet import PATIENCE, FakeKubelet

VERSIONS = [(HealthV1Stub, health_v1_pb2), (HealthV1Alpha1Stub, health_v1alpha1_pb2)]
NEVER = 3600.0


class Told:
    """Two devices, of which a test says how well they are."""

    def __init__(self, resend: float = NEVER) -> None:
        self.devices = [
            DeviceHealth("node-a", "gpu-0", HealthStatus.HEALTHY),
            DeviceHealth("node-a", "gpu-1", HealthStatus.UNKNOWN),
        ]
        self.feed = HealthFeed(self.read, resend=resend)

    async def read(self):
        return self.devices

    def becomes(self, *devices: DeviceHealth) -> None:
        self.devices = list(devices)
        self.feed.changed()


@asynccontextmanager
async def watching(channel: Channel, version=VERSIONS[0]):
    """A stream as the kubelet opens it: without a deadline."""
    stub, messages = version
    async with stub(channel).NodeWatchResources.open() as stream:
        await stream.send_message(messages.NodeWatchResourcesRequest(), end=True)
        yield stream
        with suppress(StreamClosedError, StreamTerminatedError):  # the plugin may have ended it
            await stream.cancel()


async def ending(stream) -> Status:
    """Wait until the plugin ends the stream; with which status it does."""
    async with asyncio.timeout(PATIENCE):
        try:
            while await stream.recv_message() is not None:
                pass
            await stream.recv_trailing_metadata()
        except GRPCError as error:
            return error.status
    return Status.OK


async def heard(stream) -> dict[str, tuple[int, str]]:
    """The next message, by device."""
    async with asyncio.timeout(PATIENCE):
        message = await stream.recv_message()
    assert message is not None
    assert all(device.device.pool_name == "node-a" and device.last_updated_time > 0 for device in message.devices)
    return {device.device.device_name: (device.health, device.message) for device in message.devices}


@asynccontextmanager
async def served(node: Node, service, kubelet: FakeKubelet, told: Told):
    server = await node.start(service, health=told.feed)
    yield (await kubelet.register(server.paths.registration)).channel


async def test_the_health_services_are_advertised_behind_the_claims_services_where_they_are_served(
    node: Node, service, kubelet: FakeKubelet
):
    server = await node.start(service, health=Told().feed)

    info = await kubelet.info(server.paths.registration)

    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


@pytest.mark.parametrize("version", VERSIONS, ids=["v1", "v1alpha1"])
async def test_a_stream_begins_with_every_device_and_tells_a_change_with_every_device(
    node: Node, service, kubelet: FakeKubelet, version
):
    told = Told()
    async with served(node, service, kubelet, told) as channel, watching(channel, version) as stream:
        assert await heard(stream) == {"gpu-0": (1, ""), "gpu-1": (0, "")}

        told.becomes(told.devices[0], DeviceHealth("node-a", "gpu-1", HealthStatus.UNHEALTHY, "XID 79: reset it"))

        assert await heard(stream) == {"gpu-0": (1, ""), "gpu-1": (2, "XID 79: reset it")}


async def test_what_has_not_changed_is_sent_again_before_the_kubelet_forgets_it(
    node: Node, service, kubelet: FakeKubelet
):
    assert health.RESEND_SECONDS <= 10
    told = Told(resend=0.01)
    async with served(node, service, kubelet, told) as channel, watching(channel) as stream:
        first, second = await heard(stream), await heard(stream)

    assert first == second


async def test_a_change_while_a_message_is_made_is_told_by_the_next_one(node: Node, service, kubelet: FakeKubelet):
    told = Told()
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def slowly():
        devices = list(told.devices)
        reading.set()
        await go_on.wait()
        return devices

    told.feed._read = slowly
    async with served(node, service, kubelet, told) as channel, watching(channel) as stream:
        await asyncio.wait_for(reading.wait(), PATIENCE)
        told.becomes(DeviceHealth("node-a", "gpu-0", HealthStatus.UNHEALTHY))
        go_on.set()

        assert (await heard(stream))["gpu-0"] == (1, "")
        assert (await heard(stream))["gpu-0"] == (2, "")


async def test_of_too_many_streams_the_oldest_ends_and_the_newest_is_served(node: Node, service, kubelet: FakeKubelet):
    told = Told()
    async with served(node, service, kubelet, told) as channel, AsyncExitStack() as stack:
        oldest = await stack.enter_async_context(watching(channel))
        await heard(oldest)
        for _ in range(health.MAX_STREAMS):
            await heard(await stack.enter_async_context(watching(channel)))

        assert await ending(oldest) is Status.RESOURCE_EXHAUSTED
        assert told.feed.streams == health.MAX_STREAMS


async def test_a_stream_that_its_kubelet_ends_is_forgotten(node: Node, service, kubelet: FakeKubelet):
    told = Told()
    async with served(node, service, kubelet, told) as channel, watching(channel) as stream:
        await heard(stream)

    async with asyncio.timeout(PATIENCE):
        while told.feed.streams:
            await asyncio.sleep(0.005)


async def test_a_drain_does_not_wait_for_a_stream_and_ends_it(node: Node, service, kubelet: FakeKubelet):
    told = Told()
    server = await node.start(service, health=told.feed)
    plugin = await kubelet.register(server.paths.registration)
    async with watching(plugin.channel) as stream:
        await heard(stream)
        stopping = asyncio.ensure_future(server.stop(PATIENCE))
        async with asyncio.timeout(PATIENCE):
            while server.paths.registration.exists():
                await asyncio.sleep(0.005)
        kubelet.deregister(plugin.endpoint)  # as the kubelet answers to that

        report = await asyncio.wait_for(stopping, PATIENCE)

    assert report.finished
    assert told.feed.streams == 0


async def test_claims_are_served_while_streams_are_open(node: Node, service, kubelet: FakeKubelet):
    told = Told()
    server = await node.start(service, health=told.feed)
    plugin = await kubelet.register(server.paths.registration)
    async with watching(plugin.channel) as stream:
        await heard(stream)

        answer = await kubelet.prepare(plugin.endpoint, ("default", "one", "uid-1"))

    assert answer.claims["uid-1"].error == ""
