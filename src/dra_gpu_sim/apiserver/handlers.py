"""What each verb does to the store, with the rules of the kinds that have some."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from dra_gpu_sim.apiserver import patches, selectors, slice_rules
from dra_gpu_sim.apiserver.failures import ApiFailureError
from dra_gpu_sim.apiserver.routes import Route
from dra_gpu_sim.apiserver.store import Obj, ObjectStore, copied, timestamp

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
_STATUS_LATER = ("resourceclaims", "claimresizes")
"""Kinds whose status is set through the subresource only, as by the real server."""


class Handlers:
    """The verbs other than watch, over one store.

    Args:
        store: the objects.
        gates_off: feature gates (keys of :data:`slice_rules.DROPPABLE`) whose fields are dropped from slices.
    """

    def __init__(self, store: ObjectStore, gates_off: Collection[str] = ()) -> None:
        self._store = store
        self.gates_off = set(gates_off)
        self._verbs: dict[str, Callable[[Route, bytes, str], tuple[int, Any]]] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def handle(self, route: Route, body: bytes, content_type: str) -> tuple[int, Any]:
        """Do it; returns the status code and the body to answer with."""
        return self._verbs[route.verb](route, body, content_type)

    def _get(self, route: Route, _body: bytes, _content_type: str) -> tuple[int, Obj]:
        return 200, self._store.get(route.served, route.namespace, route.name)

    def _list(self, route: Route, _body: bytes, _content_type: str) -> tuple[int, Any]:
        items = self._store.list(route.served, route.namespace, matcher_of(route))
        for item in items:
            del item["apiVersion"], item["kind"]  # as in a list of the real server
        return 200, {
            "kind": f"{route.served.kind}List",
            "apiVersion": route.served.api_version,
            "metadata": {"resourceVersion": str(self._store.version)},
            "items": items,
        }

    def _create(self, route: Route, body: bytes, _content_type: str) -> tuple[int, Obj]:
        return 201, self.create(route, _decode(body))

    def create(self, route: Route, obj: Obj) -> Obj:
        """Admit and store a new object."""
        admitted = self._admit(route, obj, None)
        if route.served.plural in _STATUS_LATER:
            admitted.pop("status", None)
        return self._store.create(route.served, route.namespace, admitted)

    def _update(self, route: Route, body: bytes, _content_type: str) -> tuple[int, Obj]:
        return 200, self._replace(route, _decode(body))

    def _patch(self, route: Route, body: bytes, content_type: str) -> tuple[int, Obj]:
        patch = _decode(body)
        kind = content_type.partition(";")[0].strip()
        if kind not in (MERGE, STRATEGIC, APPLY):
            raise ApiFailureError(
                415, f"the body of the request was in an unknown format - accepted media types: {MERGE}, {APPLY}"
            )
        if kind == APPLY and not route.query.get("fieldManager"):
            raise ApiFailureError(
                422, "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch"
            )
        try:
            old = self._store.get(route.served, route.namespace, route.name)
        except ApiFailureError:
            if kind != APPLY or route.subresource:
                raise
            patch.setdefault("metadata", {})["name"] = route.name
            return 201, self.create(route, patch)
        combine = patches.merge if kind == MERGE else patches.merge_by_keys
        return 200, self._replace(route, combine(old, patch))

    def _replace(self, route: Route, new: Obj) -> Obj:
        old = self._store.get(route.served, route.namespace, route.name)
        name = new.get("metadata", {}).get("name", route.name)
        if name != route.name:
            raise ApiFailureError(
                400, f"the name of the object ({name}) does not match the name on the URL ({route.name})"
            )
        if not route.subresource:
            new = self._admit(route, new, old)
        return self._store.replace(
            route.served, route.namespace, route.name, new, status_only=route.subresource == "status"
        )

    def _delete(self, route: Route, body: bytes, _content_type: str) -> tuple[int, Obj]:
        options = _decode(body) if body else {}
        conditions = options.get("preconditions") or {}
        grace = options.get("gracePeriodSeconds", route.query.get("gracePeriodSeconds"))
        graceful = route.served.plural == "pods" and self._ends_slowly(route, grace)
        return 200, self._store.delete(
            route.served,
            route.namespace,
            route.name,
            uid=conditions.get("uid") or "",
            version=conditions.get("resourceVersion") or "",
            graceful=graceful,
        )

    def _delete_collection(self, route: Route, _body: bytes, _content_type: str) -> tuple[int, Any]:
        doomed = self._store.list(route.served, route.namespace, matcher_of(route))
        for obj in doomed:
            self._store.delete(route.served, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        return 200, {
            "kind": f"{route.served.kind}List",
            "apiVersion": route.served.api_version,
            "metadata": {},
            "items": doomed,
        }

    def _ends_slowly(self, route: Route, grace: object) -> bool:
        """Tell whether the kubelet has to end a pod first. Source: K8s v1.37 pkg/registry/core/pod/strategy.go."""
        pod = self._store.get(route.served, route.namespace, route.name)
        spec = pod.get("spec", {})
        if not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return False
        return str(spec.get("terminationGracePeriodSeconds", 30) if grace is None else grace) != "0"

    def _admit(self, route: Route, obj: Mapping[str, Any], old: Obj | None) -> Obj:
        new = copied(dict(obj))
        if route.served.plural == "resourceslices":
            slice_rules.default_taint_times(new.get("spec") or {}, timestamp())
            for gate in sorted(self.gates_off):
                slice_rules.DROPPABLE[gate](new.get("spec") or {})
            slice_rules.check_slice(new, old)
        immutable = route.served.plural in ("resourceclaims", "resourceclaimtemplates")
        if immutable and old is not None and new.get("spec") != old.get("spec"):
            raise ApiFailureError(
                422, f'{route.served.kind} "{route.name}" is invalid: spec: Invalid value: field is immutable'
            )
        return new


def matcher_of(route: Route) -> Callable[[Mapping[str, Any]], bool]:
    """Both selectors of a request as one test."""
    by_field = selectors.parse_fields(route.served, route.query.get("fieldSelector", ""))
    by_label = selectors.parse_labels(route.query.get("labelSelector", ""))
    return lambda obj: by_field(obj) and by_label(obj)


def _decode(body: bytes) -> Obj:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise ApiFailureError(400, f"the object provided is unrecognized: {error}") from error
    if not isinstance(value, dict):
        raise ApiFailureError(400, "the object provided is unrecognized: not an object")
    return value
