"""A small client of the Kubernetes API: enough to start the lab and to drive tests, without a package.

HTTPS with a bearer token. It is no part of the driver, so that a test does not judge the driver by the driver's own
client.
"""

import http.client
import json
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_TIMEOUT_SECONDS = 30.0


class ApiError(Exception):
    """The server's refusal: HTTP `status`, the API's `reason` and its `message`."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


def path_of(group_version: str, resource: str, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
    """Return the URL path of a collection or object, as `/apis/resource.k8s.io/v1/resourceslices/x`."""
    parts = ["api" if "/" not in group_version else "apis", group_version]
    parts += ["namespaces", namespace] if namespace else []
    parts += [part for part in (resource, name, subresource) if part]
    return "/" + "/".join(parts)


@dataclass(frozen=True)
class Event:
    """One watch event, with the monotonic time at which it was read."""

    kind: str
    object: Json
    at: float


class Watch:
    """The events of one watch request, in order; ends with its time, with the server, or by `close` from any thread."""

    def __init__(self, sock: socket.socket, response: http.client.HTTPResponse, deadline: float) -> None:
        self._socket = sock
        self._response = response
        self._deadline = deadline

    def __iter__(self) -> Iterator[Event]:
        with closing(self._socket), closing(self._response):
            while (left := self._deadline - time.monotonic()) > 0:
                try:
                    self._socket.settimeout(left)
                    line = self._response.readline()
                except (OSError, http.client.HTTPException, ValueError):
                    return
                if not line:
                    return
                event = json.loads(line)
                yield Event(event["type"], event["object"], time.monotonic())

    def close(self) -> None:
        """End the watch; a thread that reads it gets no further event."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Api:
    """A server, the CA that it is checked against, and the token that says who asks."""

    host: str
    port: int
    ca: Path
    token: str

    def get(self, path: str, **query: str) -> Json:
        """GET an object or a list."""
        return self._call("GET", path, query=query)

    def text(self, path: str, **query: str) -> str:
        """GET what is not JSON, such as a container's log."""
        return self._exchange("GET", path, query=query).decode(errors="replace")

    def items(self, path: str, **query: str) -> list[Json]:
        """GET the items of a list."""
        found: list[Json] = self.get(path, **query).get("items") or []
        return found

    def create(self, path: str, body: Json) -> Json:
        """POST `body` to a collection or subresource."""
        return self._call("POST", path, body)

    def replace(self, path: str, body: Json) -> Json:
        """PUT `body`."""
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> Json:
        """PATCH with `kind` merge, strategic, json or apply."""
        return self._call("PATCH", path, body, content_type=_PATCHES[kind], query=query)

    def delete(self, path: str, *, grace_seconds: int | None = None, missing_ok: bool = True) -> None:
        """DELETE an object; one that is gone already is fine unless `missing_ok` is false."""
        body = None if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self._call("DELETE", path, body)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND or not missing_ok:
                raise

    def exists(self, path: str) -> bool:
        """Return whether a GET succeeds; False only for 404."""
        try:
            self.get(path)
        except ApiError as error:
            if error.status == http.client.NOT_FOUND:
                return False
            raise
        return True

    def ready(self) -> bool:
        """Return whether the server is there and says that it is ready."""
        try:
            with closing(self._connect(2.0)) as connection:
                connection.request("GET", "/readyz", headers=self._headers())
                return connection.getresponse().status == http.client.OK
        except OSError:
            return False

    def watch(self, path: str, seconds: float, **query: str) -> "Watch":
        """Watch a collection for `seconds`; without `resourceVersion` it begins with what exists, as ADDED."""
        connection = self._connect(seconds)
        target = path + "?" + urllib.parse.urlencode({**query, "watch": "1", "timeoutSeconds": str(int(seconds) + 1)})
        connection.request("GET", target, headers=self._headers())
        # Kept apart: the connection forgets its socket once the response says that the server will close it.
        sock = connection.sock
        response = connection.getresponse()
        if response.status != http.client.OK:
            _raise(response.status, response.read())
        return Watch(sock, response, time.monotonic() + seconds)

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        answer: Json = json.loads(self._exchange(method, path, body, content_type=content_type, query=query))
        return answer

    def _exchange(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        target = path + ("?" + urllib.parse.urlencode(query) if query else "")
        with closing(self._connect(_TIMEOUT_SECONDS)) as connection:
            content = None if body is None else json.dumps(body)
            connection.request(method, target, body=content, headers=self._headers() | {"Content-Type": content_type})
            response = connection.getresponse()
            raw = response.read()
        if response.status >= http.client.BAD_REQUEST:
            _raise(response.status, raw)
        return raw

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.ca))
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}


def _raise(status: int, raw: bytes) -> None:
    try:
        answer = json.loads(raw)
        raise ApiError(status, answer.get("reason") or "", answer.get("message") or "")
    except ValueError:
        raise ApiError(status, "", raw.decode(errors="replace")[:500]) from None


def wait_until(what: str, check: Callable[[], bool], seconds: float, *, every: float = 0.1) -> None:
    """Poll `check` until it holds.

    Raises:
        TimeoutError: it does not hold within `seconds`; the text names `what`.
    """
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)
