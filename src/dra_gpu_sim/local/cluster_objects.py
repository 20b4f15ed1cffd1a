"""Pods and claims in the API server in memory, as the local mode's scheduler and controllers read and write them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.apiserver.server import ApiServer
from dra_gpu_sim.apiserver.store import Obj

PROTECTION = "resource.kubernetes.io/delete-protection"
"""The finalizer of an allocated claim."""


class ClusterObjects:
    """The objects of a server, without a request to it: nothing of this is in its log."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api

    def all(self, plural: str) -> Sequence[Mapping[str, Any]]:
        """Return every object of a kind, to be looked at and not to be changed."""
        return self.api.store.peek(resources.by_plural(plural))

    def find(self, plural: str, namespace: str, name: str) -> Obj | None:
        """Return the present state of an object; None if there is none."""
        return self.api.store.find(resources.by_plural(plural), namespace, name)

    def again(self, plural: str, one: Mapping[str, Any]) -> Obj | None:
        """Return what has become of an object; None if it is gone, or another one has its name."""
        meta = one["metadata"]
        found = self.find(plural, meta["namespace"], meta["name"])
        return found if found is not None and found["metadata"]["uid"] == meta["uid"] else None

    def write(self, plural: str, one: Obj) -> Obj:
        """Write everything but the status."""
        meta = one["metadata"]
        return self.api.store.replace(resources.by_plural(plural), meta["namespace"], meta["name"], one)

    def write_status(self, plural: str, one: Mapping[str, Any], status: dict[str, Any]) -> Obj:
        """Write the status alone."""
        meta = one["metadata"]
        served = resources.by_plural(plural)
        return self.api.store.replace(
            served, meta["namespace"], meta["name"], {**one, "status": status}, status_only=True
        )

    def delete(self, plural: str, one: Mapping[str, Any]) -> None:
        """Delete an object at once, or mark it if it has finalizers."""
        meta = one["metadata"]
        self.api.store.delete(resources.by_plural(plural), meta["namespace"], meta["name"])

    def set_condition(self, pod: Mapping[str, Any], **condition: str) -> None:
        """Set one condition of a pod."""
        status = pod.get("status", {})
        others = [one for one in status.get("conditions", ()) if one["type"] != condition["type"]]
        body = {**pod, "metadata": {**pod["metadata"], "resourceVersion": ""}}
        self.write_status("pods", body, {"phase": "Pending", **status, "conditions": [*others, condition]})

    def claims_of(self, pod: Mapping[str, Any]) -> list[Obj] | None:
        """Return the claims of a pod; None while one of them does not exist."""
        found = []
        for name in claim_names(pod):
            claim = self.find("resourceclaims", pod["metadata"]["namespace"], name) if name else None
            if claim is None:
                return None
            found.append(claim)
        return found


def claim_names(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a pod's claims; empty for one that is to be made by a template and was not yet."""
    made = {it["name"]: it["resourceClaimName"] for it in pod.get("status", {}).get("resourceClaimStatuses", ())}
    for one in pod["spec"].get("resourceClaims", ()):
        yield one.get("resourceClaimName") or made.get(one["name"], "")
