"""The server itself: its socket, its connections, and the way of a request through all its parts."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_gpu_sim.apiserver import admin, pod_proxy, resources
from dra_gpu_sim.apiserver.failures import ApiFailureError
from dra_gpu_sim.apiserver.faults import Faults
from dra_gpu_sim.apiserver.handlers import Handlers, matcher_of
from dra_gpu_sim.apiserver.http1 import Exchange, serve_connection
from dra_gpu_sim.apiserver.request_log import RequestLog
from dra_gpu_sim.apiserver.routes import Route, route
from dra_gpu_sim.apiserver.store import Obj, ObjectStore
from dra_gpu_sim.apiserver.watches import Watch


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server behaves.

    Attributes:
        tokens: accepted bearer tokens; empty accepts everybody.
        gates_off: feature gates whose fields are dropped from slices, silently, as by a real server.
        bookmark_every: seconds between bookmarks on a watch that asked for them.
        watch_limit: longest life of a watch in seconds, whatever the client asks for.
        seed: of the names that the server makes up; None for others each time.
    """

    tokens: Collection[str] = ()
    gates_off: Collection[str] = ()
    bookmark_every: float = 60.0
    watch_limit: float = 600.0
    seed: int | None = None


class ApiServer:
    """An API server on one port of this machine."""

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.options = options or ServerOptions()
        self.store = ObjectStore(seed=self.options.seed)
        self.faults = Faults()
        self.log = RequestLog()
        self.tokens = set(self.options.tokens)
        self.handlers = Handlers(self.store, self.options.gates_off)
        self.port = 0
        self._host = "127.0.0.1"
        self._ssl: ssl.SSLContext | None = None
        self._listener: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._watches: set[Watch] = set()
        self._reopening: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"{'https' if self._ssl else 'http'}://{self._host}:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0, ssl_context: ssl.SSLContext | None = None) -> None:
        """Listen. Port 0 takes a free one; with ``ssl_context`` it speaks TLS."""
        self._host, self._ssl = host, ssl_context
        self._reserved = _reserve(host, port)
        self.port = self._reserved.getsockname()[1]
        await self.reopen()

    async def stop(self) -> None:
        """Close everything; returns when no task of the server is left."""
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        self._close_listener()
        if self._reserved is not None:
            self._reserved.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def change_certificate(self, ssl_context: ssl.SSLContext) -> None:
        """Serve new connections with another certificate; takes effect with :meth:`reopen`."""
        self._ssl = ssl_context

    async def reopen(self) -> None:
        """Accept connections (again) on the same port."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._on_connection, self._host, self.port, ssl=self._ssl)

    def refuse(self, seconds: float | None = None) -> None:
        """Stop listening and cut every connection; come back by itself after ``seconds``, or with :meth:`reopen`."""
        self._close_listener()
        self.cut_connections()
        if seconds is not None:
            self._reopening = asyncio.get_running_loop().create_task(self._reopen_after(seconds))

    def cut_connections(self) -> None:
        """Abort every open connection, as a network does."""
        for writer in tuple(self._connections.values()):
            writer.transport.abort()

    def compact(self, *, as_status: bool = False) -> None:
        """Forget the history: new watches from an older version get 410, as an ERROR event or as a status code."""
        self.faults.compaction_as_status = as_status
        self.store.compact()

    def close_watches(self, *, error: int = 0) -> None:
        """End all watches in good order, or with an ERROR event of that code."""
        for watch in tuple(self._watches):
            if error:
                watch.fail(error, "the watch was ended by a fault")
            else:
                watch.close()

    def send_bookmarks(self) -> None:
        """Send a bookmark on every watch now."""
        for watch in tuple(self._watches):
            watch.bookmark()

    def send_giant_event(self, size: int) -> None:
        """Send one event line of at least ``size`` bytes on every watch."""
        for watch in tuple(self._watches):
            watch.giant(size)

    @property
    def open_connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def put(self, plural: str, obj: Mapping[str, Any], namespace: str = "") -> Obj:
        """Create an object as if a client had; nothing is logged, status included."""
        served = resources.by_plural(plural)
        made = self.handlers.create(Route("create", served, namespace, "", "", {}), dict(obj))
        if served.has_status and "status" in obj:
            return self.store.replace(
                served, namespace, made["metadata"]["name"], {**made, "status": obj["status"]}, status_only=True
            )
        return made

    def objects(self, plural: str, namespace: str = "") -> list[Obj]:
        """All objects of a kind."""
        return self.store.list(resources.by_plural(plural), namespace)

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object as if another client had."""
        self.store.delete(resources.by_plural(plural), namespace, name)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _reopen_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.reopen()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            await serve_connection(reader, writer, self._handle)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            del self._connections[task]

    async def _handle(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path.startswith("/_"):
            status, body = await admin.handle(self, request)
            await exchange.respond(status, msgspec.json.encode(body))
            return
        if request.path in ("/version", "/healthz", "/readyz"):
            await exchange.respond(
                200, msgspec.json.encode({"major": "1", "minor": "37", "gitVersion": "v1.37.2+memory"})
            )
            return
        try:
            self._check_token(request.headers.get("authorization", ""))
            if (asked := pod_proxy.wanted(request.path)) is not None:
                said = await pod_proxy.forward(asked, self.objects("pods"))
                await exchange.respond(200, said, {"Content-Type": "text/plain"})
                return
            where = route(request)
        except ApiFailureError as failure:
            await self._refuse_request(exchange, None, failure)
            return
        try:
            await self._handle_route(exchange, where)
        except ApiFailureError as failure:
            await self._refuse_request(exchange, where, failure)

    async def _handle_route(self, exchange: Exchange, where: Route) -> None:
        rule = self.faults.take(where.verb, where.served.plural, where.name)
        if rule is not None and rule.delay:
            await asyncio.sleep(rule.delay)
        failure = (
            ApiFailureError(rule.status, rule.message, headers=rule.headers)
            if rule is not None and rule.status
            else None
        )
        if failure is not None and not (rule and rule.apply_first):
            raise failure
        if where.verb == "watch":
            await self._watch(exchange, where)
            return
        status, body = self.handlers.handle(
            where, exchange.request.body, exchange.request.headers.get("content-type", "")
        )
        if failure is not None:
            raise failure
        self._note(exchange, where, status)
        await exchange.respond(status, msgspec.json.encode(body))

    async def _watch(self, exchange: Exchange, where: Route) -> None:
        watch = Watch(self.store, where.served, where.namespace, matcher_of(where), self.faults)
        limit = min(float(where.query.get("timeoutSeconds", self.options.watch_limit)), self.options.watch_limit)
        bookmarks = self.options.bookmark_every if where.query.get("allowWatchBookmarks") in ("1", "true") else None
        self._watches.add(watch)
        started = asyncio.create_task(
            watch.run(exchange, where.query.get("resourceVersion", ""), limit=limit, bookmark_every=bookmarks)
        )
        try:
            await asyncio.wait({started}, timeout=0)
            if not (started.done() and started.exception()):
                self._note(exchange, where, 200)
            await started
        finally:
            self._watches.discard(watch)
            started.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, ApiFailureError):
                await started

    async def _refuse_request(self, exchange: Exchange, where: Route | None, failure: ApiFailureError) -> None:
        self._note(exchange, where, failure.code)
        await exchange.respond(failure.code, msgspec.json.encode(failure.status()), failure.headers)

    def _check_token(self, authorization: str) -> None:
        if self.tokens and authorization.removeprefix("Bearer ") not in self.tokens:
            raise ApiFailureError(401, "Unauthorized")

    def _note(self, exchange: Exchange, where: Route | None, status: int) -> None:
        self.log.add(
            verb=where.verb if where else exchange.request.method.lower(),
            resource=where.served.plural if where else "",
            subresource=where.subresource if where else "",
            namespace=where.namespace if where else "",
            name=where.name if where else "",
            status=status,
            query=exchange.request.raw_query,
            body_bytes=len(exchange.request.body),
        )


def _reserve(host: str, port: int) -> socket.socket:
    """Take a port for as long as the server lives: while it refuses connections nobody else may be given its port.

    A bound socket that does not listen refuses connections, and with SO_REUSEADDR on both another one may listen beside
    it (Source: Linux, inet_csk_bind_conflict).
    """
    taken = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except OSError:
        taken.close()
        raise
    return taken
