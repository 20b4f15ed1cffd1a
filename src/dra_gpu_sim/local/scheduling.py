"""Stands in for kube-scheduler's loop: which pod is looked at, what was decided and not yet written, what it has seen.

It decides in memory (`decide`) and writes later (`bind`), on slices that it may have read long ago (`hold_slices`), and
counts what it has decided and not written. One decision at a time, so that a test has any order between them.
Source: K8s v1.37 pkg/scheduler/framework/plugins/dynamicresources, claim assume cache and `bindClaim`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.apiserver.store import Change
from dra_gpu_sim.local import allocator
from dra_gpu_sim.local.allocator import UnschedulableError
from dra_gpu_sim.local.cluster_objects import PROTECTION, ClusterObjects

_DECIDES = frozenset(resources.by_plural(it).key for it in ("resourceclaims", "resourceslices", "deviceclasses"))
_CLAIMS = resources.by_plural("resourceclaims").key


@dataclass(frozen=True, slots=True)
class Decision:
    """What the claims of a pod get: decided, and not yet written.

    Attributes:
        pod: the pod, as it was read.
        claims: names of all its claims.
        allocations: by UID of the claim; claims that had one before are not here.
    """

    pod: Mapping[str, Any]
    claims: tuple[str, ...]
    allocations: dict[str, dict[str, Any]]


class PodScheduler:
    """The scheduler of a cluster with one node.

    Args:
        objects: of the API server.
        node_name: where every pod runs.
    """

    def __init__(self, objects: ClusterObjects, node_name: str) -> None:
        self._objects = objects
        self._node_name = node_name
        self._decided: dict[str, Decision] = {}
        self._held_slices: Sequence[Mapping[str, Any]] | None = None
        self._news = 1
        self._looked: dict[str, int] = {}
        self._came: dict[str, int] = {}

    def notice(self, change: Change) -> None:
        """Take in that something has changed: pods that did not fit are looked at again, if it can matter to them."""
        before, after = change.before, change.after
        same = before is not None and after is not None and _holds(before) == _holds(after)
        self._news += change.resource in _DECIDES and not (same and change.resource == _CLAIMS)

    def hold_slices(self) -> None:
        """See the present slices for as long as nobody calls `release_slices`, as one whose watch is late."""
        self._held_slices = self._objects.all("resourceslices")

    def release_slices(self) -> None:
        """See what slices have become."""
        self._held_slices = None
        self._news += 1

    @property
    def unbound(self) -> int:
        """How many decisions are not written yet."""
        return len(self._decided)

    def decide(self) -> bool:
        """Decide about pods of which none was decided since anything changed; tell whether one got its devices."""
        for pod in self._waiting():
            uid = pod["metadata"]["uid"]
            if self._looked.get(uid) == self._news:
                continue
            self._looked[uid] = self._news
            try:
                decision = self._decision(pod)
            except UnschedulableError as error:
                said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": str(error)}
                self._objects.set_condition(pod, **said)
                continue
            if decision is not None:
                self._decided[uid] = decision
                self._news += 1
                return True
        return False

    def bind(self) -> bool:
        """Write the oldest decision; tell whether there was one."""
        if not self._decided:
            return False
        uid = next(iter(self._decided))
        decision = self._decided.pop(uid)
        self._looked.pop(uid, None)
        self._news += 1
        pod = self._objects.again("pods", decision.pod)
        if pod is None or pod["metadata"].get("deletionTimestamp") or not self._write_claims(decision):
            return True
        pod["spec"]["nodeName"] = self._node_name
        self._objects.set_condition(self._objects.write("pods", pod), type="PodScheduled", status="True")
        return True

    def _waiting(self) -> list[Mapping[str, Any]]:
        """Return pods without a node, in the order in which they came."""
        found = [
            pod
            for pod in self._objects.all("pods")
            if not pod["spec"].get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
            and pod["metadata"]["uid"] not in self._decided
        ]
        for pod in found:
            self._came.setdefault(pod["metadata"]["uid"], len(self._came))
        return sorted(found, key=lambda pod: self._came[pod["metadata"]["uid"]])

    def _decision(self, pod: Mapping[str, Any]) -> Decision | None:
        """Return what a pod gets; None while one of its claims does not exist, or is being deleted.

        Raises:
            UnschedulableError: they do not fit.
        """
        claims = self._objects.claims_of(pod)
        if claims is None or any(claim["metadata"].get("deletionTimestamp") for claim in claims):
            return None
        wanted = [claim for claim in claims if not self._allocation_of(claim)]
        found = self._allocate(wanted) if wanted else []
        allocations = {claim["metadata"]["uid"]: one for claim, one in zip(wanted, found, strict=True)}
        return Decision(pod, tuple(claim["metadata"]["name"] for claim in claims), allocations)

    def _allocate(self, wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        (node,) = (item for item in self._objects.all("nodes") if item["metadata"]["name"] == self._node_name)
        slices = self._objects.all("resourceslices") if self._held_slices is None else self._held_slices
        uids = {claim["metadata"]["uid"] for claim in wanted}
        others = [
            {**claim, "status": {**claim.get("status", {}), "allocation": allocation}}
            for claim in self._objects.all("resourceclaims")
            if claim["metadata"]["uid"] not in uids and (allocation := self._allocation_of(claim))
        ]
        classes = self._objects.all("deviceclasses")
        return allocator.allocate_together(wanted, classes=classes, slices=slices, claims=others, node=node)

    def _allocation_of(self, claim: Mapping[str, Any]) -> dict[str, Any] | None:
        uid = claim["metadata"]["uid"]
        assumed = next((it.allocations[uid] for it in self._decided.values() if uid in it.allocations), None)
        return claim.get("status", {}).get("allocation") or assumed

    def _write_claims(self, decision: Decision) -> bool:
        meta = decision.pod["metadata"]
        entry = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
        for name in decision.claims:
            claim = self._objects.find("resourceclaims", meta["namespace"], name)
            if claim is None or claim["metadata"].get("deletionTimestamp"):
                return False
            status = claim.get("status", {})
            allocation = status.get("allocation") or decision.allocations.get(claim["metadata"]["uid"])
            if allocation is None:  # it was taken away meanwhile
                return False
            finalizers = {*claim["metadata"].get("finalizers", ()), PROTECTION}
            claim["metadata"]["finalizers"] = sorted(finalizers)
            claim = self._objects.write("resourceclaims", claim)
            entries = [one for one in status.get("reservedFor", ()) if one["uid"] != meta["uid"]]
            status = {**status, "allocation": allocation, "reservedFor": [*entries, entry]}
            self._objects.write_status("resourceclaims", claim, status)
        return True


def _holds(claim: Mapping[str, Any]) -> object:
    """Return what of a claim concerns others: its allocation, and whether it is being deleted."""
    return claim.get("status", {}).get("allocation"), claim["metadata"].get("deletionTimestamp")
