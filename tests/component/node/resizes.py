"""A ClaimResize whose controller is the test: it says what is permitted and wanted, and reads what the node says."""

import json
from collections.abc import Callable, Mapping

from dra_gpu.api.dra_gpu_v1alpha1 import API_VERSION
from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.pods import LocalPod
from tests.component.node.node_under_fire import PATIENCE
from tests.component.node.sharing import Sharing

KIND = resources.by_plural("claimresizes")
NAMES = ("computePercent", "memory", "clients", "nvlinkBandwidth")
GROUP = "resource.dra-gpu.dev"


def amounts(percent: int, memory: str, clients: int = 1) -> dict[str, str]:
    return {"computePercent": str(percent), "memory": memory, "clients": str(clients), "nvlinkBandwidth": "0"}


class HandMadeResize:
    """One object, and short words for what its controller does."""

    def __init__(self, sharing: Sharing, pod: LocalPod, percent: int, memory: str) -> None:
        self.sharing, self.claim, self.device = sharing, pod.claim, pod.devices[0]
        self.store = sharing.cluster.api.store
        self.allocated = amounts(percent, memory)
        self.permits = 1
        body = {"apiVersion": API_VERSION, "kind": "ClaimResize", "metadata": {"name": self.claim.name}, "spec": {}}
        self.store.create(KIND, self.claim.namespace, body)
        self._say(
            nodeName=sharing.cluster.node_name,
            target={
                "claimUid": self.claim.uid,
                "driver": DRIVER,
                "pool": sharing.cluster.node_name,
                "device": self.device.device,
                "shareId": self.device.share_id,
            },
            allocated=self.allocated,
            permitted=self.allocated,
            permit=self.permits,
            wanted=self.allocated,
        )

    @property
    def status(self) -> dict:
        return self.store.get(KIND, self.claim.namespace, self.claim.name).get("status", {})

    @property
    def node(self) -> dict:
        """What the node plugin says."""
        return self.status.get("node", {})

    def want(self, percent: int, memory: str) -> None:
        self._say(wanted=amounts(percent, memory))

    def permit(self, percent: int, memory: str, clients: int = 1) -> None:
        self.permits += 1
        self._say(permitted=amounts(percent, memory, clients), permit=self.permits)

    async def reserve(self) -> None:
        """Wait until the node asks, and enter the object in the claim."""
        await self.until(lambda node: node.get("round", 0) > node.get("releasedRound", 0))
        self._entries(lambda entries: [*entries, self._entry])
        self._say(reservedRound=self.node["round"])

    def release(self) -> None:
        """Take the object out of the claim."""
        self._entries(lambda entries: [one for one in entries if one.get("resource") != "claimresizes"])

    def delete(self) -> None:
        self.store.delete(KIND, self.claim.namespace, self.claim.name)

    async def given_back(self, percent: int, memory: str) -> None:
        """Wait until the server has so much beyond the hardware, and the node says so."""
        wanted = amounts(percent, memory, 0)
        await self.until(lambda node: node.get("givenBack") == wanted and node.get("permit") == self.permits)

    async def in_force(self, percent: int, memory: str) -> None:
        """Wait until the node says that no more is in force."""
        wanted = amounts(percent, memory)
        await self.until(lambda node: node.get("inForce") == wanted and not node.get("waitingFor"))

    async def until(self, condition: Callable[[Mapping], bool], within: float = PATIENCE) -> None:
        try:
            await self.sharing.cluster.api.log.wait_for(lambda _: condition(self.node), within)
        except TimeoutError:
            raise AssertionError(f"the node never said it: {json.dumps(self.status, indent=1)}") from None

    def published(self) -> dict[str, str]:
        """What the claim's device has according to the slices."""
        devices = (one for piece in self.sharing.cluster.slices() for one in piece["spec"].get("devices", ()))
        found = next(one for one in devices if one["name"] == self.device.device)
        return {name: one["value"] for name, one in found["capacity"].items()}

    @property
    def _entry(self) -> dict:
        uid = self.store.get(KIND, self.claim.namespace, self.claim.name)["metadata"]["uid"]
        return {"apiGroup": GROUP, "resource": "claimresizes", "name": self.claim.name, "uid": uid}

    def _entries(self, change: Callable[[list], list]) -> None:
        claims = resources.by_plural("resourceclaims")
        found = self.sharing.object_of(self.claim)
        found["status"]["reservedFor"] = change(found["status"].get("reservedFor", []))
        self.store.replace(claims, self.claim.namespace, self.claim.name, found, status_only=True)

    def _say(self, **fields: object) -> None:
        found = self.store.get(KIND, self.claim.namespace, self.claim.name)
        found["status"] = {**found.get("status", {}), **fields}
        self.store.replace(KIND, self.claim.namespace, self.claim.name, found, status_only=True)
