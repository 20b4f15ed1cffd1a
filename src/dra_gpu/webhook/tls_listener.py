"""Takes TLS connections, so many at a time, and decides whose place the next one gets.

They are counted from the moment at which they are accepted: one that never begins its TLS costs as much memory as
another (256 KB of buffers; with a thousand of them a webhook would be beyond its limit of memory).
"""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

_BACKLOG = 256
_ACCEPT_AGAIN_SECONDS = 0.1  # after the machine could give no connection
# Connections. Errors, as they end with, stand in circles with their frames, and these hold 256 KB of TLS' buffers each;
# Python's collector counts objects and not their size, so that it would come when there are thousands.
_COLLECTED_AFTER = 64
_DROPPED_SECONDS = 1.0  # for what takes a turn or two of the loop

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Place:
    """A connection as those see it who want its place.

    Attributes:
        accepted: its socket.
        transport: above it, once TLS stands.
        answered: at least once.
        answering: its client waits for us,
        sending: or is to read the answer, which it may never do.
        closed: its place was given away.
    """

    accepted: socket.socket
    transport: asyncio.WriteTransport | None = None
    answered: bool = False
    answering: bool = False
    sending: bool = False
    closed: bool = False

    def close(self) -> None:
        """End the connection at once; whoever serves it reads its end."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Place], Awaitable[None]]


class TlsListener:
    """Listens on one port.

    Args:
        serve: talks with a client until one of the two has enough; raises OSError where the client is gone.
        most: connections at once. When another one comes, of those that wait for their client the oldest that has never
            been answered goes, else the one that has waited longest, else one whose client does not read.
        handshake_seconds: for the TLS of a new connection.
        shutdown_seconds: for the end of it.
        on_drop: called for every connection that is closed since too many are open.
    """

    def __init__(
        self, serve: Serve, most: int, handshake_seconds: float, shutdown_seconds: float, on_drop: Callable[[], None]
    ) -> None:
        self._serve = serve
        self._most = most
        self._handshake_seconds = handshake_seconds
        self._shutdown_seconds = shutdown_seconds
        self._on_drop = on_drop
        self._places: dict[asyncio.Task[None], Place] = {}  # in the order in which they began to wait
        self._accepting: asyncio.Task[None] | None = None
        self._ended = 0
        self.stopping = False

    def __len__(self) -> int:
        return len(self._places)

    def start(self, host: str | None, port: int, context: ssl.SSLContext) -> int:
        """Listen on one address, or on all (None), and return the port; port 0 takes a free one.

        Raises:
            OSError: the port cannot be had.
        """
        listening = _bound(host, port)
        listening.setblocking(False)  # noqa: FBT003 - the socket module's own way to say it
        self._accepting = asyncio.create_task(self._accept(listening, context), name="accept")
        found: int = listening.getsockname()[1]
        return found

    async def stop(self, patience: float) -> None:
        """Take no more, let those that are being answered end for so many seconds, then close everything."""
        self.stopping = True
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        for place in self._places.values():
            if not place.answering:
                place.close()
        tasks = list(self._places)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def waits_anew(self) -> None:
        """Make the connection that is served by the running task the last one to be dropped."""
        task = asyncio.current_task()
        assert task is not None
        self._places[task] = self._places.pop(task)

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:  # no descriptor, no memory, or the client has gone already
                    _log.warning("a connection could not be taken", reason=str(error))
                    await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                    continue
                if len(self._places) >= self._most:
                    self._on_drop()
                    if (dropped := self._drop_one()) is None:
                        accepted.close()
                        continue
                    await asyncio.wait({dropped}, timeout=_DROPPED_SECONDS)
                self._take(accepted, context)

    def _take(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        place = Place(accepted)
        task = asyncio.create_task(self._on_connection(context, place))
        self._places[task] = place
        task.add_done_callback(self._gone)

    def _drop_one(self) -> asyncio.Task[None] | None:
        """Close a connection that waits for its client, and return its task; None where every client waits for us."""
        waiting = [
            (task, one) for task, one in self._places.items() if not one.closed and (one.sending or not one.answering)
        ]
        if not waiting:
            return None
        task, place = min(waiting, key=lambda one: (one[1].sending, one[1].answered))
        place.close()
        return task

    def _gone(self, task: asyncio.Task[None]) -> None:
        del self._places[task]
        self._ended += 1
        if self._ended % _COLLECTED_AFTER == 0:
            gc.collect()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection was not served", exc_info=error)

    async def _on_connection(self, context: ssl.SSLContext, place: Place) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                place.accepted,
                ssl=context,
                ssl_handshake_timeout=self._handshake_seconds,
                ssl_shutdown_timeout=self._shutdown_seconds,
            )
        except OSError:
            return  # the client is gone, or never was one
        place.transport = transport
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(reader, writer, place)
            if not self.stopping:
                writer.close()
                await writer.wait_closed()  # it has its place until TLS has ended
        except OSError:
            pass  # as above
        except asyncio.CancelledError:
            if not self.stopping:
                raise
        finally:
            transport.abort()


def _bound(host: str | None, port: int) -> socket.socket:
    """Return a socket with that address; for all addresses one of both families, so that there is one port."""
    if host is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in (host or "") else socket.AF_INET
    return socket.create_server((host or "", port), family=family, backlog=_BACKLOG)
