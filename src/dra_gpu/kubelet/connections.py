"""Connections to one gRPC socket: accepted, watched, and closed for good.

grpclib's own server cancels running calls when it closes and, from Python 3.12.1 on, waits for as long as the kubelet
keeps its connection, which is for ever. So the listening and the closing are done here, and grpclib speaks HTTP/2 and
gRPC on each connection.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Collection
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import grpclib.server
import h2.connection

from dra_gpu.kubelet.listening import ListeningSocket, listen_at

if TYPE_CHECKING:
    from grpclib._typing import IServable

_MAX_CLOSED_STREAMS = 1024
"""How many ended streams h2 remembers per connection, instead of 65536.

The kubelet keeps one connection for weeks and each call is a stream: with the default the process grows by about 10 MB
over the first 65536 calls. What is remembered serves only to tell a late frame from a protocol error, and no frame
comes a thousand calls late.
"""

_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of Linux, unix(7)

_peer_pid: ContextVar[int | None] = ContextVar("peer_pid", default=None)


def peer_pid() -> int | None:
    """Process that made the connection of the current call; 0 when it is outside our PID namespace."""
    return _peer_pid.get()


class GrpcSocket:
    """A Unix socket that serves gRPC.

    `opened` and `closed`, if given, hear of each connection with the peer's process id.
    """

    def __init__(
        self,
        path: Path,
        services: Collection["IServable"],
        opened: Callable[[int | None], None] | None = None,
        closed: Callable[[int | None], None] | None = None,
    ) -> None:
        h2.connection.H2Connection.MAX_CLOSED_STREAMS = _MAX_CLOSED_STREAMS
        self.path = path
        self._grpc = _GrpcServer(services)
        self._opened = opened
        self._closed = closed
        self._connections: set[_Connection] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._listening: ListeningSocket | None = None
        self._server: asyncio.AbstractServer | None = None

    async def listen(self) -> None:
        """Bind the socket and accept connections.

        Raises:
            SocketBusyError: somebody else has the path.
            OSError: it cannot be made.
        """
        listening = listen_at(self.path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, sock=listening.sock)
        self._listening = listening

    def in_place(self) -> bool:
        """Whether the socket's file is still the one made here."""
        return self._listening is not None and self._listening.in_place()

    def stop_listening(self) -> None:
        """Remove the file, if it is ours, and accept no more; open connections go on."""
        if self._listening is not None:
            self._listening.unlink()
            self._listening = None
        if self._server is not None:
            self._server.close()  # never awaited: wait_closed() waits for connections (python/cpython#120866)
            self._server = None

    async def wait_unused(self, seconds: float) -> bool:
        """Wait until no connection is left, at most `seconds`; whether that came."""
        try:
            async with asyncio.timeout(seconds):
                await self._none_left.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, seconds: float) -> None:
        """Stop listening and end the connections that are left; their calls are cancelled. Takes at most `seconds`."""
        self.stop_listening()
        for connection in tuple(self._connections):
            connection.close()
        if not await self.wait_unused(seconds):
            for connection in tuple(self._connections):
                connection.abort()

    def _accept(self) -> asyncio.Protocol:
        return _Connection(self._grpc.protocol(), self._enter, self._leave)

    def _enter(self, connection: "_Connection") -> None:
        self._connections.add(connection)
        self._none_left.clear()
        if self._opened is not None:
            self._opened(connection.pid)

    def _leave(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._none_left.set()
        if self._closed is not None:
            self._closed(connection.pid)


class _GrpcServer(grpclib.server.Server):
    """grpclib's server without its socket."""

    def protocol(self) -> asyncio.Protocol:
        """Make the protocol of one connection."""
        return self._protocol_factory()


class _Connection(asyncio.Protocol):
    """Hands everything on to grpclib's protocol and says when a connection comes and goes."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        enter: Callable[["_Connection"], None],
        leave: Callable[["_Connection"], None],
    ) -> None:
        self.pid: int | None = None
        self._inner = inner
        self._enter = enter
        self._leave = leave
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport if isinstance(transport, asyncio.WriteTransport) else None
        self.pid = _pid_of(transport.get_extra_info("socket"))
        self._inner.connection_made(transport)
        self._enter(self)

    def data_received(self, data: bytes) -> None:
        # The task of a call copies the context it is made in, here.
        _peer_pid.set(self.pid)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        self._leave(self)

    def close(self) -> None:
        """Send what is buffered, then end the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()


def _pid_of(sock: socket.socket | None) -> int | None:
    if sock is None:
        return None
    try:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError:
        return None
    return int(_UCRED.unpack(credentials)[0])
