"""The shipped `KubernetesApi` Protocol right on the server in memory: its rules and its errors, without a socket.

For histories of many thousand requests. A request can find nobody there, its answer can be lost, a watch can be late,
and whoever sends a request can die before or after it.
"""

# ruff: noqa: ARG002 - methods have the shape of their Protocol
import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import Listing, Selection, WatchEvent
from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.apiserver.failures import ApiFailureError
from dra_gpu_sim.apiserver.handlers import APPLY, MERGE, matcher_of
from dra_gpu_sim.apiserver.routes import Route
from dra_gpu_sim.apiserver.server import ApiServer

_LATENCY = (0.001, 0.008)  # seconds, as in a data centre
Boundary = Callable[[], None]


class Network:
    """What is between clients and the server, for all clients.

    Attributes:
        away: nobody reaches the server.
        answers_lost: of so many writes the answer does not arrive.
        lag: seconds by which watches are late.
        random: how long a request takes, in either direction.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.away = False
        self.answers_lost = 0
        self.lag = 0.0
        self._watches: dict[asyncio.Queue, None] = {}

    def cut(self) -> None:
        """Be away, and let every watch know."""
        self.away = True
        for queue in tuple(self._watches):
            queue.put_nowait(None)

    def back(self) -> None:
        """Be there again."""
        self.away = False

    def open(self) -> asyncio.Queue:
        queue: asyncio.Queue = asyncio.Queue()
        self._watches[queue] = None
        return queue

    def close(self, queue: asyncio.Queue) -> None:
        self._watches.pop(queue, None)


class MemoryApi:
    """One client of the server.

    Args:
        server: the objects.
        network: the way to it.
        boundary: called before and after each request.
    """

    def __init__(self, server: ApiServer, network: Network, boundary: Boundary = lambda: None) -> None:
        self._server = server
        self._network = network
        self._boundary = boundary

    async def get(self, resource, name, namespace="", *, deadline=0.0):
        return _decoded(resource, await self._send("get", resource, name, namespace))

    async def list(self, resource, selection=None, *, deadline=0.0):
        chosen = selection or Selection()
        raw = await self._send("list", resource, "", chosen.namespace, query=chosen.query())
        return Listing(tuple(_decoded(resource, item) for item in raw["items"]), raw["metadata"]["resourceVersion"])

    async def create(self, resource, body, namespace="", *, deadline=0.0):
        return _decoded(resource, await self._send("create", resource, "", namespace, body))

    async def update(self, resource, body, name, namespace="", *, deadline=0.0):
        return _decoded(resource, await self._send("update", resource, name, namespace, body))

    async def patch(self, resource, body, name, namespace="", *, subresource="", deadline=0.0):
        return _decoded(resource, await self._send("patch", resource, name, namespace, body, MERGE, subresource))

    async def apply(self, resource, body, name, namespace="", *, subresource="", deadline=0.0):
        query = {"fieldManager": "dra-driver-gpu"}
        return _decoded(resource, await self._send("patch", resource, name, namespace, body, APPLY, subresource, query))

    async def delete(self, resource, name, namespace="", *, uid="", resource_version="", deadline=0.0):
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        await self._send("delete", resource, name, namespace, {"preconditions": conditions})

    async def watch(self, resource, selection, options, deliver):
        """Deliver what has changed after a version, as late as the network is, until it is cancelled or cut."""
        self._pass("watch", resource)
        served = resources.by_plural(str(resource))
        matches = matcher_of(Route("watch", served, selection.namespace, "", "", selection.query()))
        queue = self._network.open()
        for change in self._server.store.since(int(options.resource_version)):
            queue.put_nowait(change)
        unsubscribe = self._server.store.subscribe(queue.put_nowait)
        try:
            while (change := await queue.get()) is not None:
                event = _event(resource, served, selection, matches, change)
                if event is not None:
                    await asyncio.sleep(self._network.lag)
                    self._pass("watch", resource)
                    deliver(event)
        finally:
            unsubscribe()
            self._network.close(queue)
        raise errors.UnavailableError("watch", str(resource), detail="the connection was cut")

    def close(self) -> None:
        """Have nothing to close."""

    def _pass(self, verb, resource, shown="") -> None:
        self._boundary()
        if self._network.away:
            raise errors.UnavailableError(verb, str(resource), shown, detail="the server is away")

    async def _travel(self) -> None:
        await asyncio.sleep(self._network.random.uniform(*_LATENCY))

    async def _send(self, verb, resource, name, namespace, body=None, content_type="", subresource="", query=None):
        shown = f"{namespace}/{name}" if namespace and name else name
        self._pass(verb, resource, shown)
        await self._travel()
        self._pass(verb, resource, shown)
        route = Route(verb, resources.by_plural(str(resource)), namespace, name, subresource, query or {})
        encoded = b"" if body is None else msgspec.json.encode(body)
        try:
            _, answer = self._server.handlers.handle(route, encoded, content_type)
        except ApiFailureError as failure:
            said = msgspec.json.encode(failure.status())
            raise errors.error_from_status(verb, str(resource), shown, failure.code, said) from None
        await self._travel()
        self._boundary()
        if self._network.answers_lost and verb not in ("get", "list"):
            self._network.answers_lost -= 1
            raise errors.UnavailableError(verb, str(resource), shown, detail="the answer is lost")
        return answer


def _event(resource, served, selection, matches, change):
    if change.resource != served.key:
        return None

    def selects(obj) -> bool:
        return obj is not None and selection.namespace in ("", obj["metadata"].get("namespace")) and matches(obj)

    before, after = selects(change.before), selects(change.after)
    if not before and not after:
        return None
    kind = ("MODIFIED" if before else "ADDED") if after else "DELETED"
    return WatchEvent(kind, str(change.version), _decoded(resource, change.after if after else change.before))


def _decoded(resource, raw):
    return msgspec.json.decode(msgspec.json.encode(raw), type=resource.type)
