"""NodeWatchResources: how well devices are, told to the kubelet for the pods' status, in health v1 and v1alpha1.

Promises: a stream begins with every device, and every device is sent again after each change and every few seconds,
since the kubelet forgets what it has not heard for 30 s (Source: K8s v1.37 pkg/kubelet/cm/dra/healthinfo.go); a kubelet
that does not read costs one stream for a bounded time; there is a bounded number of streams, and of more the newest
stay: a kubelet that has restarted is never kept out by what it left behind.

A stream is no call: a drain does not wait for it, and it lasts as long as its connection. The kubelet clears all that
it knows of a driver's devices when a stream ends.
"""

import asyncio
import enum
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from dra_gpu.kubelet._proto import health_v1_pb2, health_v1alpha1_pb2
from dra_gpu.kubelet._proto.health_v1_grpc import DRAResourceHealthBase as HealthV1Base
from dra_gpu.kubelet._proto.health_v1alpha1_grpc import DRAResourceHealthBase as HealthV1Alpha1Base

RESEND_SECONDS = 5.0
"""Between two messages when nothing changes: several are lost before the kubelet's 30 s are over."""

SHORTEST_SECONDS = 0.1
"""Between two messages, however often something changes."""

SEND_SECONDS = 30.0
"""For which a kubelet that does not read is waited for; it has forgotten the devices by then."""

MAX_STREAMS = 8
"""A node has one kubelet, with one stream; others are left from its restarts, or somebody who looks."""

MAX_DEVICES = 16384
"""More the kubelet does not take of a driver (Source: K8s v1.37 pkg/kubelet/cm/dra/healthinfo.go)."""

MAX_MESSAGE = 1024
"""Characters of a message that the kubelet keeps (Source: K8s v1.37 k8s.io/kubelet/pkg/apis/dra-health/v1)."""

MAX_TEXT = 2 * 1024 * 1024
"""Characters of all messages together: grpc-go takes 4 MiB at once, and names need their part."""

_log = structlog.get_logger(__name__)


class HealthStatus(enum.IntEnum):
    """Whether a device can be relied on; the numbers are those of the protocol."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How well one device is.

    Attributes:
        pool: the pool that publishes the device.
        device: its name there.
        status: whether it can be relied on.
        message: why not, and what to do, for a person.
    """

    pool: str
    device: str
    status: HealthStatus
    message: str = ""


class _WatchResponse(Protocol):
    devices: Any


class HealthFeed:
    """What is told, and the streams on which it is.

    Args:
        read: returns every device, the more important first; more than the kubelet takes are left out.
        resend: seconds between two messages when nothing changes.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Sequence[DeviceHealth]]], *, resend: float = RESEND_SECONDS
    ) -> None:
        self._read = read
        self._resend = resend
        self._streams: deque[_Turn] = deque()

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def changed(self) -> None:
        """Something is otherwise than it was: every stream sends again."""
        for turn in self._streams:
            turn.wake.set()

    async def serve(
        self, stream: Stream[Any, Any], respond: Callable[[Sequence[DeviceHealth], int], _WatchResponse]
    ) -> None:
        """Tell everything on one stream until its connection ends.

        Args:
            stream: the call.
            respond: makes the message of a protocol version from the devices and the time.

        Raises:
            GRPCError: the caller does not read, or newer streams have taken its place.
        """
        if await stream.recv_message() is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the call ended without a request: send exactly one")
        while len(self._streams) >= MAX_STREAMS:
            self._streams.popleft().end()
        turn = _Turn()
        self._streams.append(turn)
        try:
            while not turn.ended:
                turn.wake.clear()
                message = respond(bounded(await self._read()), int(time.time()))
                await _send(stream, message)
                await turn.rest(self._resend)
        finally:
            if turn in self._streams:
                self._streams.remove(turn)
        raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} newer streams are open: close some, then call again")


class _Turn:
    """One stream's part in the feed."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.ended = False

    def end(self) -> None:
        """Let the stream end soon."""
        self.ended = True
        self.wake.set()

    async def rest(self, seconds: float) -> None:
        """Wait until there is something to tell, or it is time to tell it again."""
        await asyncio.sleep(SHORTEST_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return


class HealthV1(HealthV1Base):
    """Service `v1.DRAResourceHealth` (kubelet 1.37 and later)."""

    def __init__(self, feed: HealthFeed) -> None:
        self._feed = feed

    async def NodeWatchResources(  # noqa: N802 - the protocol's name
        self, stream: Stream[health_v1_pb2.NodeWatchResourcesRequest, health_v1_pb2.NodeWatchResourcesResponse]
    ) -> None:
        """Tell how well every device is, again and again."""
        await self._feed.serve(stream, _response_v1)


class HealthV1Alpha1(HealthV1Alpha1Base):
    """Service `v1alpha1.DRAResourceHealth`, for kubelets before 1.37: the same."""

    def __init__(self, feed: HealthFeed) -> None:
        self._feed = feed

    async def NodeWatchResources(  # noqa: N802 - the protocol's name
        self,
        stream: Stream[health_v1alpha1_pb2.NodeWatchResourcesRequest, health_v1alpha1_pb2.NodeWatchResourcesResponse],
    ) -> None:
        """Tell how well every device is, again and again."""
        await self._feed.serve(stream, _response_v1alpha1)


def bounded(devices: Sequence[DeviceHealth]) -> list[DeviceHealth]:
    """Return no more devices, and no longer messages, than the kubelet takes."""
    taken = [_cut(device, MAX_MESSAGE) for device in devices[:MAX_DEVICES]]
    if sum(len(device.message) for device in taken) > MAX_TEXT:
        taken = [_cut(device, MAX_TEXT // len(taken)) for device in taken]
    return taken


def _cut(device: DeviceHealth, length: int) -> DeviceHealth:
    if len(device.message) <= length:
        return device
    return replace(device, message=device.message[: length - 1] + "…")


def _response_v1(devices: Iterable[DeviceHealth], now: int) -> _WatchResponse:
    return health_v1_pb2.NodeWatchResourcesResponse(
        devices=[
            health_v1_pb2.DeviceHealth(
                device=health_v1_pb2.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
                health=health_v1_pb2.HealthStatus.Name(one.status),
                last_updated_time=now,
                message=one.message,
            )
            for one in devices
        ]
    )


def _response_v1alpha1(devices: Iterable[DeviceHealth], now: int) -> _WatchResponse:
    return health_v1alpha1_pb2.NodeWatchResourcesResponse(
        devices=[
            health_v1alpha1_pb2.DeviceHealth(
                device=health_v1alpha1_pb2.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
                health=health_v1alpha1_pb2.HealthStatus.Name(one.status),
                last_updated_time=now,
                message=one.message,
            )
            for one in devices
        ]
    )


async def _send(stream: Stream[Any, Any], message: _WatchResponse) -> None:
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await stream.send_message(message)
    except TimeoutError:
        _log.warning("the kubelet does not read how well devices are", seconds=SEND_SECONDS)
        raise GRPCError(Status.DEADLINE_EXCEEDED, f"nobody read for {SEND_SECONDS:g} s: read, or call again") from None
