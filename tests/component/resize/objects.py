"""What users do in the cluster, and what is true of it: of the GPU by `dra_gpu_sim.reach`, of claims by the server.

`reach` reads the simulator's mapped file and knows nothing of the driver.
"""

import itertools
import json

from dra_gpu.api.claim_resize import GROWTH_LABEL
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts
from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.apiserver.server import ApiServer
from dra_gpu_sim.local.cluster_objects import ClusterObjects
from dra_gpu_sim.node import SimulatedNode
from dra_gpu_sim.reach import reach

NAMESPACE = "team-a"
GIB = 2**30


class Objects:
    """Users' pods, claims and resizes in one namespace, for the shares of one GPU.

    Args:
        server: the API server in memory.
        node: the simulated GPU.
    """

    def __init__(self, server: ApiServer, node: SimulatedNode) -> None:
        self.server = server
        self._node = node
        self._objects = ClusterObjects(server)
        self._memory = node.gpus[0].memory
        self._numbers = itertools.count(1)
        self.hardware = Amounts()
        """What is published while nobody has given anything back."""

    def add_pod(self, percent: int, memory: int) -> str:
        """Create a claim for a share and a pod that needs it; returns their name."""
        name = f"pod-{next(self._numbers)}"
        capacity = {"requests": {"computePercent": str(percent), "memory": f"{memory}Gi"}}
        request = {"name": "gpu", "exactly": {"deviceClassName": "shared.gpu.nvidia.com", "capacity": capacity}}
        self.server.put(
            "resourceclaims", {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}, NAMESPACE
        )
        spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
        self.server.put("pods", {"metadata": {"name": name}, "spec": spec}, NAMESPACE)
        return name

    def resize(self, claim: str, capacity: dict[str, str]) -> None:
        """Want so much for a claim."""
        found = self._objects.find("claimresizes", NAMESPACE, claim)
        if found is None:
            self.server.put("claimresizes", {"metadata": {"name": claim}, "spec": {"capacity": capacity}}, NAMESPACE)
        else:
            self._objects.write("claimresizes", {**found, "spec": {"capacity": capacity}})

    def delete(self, plural: str, name: str, *, grace: bool = False) -> None:
        """Delete an object; a pod with `grace` is ended by its kubelet first."""
        found = self._objects.find(plural, NAMESPACE, name)
        if found is not None:
            slowly = grace and bool(found["spec"].get("nodeName"))
            self.server.store.delete(resources.by_plural(plural), NAMESPACE, name, graceful=slowly)

    def delete_all(self, plural: str, *, grace: bool = False) -> None:
        """Delete every object of a kind."""
        for one in self._objects.all(plural):
            self.delete(plural, one["metadata"]["name"], grace=grace)

    def workloads(self) -> list[str]:
        """Return the names of pods that users made and nobody deletes."""
        found = self._objects.all("pods")
        return [one["metadata"]["name"] for one in found if not _stands_in(one) and not _is_ending(one)]

    def claims(self) -> list[str]:
        """Return the names of claims that users made."""
        return [one["metadata"]["name"] for one in self._objects.all("resourceclaims") if not _stands_in(one)]

    def resizes(self):
        """Return the ClaimResizes."""
        return self._objects.all("claimresizes")

    def published(self) -> Amounts:
        """Return what the scheduler sees of the shared device."""
        for one in self._objects.all("resourceslices"):
            for device in one["spec"].get("devices", ()):
                if device["name"] == "gpu-0-shared":
                    return amounts.parse({name: capacity["value"] for name, capacity in device["capacity"].items()})
        raise AssertionError("the shared device is not published")

    def given_back(self) -> Amounts:
        """Return what the resizes say that nodes publish for them beyond the hardware."""
        said = (one.get("status", {}).get("node", {}).get("givenBack", {}) for one in self.resizes())
        return sum(map(amounts.parse, said), Amounts())

    def allocated(self) -> Amounts:
        """Return the sum of what claims were allocated of the shared device, growths among them."""
        results = (
            result
            for one in self._objects.all("resourceclaims")
            for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        )
        return sum((amounts.parse(result["consumedCapacity"]) for result in results), Amounts())

    def check(self) -> None:
        """Assert what must be true at every moment: the programs together cannot have more than the GPU."""
        [now] = reach(self._node.root)
        assert now.memory <= self._memory, now
        assert now.sm_percent <= 100, now

    def unsettled(self) -> str:
        """Return what is not as it is when nobody has had anything to do for a while; empty when all is."""
        published, given_back = self.published(), self.given_back()
        if published != self.hardware + given_back:
            return f"published is {published}, the hardware has {self.hardware}, given back is {given_back}"
        if not self.allocated().within(published):
            return f"allocated is {self.allocated()}, published is {published}"
        for one in self._objects.all("resourceclaims"):
            status = one.get("status", {})
            if bool(status.get("allocation")) != bool(status.get("reservedFor")):
                return f"claim {one['metadata']['name']} is allocated, and nobody uses it: {status}"
        return ""

    def described(self) -> str:
        """Return what is there, for whoever reads a failure."""
        lines = [f"published {self.published()}", f"allocated {self.allocated()}", f"unsettled: {self.unsettled()}"]
        for kind in ("claimresizes", "resourceclaims", "pods"):
            lines += [f"{kind} {json.dumps(one)}" for one in self._objects.all(kind)]
        return "\n".join(lines)

    def left(self) -> list[str]:
        """Return what is there though everything was deleted."""
        kinds = ("claimresizes", "resourceclaims", "pods")
        found = [f"{kind} {one['metadata']['name']}: {one}" for kind in kinds for one in self._objects.all(kind)]
        if self.published() != self.hardware:
            found.append(f"published is {self.published()}, the hardware has {self.hardware}")
        truth = self._node.snapshot()
        found += [f"process {one}" for one in truth.processes] + [f"limit {one}" for one in truth.limits]
        return found


def _stands_in(one) -> bool:
    return GROWTH_LABEL in one["metadata"].get("labels", {})


def _is_ending(one) -> bool:
    return bool(one["metadata"].get("deletionTimestamp"))
