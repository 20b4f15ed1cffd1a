"""Stands in for kube-controller-manager, as far as claims go: claims by templates, their users, and what has no owner.

The controller of claims takes pods that are gone out of `status.reservedFor` and keeps entries of kinds that it does
not know. It takes an allocation away where it removes the last entry itself, and where the claim is being deleted and
nobody is entered; an allocated claim whose last entry somebody else removed stays allocated.
Source: K8s v1.37 pkg/controller/resourceclaim/controller.go `syncClaim`.
"""

from collections.abc import Mapping
from typing import Any

from dra_gpu_sim.local.cluster_objects import PROTECTION, ClusterObjects

_DONE = ("Succeeded", "Failed")
_OWNERS = ("pods", "claimresizes", "resourceclaims", "nodes")
_OWNED = ("resourceclaims", "pods")
_GONE_WITH_ALLOCATION = ("reservedFor", "allocation", "devices")


class ClaimController:
    """The controller of claims, and the garbage collector.

    Args:
        objects: of the API server.
    """

    def __init__(self, objects: ClusterObjects) -> None:
        self._objects = objects

    def tidy(self) -> bool:
        """Do once what is to be done; tell whether anything changed."""
        before = self._objects.api.store.version
        for pod in self._objects.all("pods"):
            self._generate(pod)
        for claim in self._objects.all("resourceclaims"):
            self._sync(claim)
        self._collect_garbage()
        return self._objects.api.store.version != before

    def _sync(self, claim: Mapping[str, Any]) -> None:
        status = claim.get("status", {})
        entries = status.get("reservedFor", [])
        left = [one for one in entries if not _is_pod(one) or self._needs(claim, one)]
        ending = bool(claim["metadata"].get("deletionTimestamp"))
        protected = PROTECTION in claim["metadata"].get("finalizers", ())
        if not left and protected and (entries or ending):
            kept = {key: value for key, value in status.items() if key not in _GONE_WITH_ALLOCATION}
            freed = self._objects.write_status("resourceclaims", claim, kept)
            freed["metadata"]["finalizers"].remove(PROTECTION)
            self._objects.write("resourceclaims", freed)
        elif len(left) < len(entries):
            self._objects.write_status("resourceclaims", claim, {**status, "reservedFor": left})

    def _needs(self, claim: Mapping[str, Any], entry: dict[str, Any]) -> bool:
        pod = self._objects.find("pods", claim["metadata"]["namespace"], entry["name"])
        if pod is None or pod["metadata"]["uid"] != entry["uid"]:
            return False
        never_ran = bool(pod["metadata"].get("deletionTimestamp")) and not pod["spec"].get("nodeName")
        return pod.get("status", {}).get("phase") not in _DONE and not never_ran

    def _generate(self, pod: Mapping[str, Any]) -> None:
        """Make the claims that a pod wants by templates."""
        meta = pod["metadata"]
        made = list(pod.get("status", {}).get("resourceClaimStatuses", ()))
        known = {one["name"] for one in made}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
        for one in pod["spec"].get("resourceClaims", ()):
            name = one.get("resourceClaimTemplateName")
            template = self._objects.find("resourceclaimtemplates", meta["namespace"], name) if name else None
            if template is None or one["name"] in known:
                continue
            named = {"generateName": f"{meta['name']}-{one['name']}-", "ownerReferences": [owner]}
            body = {"metadata": named, "spec": template["spec"]["spec"]}
            claim = self._objects.api.put("resourceclaims", body, meta["namespace"])
            made.append({"name": one["name"], "resourceClaimName": claim["metadata"]["name"]})
        if len(made) > len(known):
            self._objects.write_status("pods", pod, {**pod.get("status", {}), "resourceClaimStatuses": made})

    def _collect_garbage(self) -> None:
        living = {one["metadata"]["uid"] for kind in _OWNERS for one in self._objects.all(kind)}
        for kind in _OWNED:
            for one in self._objects.all(kind):
                owners = one["metadata"].get("ownerReferences", [])
                if owners and not any(owner["uid"] in living for owner in owners):
                    self._objects.delete(kind, one)


def _is_pod(entry: dict[str, Any]) -> bool:
    return not entry.get("apiGroup") and entry["resource"] == "pods"
