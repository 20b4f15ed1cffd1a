"""HTTP/1.1 towards one API server: pooled connections for requests, connections of their own for watches.

Built on h11, which parses and checks the protocol and does no I/O; the sockets are asyncio's. Promises: a request
ends before its deadline, a connection is reused only after a complete answer, a body may be megabytes long, and
closing is immediate.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import h11

from dra_gpu.apiserver.connection import Credentials

_READ_BYTES = 65_536
_CONNECT_SECONDS = 10.0
_IDLE_KEPT = 8
_BODY_LIMIT = 64 * 1024 * 1024  # no list that this driver asks for comes near it


class TransportError(Exception):
    """The network, TLS or the other side's HTTP failed before a whole answer was there.

    Attributes:
        untrusted: the server's certificate was not accepted.
        unanswered: a reused connection broke before the first byte of an answer.
    """

    def __init__(self, detail: str, *, untrusted: bool = False, unanswered: bool = False) -> None:
        super().__init__(detail)
        self.untrusted = untrusted
        self.unanswered = unanswered


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers (lower-case names) and whole body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """What to ask: method, path with query, headers and body."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class HttpConnection:
    """One TCP (or TLS) connection, used for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host
        self._protocol = h11.Connection(h11.CLIENT)
        self._used = False

    @property
    def is_reusable(self) -> bool:
        """Both sides are done with the last request and the other one has not hung up."""
        return self._protocol.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    async def send(self, call: Call) -> tuple[int, dict[str, str]]:
        """Send a request and return the status and headers of its answer; the body is still to be read.

        Raises:
            TransportError: the connection broke or the answer is not HTTP.
        """
        reused, self._used = self._used, True
        headers = [
            ("Host", self._host),
            ("User-Agent", "dra-driver-gpu"),
            *call.headers,
        ]
        if not any(name == "Accept" for name, _ in call.headers):
            headers.append(("Accept", "application/json"))
        if call.body or call.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(len(call.body))))
        try:
            data = self._protocol.send(h11.Request(method=call.method, target=call.target, headers=headers)) or b""
            if call.body:
                data += self._protocol.send(h11.Data(data=call.body)) or b""
            data += self._protocol.send(h11.EndOfMessage()) or b""
            self._writer.write(data)
            await self._writer.drain()
            event = await self._next_event()
            while isinstance(event, h11.InformationalResponse):
                event = await self._next_event()
        except (OSError, h11.ProtocolError) as error:
            raise TransportError(f"{type(error).__name__}: {error}", unanswered=reused) from error
        if not isinstance(event, h11.Response):
            raise TransportError("the server closed the connection without an answer", unanswered=reused)
        return event.status_code, {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}

    async def read(self) -> bytes:
        """Return the next piece of the body; empty at its end.

        Raises:
            TransportError: the connection broke inside the body.
        """
        try:
            event = await self._next_event()
        except (OSError, h11.ProtocolError) as error:
            raise TransportError(f"{type(error).__name__}: {error}") from error
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return b""
        raise TransportError("the server closed the connection inside an answer")

    def finish(self) -> None:
        """Make ready for the next request, after the body was read to its end."""
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()

    def close(self) -> None:
        """Drop the connection now, whatever is under way."""
        self._writer.transport.abort()

    async def _next_event(self) -> object:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            self._protocol.receive_data(await self._reader.read(_READ_BYTES))
        return event


class HttpPool:
    """Connections to one server. At most `max_requests` requests are under way; watches do not count.

    Not for use from several event loops.
    """

    def __init__(self, credentials: Credentials, max_requests: int = 8) -> None:
        self._credentials = credentials
        self._idle: list[HttpConnection] = []
        self._context: ssl.SSLContext | None = None
        self._slots = asyncio.Semaphore(max_requests)

    async def request(self, call: Call) -> Answer:
        """Send a request and read its whole answer. The caller sets the deadline (`asyncio.timeout`).

        A connection that the server had closed while it was idle is replaced once, silently; a POST is then
        repeated only because the names we create are deterministic, so that a repeated one is answered with 409.

        Raises:
            TransportError: no whole answer came.
        """
        async with self._slots:
            while True:
                connection = self._reuse() or await self.connect()
                try:
                    answer = await self._exchange(connection, call)
                except TransportError as error:
                    connection.close()
                    if error.unanswered:
                        continue
                    raise
                except BaseException:
                    connection.close()
                    raise
                self._keep(connection)
                return answer

    async def connect(self) -> HttpConnection:
        """Open a connection; the caller closes it.

        Raises:
            TransportError: refused, unreachable, or the certificate is not trusted.
        """
        where = self._credentials.connection
        context = self._credentials.ssl_context()
        if context is not self._context:
            self._context = context
            self._drop_idle()
        name = (where.tls_server_name or where.host) if context is not None else None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    where.host, where.port, ssl=context, server_hostname=name
                )
        except ssl.SSLCertVerificationError as error:
            raise TransportError(f"certificate of {where.server}: {error.verify_message}", untrusted=True) from error
        except TimeoutError as error:
            raise TransportError(f"no connection to {where.server} within {_CONNECT_SECONDS:.0f} s") from error
        except OSError as error:
            raise TransportError(f"no connection to {where.server}: {str(error) or type(error).__name__}") from error
        return HttpConnection(reader, writer, f"{where.host}:{where.port}")

    def close(self) -> None:
        """Drop all idle connections."""
        self._drop_idle()

    async def _exchange(self, connection: HttpConnection, call: Call) -> Answer:
        status, headers = await connection.send(call)
        body = bytearray()
        while piece := await connection.read():
            body += piece
            if len(body) > _BODY_LIMIT:
                raise TransportError(f"the answer is longer than {_BODY_LIMIT >> 20} MiB")
        connection.finish()
        return Answer(status, headers, bytes(body))

    def _reuse(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            connection.close()
        return None

    def _keep(self, connection: HttpConnection) -> None:
        if connection.is_reusable and len(self._idle) < _IDLE_KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def _drop_idle(self) -> None:
        for connection in self._idle:
            with contextlib.suppress(OSError):
                connection.close()
        self._idle.clear()
