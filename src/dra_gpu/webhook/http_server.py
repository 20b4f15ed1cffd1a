"""An HTTPS server for few, small requests: HTTP/1.1 on h11 over asyncio's TLS.

Promises: whoever is slow, silent, too big or no HTTP costs one connection for a few seconds and a bounded amount of
memory, and is told why with a status; a stop lets running requests end. What to answer is the handler's business.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import h11
import structlog

from dra_gpu.webhook.tls_listener import Place, TlsListener

_READ_BYTES = 65_536
_HEAD_BYTES = 16 * 1024
_JSON = "application/json"
_BAD_REQUEST, _TIMEOUT, _TOO_LARGE, _INTERNAL, _UNAVAILABLE = 400, 408, 413, 500, 503
_ERRORS = 400
_LINGER_BYTES = 16 * 1024 * 1024

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one client may cost.

    Attributes:
        body: bytes of one body.
        bodies: bytes of all bodies that are being received or worked on.
        connections: open at once; see `TlsListener`.
        handshake_seconds: for the TLS of a new connection.
        request_seconds: until the first byte after that, and from there to the last one of a request.
        linger_seconds: for which the rest of a refused request is thrown away, so that the refusal is read.
        idle_seconds: between two requests; longer than the 90 s after which Go's client drops an idle connection.
    """

    body: int = 4 * 1024 * 1024  # an update carries two objects of at most 1.5 MiB (etcd's limit)
    bodies: int = 32 * 1024 * 1024
    connections: int = 256
    handshake_seconds: float = 10.0
    request_seconds: float = 10.0
    linger_seconds: float = 2.0
    idle_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request, whole. Header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = _JSON
    headers: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def text(status: int, text: str, **headers: str) -> "Response":
        """Return a short plain answer."""
        named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return Response(status, f"{text}\n".encode("utf-8", "replace"), "text/plain; charset=utf-8", named)


Handler = Callable[[Request], Awaitable[Response]]


class _RefusedError(Exception):
    """The request ends here, and the connection after the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = Response.text(status, text, connection="close")


@dataclass(eq=False, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    place: Place
    protocol: h11.Connection = field(
        default_factory=lambda: h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
    )
    held: int = 0  # bytes of a body
    without_body: bool = False  # the answer to a HEAD


class HttpsServer:
    """Answers requests on one port.

    Args:
        handle: makes the answer; an exception becomes a 500.
        limits: what one client may cost.
        on_refusal: called with every status of 400 or more.
        on_drop: called for every connection that is closed since too many are open.
    """

    def __init__(
        self,
        handle: Handler,
        limits: Limits | None = None,
        on_refusal: Callable[[int], None] = lambda _: None,
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        self._handle = handle
        self._limits = limits or Limits()
        self._on_refusal = on_refusal
        self._held = 0
        self._listener = TlsListener(
            self._talk,
            self._limits.connections,
            self._limits.handshake_seconds,
            self._limits.linger_seconds,
            on_drop,
        )
        self.port = 0

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._listener)

    async def start(self, host: str | None, port: int, context: ssl.SSLContext) -> None:
        """Listen on one address, or on all (None); port 0 takes a free one.

        Raises:
            OSError: the port cannot be had.
        """
        self.port = self._listener.start(host, port, context)

    async def stop(self, patience: float) -> None:
        """Take no further request, let those that run end for so many seconds, then close everything."""
        await self._listener.stop(patience)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: Place) -> None:
        connection = _Connection(reader, writer, place)
        try:
            await self._serve(connection)
        except h11.ProtocolError:
            pass  # it never was a client
        finally:
            self._release(connection)

    async def _serve(self, connection: _Connection) -> None:
        place = connection.place
        patience = self._limits.request_seconds  # a client that connects has something to say
        while not self._listener.stopping:
            try:
                request = await self._request(connection, patience)
                if request is None:
                    return
                place.answering = True
                response = await self._answer(request)
            except _RefusedError as refused:
                response = refused.response
            closing = self._listener.stopping or ("connection", "close") in response.headers
            place.sending = True
            await self._send(connection, response, closing=closing)
            self._release(connection)
            place.answering, place.sending, place.answered = False, False, True
            if closing or connection.protocol.our_state is not h11.DONE:
                await self._linger(connection)
                return
            connection.protocol.start_next_cycle()
            self._listener.waits_anew()
            await asyncio.sleep(0)  # whoever sends many requests at once gets his answers in turn with others
            patience = self._limits.idle_seconds

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._handle(request)
        except Exception as error:  # noqa: BLE001 - logged; the process and the other requests go on
            _log.error("a request was not answered", path=request.path[:80], exc_info=error)
            return Response.text(_INTERNAL, "internal error; the log has more", connection="close")

    async def _request(self, connection: _Connection, patience: float) -> Request | None:
        """Return the next request; None when the client has hung up, or says nothing.

        Raises:
            _RefusedError: it is no request that can be answered.
        """
        try:
            async with asyncio.timeout(patience):
                if not await self._has_begun(connection):
                    return None
        except TimeoutError:
            return None
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                head = await self._event(connection)
                if not isinstance(head, h11.Request):
                    return None
                return await self._whole(connection, head)
        except TimeoutError as error:
            raise _RefusedError(_TIMEOUT, f"no whole request within {self._limits.request_seconds:g} s") from error
        except h11.RemoteProtocolError as error:
            raise _RefusedError(error.error_status_hint, f"this is no HTTP/1.1 request: {error}"[:500]) from error

    async def _has_begun(self, connection: _Connection) -> bool:
        """Wait for the first byte of a request."""
        if connection.protocol.trailing_data[0]:
            return True
        piece = await connection.reader.read(_READ_BYTES)
        connection.protocol.receive_data(piece)
        return bool(piece)

    async def _whole(self, connection: _Connection, head: h11.Request) -> Request:
        connection.without_body = head.method == b"HEAD"
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or len(announced) > 12 or int(announced) > self._limits.body:  # noqa: PLR2004 - digits
            raise self._too_large()
        if connection.protocol.they_are_waiting_for_100_continue:
            interim = h11.InformationalResponse(status_code=100, headers=[])
            connection.writer.write(connection.protocol.send(interim) or b"")
        body = bytearray()
        while isinstance(event := await self._event(connection), h11.Data):
            body += event.data
            if len(body) > self._limits.body:
                raise self._too_large()
            connection.held += len(event.data)
            self._held += len(event.data)
            if self._held > self._limits.bodies:
                raise _RefusedError(_UNAVAILABLE, "too many requests at once: try again")
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        try:
            target = urlsplit(head.target.decode("latin-1"))
        except ValueError as error:
            raise _RefusedError(_BAD_REQUEST, "the path of the request is none") from error
        return Request(head.method.decode("ascii"), target.path, dict(parse_qsl(target.query)), headers, bytes(body))

    def _too_large(self) -> _RefusedError:
        return _RefusedError(_TOO_LARGE, f"the body has more than {self._limits.body} bytes")

    async def _event(self, connection: _Connection) -> object:
        while (event := connection.protocol.next_event()) is h11.NEED_DATA:
            connection.protocol.receive_data(await connection.reader.read(_READ_BYTES))
        return event

    async def _send(self, connection: _Connection, response: Response, *, closing: bool) -> None:
        if response.status >= _ERRORS:
            self._on_refusal(response.status)
        protocol = connection.protocol
        if protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        named = {"content-type": response.content_type, **dict(response.headers)}
        named["content-length"] = str(len(response.body))
        if closing:
            named["connection"] = "close"
        head = h11.Response(status_code=response.status, headers=list(named.items()))
        data = protocol.send(head) or b""
        if not connection.without_body:
            data += protocol.send(h11.Data(data=response.body)) or b""
        connection.writer.write(data + (protocol.send(h11.EndOfMessage()) or b""))
        async with asyncio.timeout(self._limits.request_seconds):
            await connection.writer.drain()

    async def _linger(self, connection: _Connection) -> None:
        """Read on for a moment: closing on unread bytes would make the client see a reset instead of the answer."""
        if connection.protocol.their_state is h11.DONE:
            return
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.linger_seconds):
                while left > 0 and (piece := await connection.reader.read(_READ_BYTES)):
                    left -= len(piece)

    def _release(self, connection: _Connection) -> None:
        self._held -= connection.held
        connection.held = 0
