"""HTTP/1.1 for the server: one connection at a time, requests in, answers or endless streams out. Built on h11."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

_READ = 65_536


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request. Header names are lower case; ``query`` holds the last value of each parameter."""

    method: str
    path: str
    query: Mapping[str, str]
    raw_query: str
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """One request and the means to answer it."""

    def __init__(
        self, request: Request, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.request = request
        self._connection = connection
        self._reader = reader
        self._writer = writer

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer."""
        await self._start(
            status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
        )
        await self._send(h11.Data(data=body))
        await self.end()

    async def start_stream(self) -> None:
        """Begin an answer of unknown length."""
        await self._start(200, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})

    async def send_chunk(self, data: bytes) -> None:
        """Send a piece of a stream."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """Finish the answer."""
        await self._send(h11.EndOfMessage())

    async def client_gone(self) -> None:
        """Return when the client closes its side."""
        while await self._reader.read(_READ):
            pass

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        try:
            reason = HTTPStatus(status).phrase
        except ValueError:
            reason = ""
        await self._send(h11.Response(status_code=status, reason=reason, headers=list(headers.items())))

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._connection.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()


async def serve_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Callable[[Exchange], Awaitable[None]]
) -> None:
    """Answer the requests of one client until either side closes."""
    connection = h11.Connection(h11.SERVER)
    try:
        while (request := await _read_request(connection, reader, writer)) is not None:
            await handle(Exchange(request, connection, reader, writer))
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
    except (ConnectionError, h11.ProtocolError):
        return  # the client went away or does not speak HTTP: nobody is left to tell
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, OSError, TimeoutError):
            async with asyncio.timeout(1):
                await writer.wait_closed()


async def _read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            connection.receive_data(await reader.read(_READ))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return _to_request(head, bytes(body))
        else:
            return None


def _to_request(head: h11.Request, body: bytes) -> Request:
    target = urlsplit(head.target.decode("ascii"))
    return Request(
        method=head.method.decode("ascii"),
        path=unquote(target.path),
        query=dict(parse_qsl(target.query, keep_blank_values=True)),
        raw_query=target.query,
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=body,
    )
