"""The server's back door, for tests in another process.

``POST /_faults``, ``GET /_log?since=N``, ``POST /_objects/<plural>?namespace=NS``.
``/_faults`` takes ``{"action": NAME, ...arguments}``; the names are those of :data:`ACTIONS`. Not protected by the
token: the server listens on the loopback interface of a test machine only.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dra_gpu_sim.apiserver.failures import ApiFailureError
from dra_gpu_sim.apiserver.http1 import Request
from dra_gpu_sim.apiserver.request_log import as_json

if TYPE_CHECKING:  # the server imports this module
    from dra_gpu_sim.apiserver.server import ApiServer


def _set_tokens(server: "ApiServer", tokens: list[str]) -> None:
    server.tokens = set(tokens)


def _set_gates_off(server: "ApiServer", gates: list[str]) -> None:
    server.handlers.gates_off = set(gates)


ACTIONS: dict[str, Callable[..., Any]] = {
    "fail": lambda server, **arguments: server.faults.fail(**arguments),
    "delay": lambda server, **arguments: server.faults.delay(**arguments),
    "stall_watches": lambda server: server.faults.stall_watches(),
    "resume_watches": lambda server: server.faults.resume_watches(),
    "close_watches": lambda server, **arguments: server.close_watches(**arguments),
    "cut_connections": lambda server: server.cut_connections(),
    "refuse": lambda server, seconds: server.refuse(seconds),
    "compact": lambda server, **arguments: server.compact(**arguments),
    "send_bookmarks": lambda server: server.send_bookmarks(),
    "send_giant_event": lambda server, size: server.send_giant_event(size),
    "set_tokens": _set_tokens,
    "set_gates_off": _set_gates_off,
    "clear": lambda server: server.faults.clear(),
}


async def handle(server: "ApiServer", request: Request) -> tuple[int, Any]:
    """Answer a request whose path starts with ``/_``."""
    try:
        if (request.method, request.path) == ("POST", "/_faults"):
            arguments = msgspec.json.decode(request.body, type=dict[str, Any])
            action = ACTIONS[arguments.pop("action", "")]
            action(server, **arguments)
            return 200, {"done": True}
        if (request.method, request.path) == ("GET", "/_log"):
            records = server.log.since(int(request.query.get("since", "0")))
            return 200, {"count": server.log.count, "requests": [as_json(record) for record in records]}
        if request.method == "POST" and request.path.startswith("/_objects/"):
            obj = msgspec.json.decode(request.body, type=dict[str, Any])
            return 201, server.put(request.path.removeprefix("/_objects/"), obj, request.query.get("namespace", ""))
    except ApiFailureError as failure:
        return failure.code, failure.status()
    except (KeyError, TypeError, ValueError) as error:
        return 400, {"error": f"{error!r}; actions: {', '.join(ACTIONS)}"}
    return 404, {"error": f"{request.method} {request.path}: use POST /_faults, GET /_log or POST /_objects/<plural>"}
