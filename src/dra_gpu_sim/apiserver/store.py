"""Objects, their versions, and who watches them.

Promises what clients of Kubernetes build on: one counter of resource versions for everything, a write on a stale
version is refused, a watch that starts at a version sees every change after it exactly once and in order, and a
watch from before a compaction is told so. Holds plain dictionaries; everything that goes in or out is a copy.
"""

import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from dra_gpu_sim.apiserver.failures import ApiFailureError
from dra_gpu_sim.apiserver.resources import ServedResource

Obj = dict[str, Any]
Key = tuple[str, str, str]
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_BASE_MAX = 58  # Source: K8s v1.37 apiserver/pkg/storage/names/generate.go (63 - 5 random characters)


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the history. ``before`` and ``after`` are None for a creation and a deletion."""

    version: int
    resource: str
    before: Obj | None
    after: Obj | None


Listener = Callable[[Change], None]
_T = TypeVar("_T")


def copied(value: _T) -> _T:
    """Copy what JSON is made of; several times as fast as `copy.deepcopy`, which looks for more."""
    found: Any = value
    if isinstance(value, dict):
        found = {key: copied(one) for key, one in value.items()}
    elif isinstance(value, list):
        found = [copied(one) for one in value]
    return cast("_T", found)


class ObjectStore:
    """All objects of one server."""

    def __init__(self, *, seed: int | None = None) -> None:
        self._objects: dict[Key, Obj] = {}
        self._history: list[Change] = []
        self._listeners: dict[Listener, None] = {}  # in the order in which they came
        self._versions = itertools.count(1)
        self._random = random.Random(seed)  # noqa: S311 - suffixes of names, not secrets
        self.version = 0
        self.compacted = 0

    def get(self, served: ServedResource, namespace: str, name: str) -> Obj:
        """A copy of one object; 404 if there is none."""
        return copied(self._find(served, namespace, name))

    def find(self, served: ServedResource, namespace: str, name: str) -> Obj | None:
        """A copy of one object; None if there is none."""
        found = self._objects.get((served.key, namespace if served.namespaced else "", name))
        return copied(found)

    def list(
        self, served: ServedResource, namespace: str = "", matches: Callable[[Obj], bool] | None = None
    ) -> list[Obj]:
        """Copies of all objects of a kind (of one namespace, if given), sorted by namespace and name."""
        return [copied(obj) for obj in self._select(served, namespace) if matches is None or matches(obj)]

    def peek(self, served: ServedResource) -> Sequence[Mapping[str, Any]]:
        """The objects of a kind themselves, to be looked at and left as they are: a copy of all takes its time."""
        return tuple(self._select(served, ""))

    def create(self, served: ServedResource, namespace: str, obj: Mapping[str, Any]) -> Obj:
        """Store a new object: fills name, uid, versions and creation time. 409 AlreadyExists if the name is taken."""
        new = copied(dict(obj))
        meta = new.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise ApiFailureError(400, "resourceVersion should not be set on objects to be created")
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise ApiFailureError(
                    422, f"{served.kind} is invalid: metadata.name: Required value: name or generateName is required"
                )
            meta["name"] = meta["generateName"][:_GENERATED_BASE_MAX] + "".join(
                self._random.choices(_SUFFIX_ALPHABET, k=5)
            )
        if served.namespaced:
            meta["namespace"] = namespace
        key = (served.key, namespace if served.namespaced else "", meta["name"])
        if key in self._objects:
            raise ApiFailureError(409, f'{served.key} "{meta["name"]}" already exists', reason="AlreadyExists")
        new["apiVersion"], new["kind"] = served.api_version, served.kind
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = timestamp()
        meta.pop("deletionTimestamp", None)
        meta["generation"] = 1
        return self._commit(key, None, new)

    def replace(
        self, served: ServedResource, namespace: str, name: str, obj: Mapping[str, Any], *, status_only: bool = False
    ) -> Obj:
        """Write a whole object. 409 Conflict if its resourceVersion or uid is not the stored one.

        Unchanged content writes nothing.
        ``status_only`` is the status subresource: everything but ``status`` stays. Otherwise, for a kind with that
        subresource, ``status`` stays.
        """
        old = self._find(served, namespace, name)
        new = copied(dict(obj))
        meta = new.setdefault("metadata", {})
        self._check_versions(served, name, old, meta.get("uid"), meta.get("resourceVersion"))
        if status_only:
            new = {**copied(old), "status": new.get("status", {})}
            if not new["status"]:
                new.pop("status")
        else:
            if served.has_status:
                new.pop("status", None)
                if "status" in old:
                    new["status"] = copied(old["status"])
            for kept in (
                "uid",
                "creationTimestamp",
                "generation",
                "resourceVersion",
                "name",
                "namespace",
                "deletionTimestamp",
            ):
                meta.pop(kept, None)
                if kept in old["metadata"]:
                    meta[kept] = old["metadata"][kept]
            new["apiVersion"], new["kind"] = served.api_version, served.kind
        if new == old:
            return copied(old)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        key = (served.key, namespace if served.namespaced else "", name)
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            return self._commit(key, old, None, last=new)
        return self._commit(key, old, new)

    def delete(
        self,
        served: ServedResource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        graceful: bool = False,
    ) -> Obj:
        """Remove an object, or mark it for deletion if it has finalizers (or ``graceful``)."""
        old = self._find(served, namespace, name)
        self._check_versions(served, name, old, uid, version)
        key = (served.key, namespace if served.namespaced else "", name)
        if old["metadata"].get("finalizers") or graceful:
            if old["metadata"].get("deletionTimestamp"):
                return copied(old)
            marked = copied(old)
            marked["metadata"]["deletionTimestamp"] = timestamp()
            if not graceful:  # Source: K8s v1.37 apiserver/pkg/registry/generic/registry/store.go, markAsDeleting
                marked["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
            return self._commit(key, old, marked)
        return self._commit(key, old, None)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every change from now on; the result ends that."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    def since(self, version: int) -> Iterator[Change]:
        """The history after a version; 410 if a compaction has swallowed part of it, 504 if it is yet to come."""
        if version < self.compacted:
            raise ApiFailureError(410, f"too old resource version: {version} ({self.compacted})", reason="Expired")
        if version > self.version:
            raise ApiFailureError(504, f"Too large resource version: {version}, current: {self.version}")
        return iter([change for change in self._history if change.version > version])

    def compact(self) -> None:
        """Forget the whole history: a watch from an older version than now gets 410."""
        self.compacted = self.version = next(self._versions)
        self._history.clear()

    def _find(self, served: ServedResource, namespace: str, name: str) -> Obj:
        found = self._objects.get((served.key, namespace if served.namespaced else "", name))
        if found is None:
            raise ApiFailureError(404, f'{served.key} "{name}" not found')
        return found

    def _select(self, served: ServedResource, namespace: str) -> Iterator[Obj]:
        for (resource, where, _name), obj in sorted(self._objects.items()):
            if resource == served.key and namespace in ("", where):
                yield obj

    @staticmethod
    def _check_versions(served: ServedResource, name: str, old: Obj, uid: str | None, version: str | None) -> None:
        meta = old["metadata"]
        if uid and uid != meta["uid"]:
            raise ApiFailureError(
                409,
                f'Operation cannot be fulfilled on {served.key} "{name}": Precondition failed: '
                f"UID in precondition: {uid}, UID in object meta: {meta['uid']}",
            )
        if version and version != meta["resourceVersion"]:
            raise ApiFailureError(
                409,
                f'Operation cannot be fulfilled on {served.key} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
            )

    def _commit(self, key: Key, before: Obj | None, after: Obj | None, *, last: Obj | None = None) -> Obj:
        self.version = next(self._versions)
        if after is None:
            assert before is not None
            shown = copied(last or before)
            shown["metadata"]["resourceVersion"] = str(self.version)
            del self._objects[key]
            change = Change(self.version, key[0], shown, None)
        else:
            shown = after
            shown["metadata"]["resourceVersion"] = str(self.version)
            self._objects[key] = shown
            change = Change(self.version, key[0], before, shown)
        self._history.append(change)
        for listener in tuple(self._listeners):
            listener(change)
        return copied(shown)


def timestamp() -> str:
    """Now, in the format of Kubernetes' metav1.Time."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
