"""Which object and which verb a URL means."""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_gpu_sim.apiserver.failures import ApiFailureError
from dra_gpu_sim.apiserver.http1 import Request
from dra_gpu_sim.apiserver.resources import ServedResource, find_served

_NAMED = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_GROUP_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Route:
    """A request, understood."""

    verb: str
    served: ServedResource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]


def route(request: Request) -> Route:
    """Understand a request; 404 for what is not served, 405 for a method that a URL does not have."""
    parts = [part for part in request.path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > _GROUP_DEPTH:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > _GROUP_DEPTH + 1:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise ApiFailureError(404, "the server could not find the requested resource")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > _GROUP_DEPTH and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    served = find_served(group, version, rest[0])
    if served is None:
        raise ApiFailureError(404, "the server could not find the requested resource")
    name, subresource = [*rest, "", ""][1:3]
    if subresource and not (subresource == "status" and served.has_status):
        raise ApiFailureError(404, f"{served.key} has no subresource {subresource!r}")
    verb = (_NAMED if name else _COLLECTION).get(request.method)
    if verb is None:
        raise ApiFailureError(405, f"the server does not allow this method on {served.key}: {request.method}")
    if verb == "list" and request.query.get("watch", "") in ("1", "true"):
        verb = "watch"
    if verb == "create" and served.namespaced and not namespace:
        raise ApiFailureError(400, f"an empty namespace may not be set during creation of {served.key}")
    return Route(verb, served, namespace, name, subresource, request.query)
