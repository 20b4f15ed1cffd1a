"""The small HTTP server of a process: its metrics, `/healthz` and `/readyz`.

It runs in the loop of what it tells about: if the loop hangs, nobody answers, and that is the truth. Promises: bounded
connections, bounded requests, a deadline on everything, no path but its own; whoever talks nonsense is hung up on, and
whoever says nothing makes room for others: the kubelet asks here whether this process has to be started again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import h11
import structlog

from dra_gpu.metrics.address import Address
from dra_gpu.metrics.health import Check, verdict
from dra_gpu.metrics.registry import Registry

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"
_CONNECTIONS = 64
_LONGEST_REQUEST = 8 * 1024
_FIRST_SECONDS = 10.0  # whoever connects has something to ask
_IDLE_SECONDS = 75.0  # Prometheus keeps its connection from scrape to scrape, a minute apart
_ANSWER_SECONDS = 10.0
_READ_BYTES = 4096

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = _TEXT_TYPE


Handler = Callable[[], Awaitable[Response]]


def routes(
    registry: Registry, metrics_path: str, alive: tuple[Check, ...] = (), ready: tuple[Check, ...] = ()
) -> dict[str, Handler]:
    """Return what a process serves.

    Args:
        registry: its metrics.
        metrics_path: where.
        alive: what `/healthz` looks at; a process that is not alive should be started again.
        ready: what `/readyz` looks at; a process that is not ready is waited for.
    """

    async def metrics() -> Response:
        return Response(200, await registry.render(), METRICS_TYPE)

    async def healthz() -> Response:
        return _told(*await verdict(alive))

    async def readyz() -> Response:
        return _told(*await verdict(ready))

    return {"/healthz": healthz, "/readyz": readyz, metrics_path: metrics}


def _told(good: bool, lines: str) -> Response:  # noqa: FBT001 - a pair that `verdict` returns
    return Response(200 if good else 503, (lines + ("ok\n" if good else "failed\n")).encode())


@dataclass(eq=False, slots=True)
class _Client:
    """A connection as those see it who want its place; the others are in the order in which they came."""

    writer: asyncio.StreamWriter
    answered: bool = False  # at least once
    answering: bool = False
    sending: bool = False  # an answer that it may never read
    closed: bool = False


@dataclass(slots=True)
class Endpoint:
    """Serves paths until it is closed.

    Attributes:
        handlers: what answers, by path.
        answer_seconds: how long a handler may take.
    """

    handlers: Mapping[str, Handler]
    answer_seconds: float = _ANSWER_SECONDS
    _server: asyncio.Server | None = None
    _connections: dict["asyncio.Task[None]", _Client] = field(default_factory=dict)

    async def start(self, address: Address) -> int:
        """Listen; returns the port, which matters where it was 0.

        Raises:
            OSError: the address cannot be had.
        """
        self._server = await asyncio.start_server(
            self._connected, address.host or None, address.port, limit=_READ_BYTES, reuse_address=True
        )
        port = int(self._server.sockets[0].getsockname()[1])
        _log.info("serving metrics and health", host=address.host, port=port, paths=sorted(self.handlers))
        return port

    async def close(self) -> None:
        """Stop listening and drop what is connected."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # asyncio runs this in one
        if len(self._connections) >= _CONNECTIONS and not self._make_room():
            writer.transport.abort()
            return
        client = self._connections[task] = _Client(writer)
        try:
            await self._serve(reader, client)
        except (OSError, TimeoutError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass  # it has gone, says nothing, talks nonsense, or this process ends
        finally:
            del self._connections[task]
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    def _make_room(self) -> bool:
        """Hang up on a client that says nothing, or does not read; False where all are being answered."""
        silent = [one for one in self._connections.values() if not one.closed and (one.sending or not one.answering)]
        if not silent:
            return False
        client = min(silent, key=lambda one: (one.sending, one.answered))
        client.closed = True
        client.writer.transport.abort()
        return True

    async def _serve(self, reader: asyncio.StreamReader, client: _Client) -> None:
        protocol, writer = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_REQUEST), client.writer
        while True:
            client.answering = client.sending = False
            async with asyncio.timeout(_IDLE_SECONDS if client.answered else _FIRST_SECONDS):
                request = await _request(protocol, reader)
            if request is None:
                return
            client.answering = client.answered = True
            async with asyncio.timeout(self.answer_seconds + 1.0):
                response = await self._answer(request)
                client.sending = True
                writer.write(_encoded(protocol, request, response))
                await writer.drain()
            if protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
                return
            protocol.start_next_cycle()

    async def _answer(self, request: h11.Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response(405, b"write GET\n")
        path = request.target.partition(b"?")[0].decode("latin-1")
        handler = self.handlers.get(path)
        if handler is None:
            return Response(404, f"try one of {', '.join(sorted(self.handlers))}\n".encode())
        try:
            async with asyncio.timeout(self.answer_seconds):
                return await handler()
        except TimeoutError:
            return Response(503, b"no answer in time\n")
        except Exception as error:  # noqa: BLE001 - one answer's fault ends neither the server nor the process
            _log.error("a request could not be answered", path=path, exc_info=error)
            return Response(500, b"see the log\n")


async def _request(protocol: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Read one whole request, its body too; None when the other side has gone."""
    request: h11.Request | None = None
    size = 0
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            size += len(event.data)
            if size > _LONGEST_REQUEST:
                raise h11.RemoteProtocolError("a request here has no body")
        elif isinstance(event, h11.EndOfMessage):
            return request
        else:
            return None


def _encoded(protocol: h11.Connection, request: h11.Request, response: Response) -> bytes:
    headers = [("Content-Type", response.content_type), ("Content-Length", str(len(response.body)))]
    if response.status == 405:  # noqa: PLR2004 - RFC 9110: it says what is allowed
        headers.append(("Allow", "GET, HEAD"))
    data = protocol.send(h11.Response(status_code=response.status, headers=headers)) or b""
    if request.method != b"HEAD":
        data += protocol.send(h11.Data(data=response.body)) or b""
    with suppress(h11.LocalProtocolError):
        data += protocol.send(h11.EndOfMessage()) or b""
    return data
