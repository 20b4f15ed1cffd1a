"""The Kubernetes API over HTTP: the adapter behind the `KubernetesApi` Protocol.

Promises: every request has a deadline and ends in the struct asked for or in one typed error (`errors.py`); a token
or CA that was rotated is read again and the request repeated once; a watch never hangs (idle limit) and never loses
its connection. Nothing is retried here beyond that: whoever calls knows whether it still wants the answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.connection import Connection, ConnectionConfigError, Credentials
from dra_gpu.apiserver.http1 import Answer, Call, HttpConnection, HttpPool, TransportError
from dra_gpu.apiserver.kubernetes_api import Listing, Selection, WatchEvent, WatchOptions
from dra_gpu.apiserver.resources import PODS, KubernetesObject, Resource
from dra_gpu.apiserver.watch_lines import LineSplitter, LineTooLongInWatchError

T = TypeVar("T", bound=KubernetesObject)

FIELD_MANAGER = "dra-driver-gpu"
DEFAULT_DEADLINE = 15.0  # a healthy API server answers within 1 s (its own SLO); a restart of one takes about 10 s
MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
APPLY_PATCH = "application/apply-patch+yaml"
_UNAUTHORIZED = 401
_FIRST_FAILURE = 400
_LONGEST_REFUSAL = 65_536  # bytes of a refusal that are read
_LONGEST_RETRY_AFTER = 300.0  # seconds; a server that asks for more is asked again all the same


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    name: str = ""


class _OnlyMetadata(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _RawList(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """A request under construction, and the words for its errors."""

    verb: str
    resource: Resource[Any]
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    tail: str = ""

    @property
    def path(self) -> str:
        named = "" if self.verb == "create" else self.name
        path = self.resource.path(self.namespace, named, self.subresource) + self.tail
        return f"{path}?{urlencode(self.query)}" if self.query else path

    @property
    def shown(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace and self.name else self.name


class HttpKubernetesApi:
    """`kubernetes_api.KubernetesApi` over HTTP/1.1.

    Args:
        connection: the server and who we are there, or credentials that are shared with somebody else.
        max_requests: requests under way at once; further ones wait for their turn, watches do not count.
    """

    def __init__(self, connection: Connection | Credentials, *, max_requests: int = 8) -> None:
        self._credentials = connection if isinstance(connection, Credentials) else Credentials(connection)
        self._pool = HttpPool(self._credentials, max_requests)

    async def get(
        self, resource: Resource[T], name: str, namespace: str = "", *, deadline: float = DEFAULT_DEADLINE
    ) -> T:
        """Read one object."""
        target = _Target("get", resource, name, namespace)
        return self._decode(target, resource, (await self._request(target, deadline)).body)

    async def list(
        self, resource: Resource[T], selection: Selection | None = None, *, deadline: float = DEFAULT_DEADLINE
    ) -> Listing[T]:
        """Read a collection at its newest version."""
        chosen = selection or Selection()
        target = _Target("list", resource, namespace=chosen.namespace, query=chosen.query())
        answer = await self._request(target, deadline)
        try:
            raw = msgspec.json.decode(answer.body, type=_RawList)
        except errors.UNREADABLE as error:
            raise self._unreadable(target, error) from error
        items: list[T] = []
        undecodable: list[str] = []
        for item in raw.items or []:
            try:
                items.append(msgspec.json.decode(item, type=resource.type))
            except errors.UNREADABLE as error:
                undecodable.append(f"{_name_of(item)}: {error}")
        return Listing(tuple(items), raw.metadata.resource_version, tuple(undecodable))

    async def ask_pod(
        self, name: str, namespace: str, port: int, path: str, *, deadline: float = DEFAULT_DEADLINE
    ) -> bytes:
        """Return what a pod's port says to a GET, through the API server: needs `get` on `pods/proxy`."""
        target = _Target("get", PODS, f"{name}:{port}", namespace, "proxy", tail=path)
        return (await self._request(target, deadline)).body

    async def create(
        self, resource: Resource[T], body: object, namespace: str = "", *, deadline: float = DEFAULT_DEADLINE
    ) -> T:
        """Create an object with strict field validation; returns what was stored."""
        encoded = msgspec.json.encode(body)
        target = _Target("create", resource, _name_of(encoded), namespace, query=_write_query())
        return self._decode(target, resource, (await self._request(target, deadline, encoded)).body)

    async def update(
        self, resource: Resource[T], body: object, name: str, namespace: str = "", *, deadline: float = DEFAULT_DEADLINE
    ) -> T:
        """Replace an object with strict field validation; returns what was stored."""
        target = _Target("update", resource, name, namespace, query=_write_query())
        return self._decode(target, resource, (await self._request(target, deadline, msgspec.json.encode(body))).body)

    async def patch(
        self,
        resource: Resource[T],
        body: object,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        deadline: float = DEFAULT_DEADLINE,
    ) -> T:
        """Send a JSON merge patch."""
        target = _Target("patch", resource, name, namespace, subresource, _write_query())
        return self._decode(
            target, resource, (await self._request(target, deadline, msgspec.json.encode(body), MERGE_PATCH)).body
        )

    async def apply(
        self,
        resource: Resource[T],
        body: object,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        deadline: float = DEFAULT_DEADLINE,
    ) -> T:
        """Send a server-side apply as field manager `dra-driver-gpu`, taking over fields in conflict."""
        target = _Target("patch", resource, name, namespace, subresource, {**_write_query(), "force": "true"})
        return self._decode(
            target, resource, (await self._request(target, deadline, msgspec.json.encode(body), APPLY_PATCH)).body
        )

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        deadline: float = DEFAULT_DEADLINE,
    ) -> None:
        """Delete an object, if uid and version (where given) are still those."""
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        options: dict[str, object] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if conditions:
            options["preconditions"] = conditions
        await self._request(_Target("delete", resource, name, namespace), deadline, msgspec.json.encode(options))

    async def watch(
        self,
        resource: Resource[T],
        selection: Selection,
        options: WatchOptions,
        deliver: Callable[[WatchEvent[T]], None],
    ) -> None:
        """Call `deliver` with every event; returns when the server ends the watch in good order.

        Raises:
            errors.GoneError: the version is compacted (as a status or as an ERROR event).
            errors.WatchIdleError: nothing came for `options.idle_limit` seconds.
            errors.LineTooLongError: an event is longer than `options.line_limit`.
        """
        query = {
            **selection.query(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": options.resource_version,
            "timeoutSeconds": str(options.timeout_seconds),
        }
        target = _Target("watch", resource, namespace=selection.namespace, query=query)
        async with self._open_stream(target) as connection:
            splitter = LineSplitter(options.line_limit)
            while piece := await self._read_watch(target, connection, options.idle_limit):
                try:
                    for line in splitter.feed(piece):
                        deliver(self._event(target, resource, line))
                except LineTooLongInWatchError as error:
                    raise errors.LineTooLongError("watch", str(resource), detail=str(error)) from error

    def close(self) -> None:
        """Drop idle connections. Requests under way end with their callers."""
        self._pool.close()

    @contextlib.asynccontextmanager
    async def _open_stream(self, target: _Target) -> AsyncIterator[HttpConnection]:
        """Open the connection of a watch up to its headers; closes it at the end.

        No timeout is held across the yield (PEP 789).
        """
        for last in (False, True):
            connection = await self._start_stream(target, last=last)
            if connection is not None:
                try:
                    yield connection
                finally:
                    connection.close()
                return

    async def _start_stream(self, target: _Target, *, last: bool) -> HttpConnection | None:
        """Return the connection once the watch is accepted; None if newer credentials are worth a second try."""
        connection: HttpConnection | None = None
        call = self._call(target, b"", "")
        try:
            async with asyncio.timeout(DEFAULT_DEADLINE):
                connection = await self._pool.connect()
                status, headers = await connection.send(call)
                if status < _FIRST_FAILURE:
                    accepted, connection = connection, None
                    return accepted
                body = bytearray()
                while len(body) < _LONGEST_REFUSAL and (piece := await connection.read()):
                    body += piece
        except TransportError as error:
            if error.untrusted and not last:
                self._credentials.reload()
                return None
            raise errors.UnavailableError(target.verb, str(target.resource), detail=str(error)) from error
        except TimeoutError as error:
            raise errors.DeadlineError(target.verb, str(target.resource), detail=_late(DEFAULT_DEADLINE)) from error
        except ConnectionConfigError as error:
            raise errors.UnavailableError(target.verb, str(target.resource), detail=str(error)) from error
        finally:
            if connection is not None:
                connection.close()
        if status == _UNAUTHORIZED and not last and self._has_newer_token(call):
            return None
        raise self._error(target, Answer(status, headers, bytes(body)))

    async def _read_watch(self, target: _Target, connection: HttpConnection, idle_limit: float) -> bytes:
        try:
            async with asyncio.timeout(idle_limit):
                return await connection.read()
        except TimeoutError as error:
            detail = f"no event and no bookmark for {idle_limit:g} s"
            raise errors.WatchIdleError(target.verb, str(target.resource), detail=detail) from error
        except TransportError as error:
            raise errors.UnavailableError(target.verb, str(target.resource), detail=str(error)) from error

    def _event(self, target: _Target, resource: Resource[T], line: bytes) -> WatchEvent[T]:
        try:
            raw = msgspec.json.decode(line, type=_RawEvent)
            meta = msgspec.json.decode(raw.object, type=_OnlyMetadata).metadata
        except errors.UNREADABLE as error:
            raise self._unreadable(target, error) from error
        if raw.type == "ERROR":
            raise errors.error_from_status(target.verb, str(resource), "", 0, bytes(raw.object))
        if raw.type == "BOOKMARK":
            return WatchEvent(raw.type, meta.resource_version)
        try:
            return WatchEvent(raw.type, meta.resource_version, msgspec.json.decode(raw.object, type=resource.type))
        except errors.UNREADABLE as error:
            return WatchEvent(raw.type, meta.resource_version, problem=f"{meta.name}: {error}")

    async def _request(
        self, target: _Target, deadline: float, body: bytes = b"", content_type: str = "application/json"
    ) -> Answer:
        """Send a request; repeat it once if the server refused credentials that have changed on disk meanwhile."""
        try:
            async with asyncio.timeout(deadline):
                call = self._call(target, body, content_type)
                answer = await self._attempt(call)
                if answer.status == _UNAUTHORIZED and self._has_newer_token(call):
                    answer = await self._attempt(self._call(target, body, content_type))
        except (TransportError, ConnectionConfigError) as error:
            raise errors.UnavailableError(target.verb, str(target.resource), target.shown, detail=str(error)) from error
        except TimeoutError as error:
            raise errors.DeadlineError(
                target.verb, str(target.resource), target.shown, detail=_late(deadline)
            ) from error
        if answer.status >= _FIRST_FAILURE:
            raise self._error(target, answer)
        return answer

    async def _attempt(self, call: Call) -> Answer:
        try:
            return await self._pool.request(call)
        except TransportError as error:
            if not error.untrusted:
                raise
            self._credentials.reload()
            return await self._pool.request(call)

    def _has_newer_token(self, refused: Call) -> bool:
        """Look at the token file; tell whether it holds another token than the refused request carried."""
        self._credentials.reload()
        return dict(refused.headers).get("Authorization") != self._credentials.authorization()

    def _call(self, target: _Target, body: bytes, content_type: str) -> Call:
        methods = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
        headers: list[tuple[str, str]] = []
        if authorization := self._credentials.authorization():
            headers.append(("Authorization", authorization))
        if body:
            headers.append(("Content-Type", content_type))
        if target.verb == "list" and target.resource.metadata_only:
            headers.append(("Accept", METADATA_ONLY))
        path = self._credentials.connection.base_path + target.path
        return Call(methods.get(target.verb, "GET"), path, tuple(headers), body)

    def _decode(self, target: _Target, resource: Resource[T], body: bytes) -> T:
        try:
            return msgspec.json.decode(body, type=resource.type)
        except errors.UNREADABLE as error:
            raise self._unreadable(target, error) from error

    @staticmethod
    def _error(target: _Target, answer: Answer) -> errors.ApiError:
        return errors.error_from_status(
            target.verb,
            str(target.resource),
            target.shown,
            answer.status,
            answer.body,
            _seconds(answer.headers.get("retry-after", "")),
        )

    @staticmethod
    def _unreadable(target: _Target, error: Exception) -> errors.ApiError:
        return errors.UnreadableAnswerError(
            target.verb, str(target.resource), target.shown, detail=f"unreadable answer: {error}"
        )


def _write_query() -> dict[str, str]:
    return {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER}


def _late(deadline: float) -> str:
    return f"no answer within {deadline:g} s"


def _seconds(text: str) -> float | None:
    """Read Retry-After; Kubernetes sends whole seconds, a proxy may send a date, which is ignored."""
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isdecimal() else None


def _name_of(encoded: bytes | msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(encoded, type=_OnlyMetadata).metadata.name
    except errors.UNREADABLE:
        return ""
