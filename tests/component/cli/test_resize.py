"""`kubectl gpu resize` against an API server: what it writes, and what it says while it waits."""

import asyncio

import msgspec
import pytest

from dra_gpu.api.claim_resize import Phase
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import Connection
from dra_gpu.apiserver.resources import CLAIM_RESIZES
from dra_gpu.cli.resize import Order, ResizeError, Resizing
from dra_gpu_sim.apiserver.server import ApiServer

NAMESPACE, DEVICE = "team-a", "gpu-0-shared"
TARGET = {"claimUid": "u", "driver": "gpu.nvidia.com", "pool": "node-0", "device": DEVICE, "shareId": "s"}
PATIENCE = 30.0
SMALLER = {"capacity": {"computePercent": 40, "memory": "20Gi"}}


class Cluster:
    """An API server, a client of it, and what the command has said."""

    def __init__(self, server, api):
        self.server, self.api = server, api
        self.said = []
        self._told = asyncio.Event()

    def tell(self, line):
        self.said.append(line)
        self._told.set()

    def claim(self, name, *pods, device=DEVICE, capacity=None):
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-0", "device": device}
        result["consumedCapacity"] = capacity or {"computePercent": "60", "memory": "60Gi", "clients": "1"}
        users = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
        self.server.put("resourceclaims", {"metadata": {"name": name}, "spec": {}, "status": status}, NAMESPACE)

    def resizing(self, what, *, request=None, reset=False, **changes):
        return Resizing(self.api, Order(NAMESPACE, what, request, changes, reset), self.tell)

    async def says(self, phase, message="", *, generation=1, name="training"):
        """The controller says how far it is."""
        status = {
            "phase": phase.value,
            "message": message,
            "observedGeneration": generation,
            "target": TARGET,
        }
        await self.api.patch(CLAIM_RESIZES, {"status": status}, name, NAMESPACE, subresource="status")

    async def heard(self, line):
        async with asyncio.timeout(PATIENCE):
            while line not in self.said:
                self._told.clear()
                await self._told.wait()

    def spec(self, name="training"):
        (found,) = [one for one in self.server.objects("claimresizes") if one["metadata"]["name"] == name]
        return found["spec"]


@pytest.fixture
async def cluster():
    server = ApiServer()
    await server.start()
    api = HttpKubernetesApi(Connection(server.url))
    yield Cluster(server, api)
    api.close()
    await server.stop()


@pytest.mark.parametrize("what", ["training", "claim/training", "pod/train-0", "train-0"])
async def test_a_claim_is_meant_by_its_name_or_by_a_pod_of_it(cluster, what):
    cluster.claim("training", "train-0")
    pod = {
        "metadata": {"name": "train-0"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "training"}]},
    }
    cluster.server.put("pods", pod, NAMESPACE)

    await cluster.resizing(what, **SMALLER).begin()

    assert cluster.spec() == SMALLER
    assert cluster.said == ["claimresize.resource.dra-gpu.dev/training created"]


async def test_the_claims_that_were_made_for_a_pod_are_found(cluster):
    cluster.claim("train-gpu-x7")
    cluster.claim("train-extended-q2", device="gpu-1")
    made = {
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-gpu-x7"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "train-extended-q2"},
    }
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "share"}]}
    cluster.server.put("pods", {"metadata": {"name": "train"}, "spec": spec, "status": made}, NAMESPACE)

    with pytest.raises(ResizeError, match="name one of claim/train-gpu-x7, claim/train-extended-q2"):
        await cluster.resizing("train", **SMALLER).begin()


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("nobody", "there is neither a ResourceClaim nor a pod team-a/nobody"),
        ("claim/nobody", "there is no ResourceClaim team-a/nobody"),
        ("pod/nobody", "there is no pod team-a/nobody"),
        ("pod/idle", "pod team-a/idle has no device of gpu.nvidia.com: is it scheduled?"),
        ("node/x", "'node/x' is neither a claim nor a pod: write NAME, claim/NAME or pod/NAME"),
    ],
)
async def test_what_cannot_be_resized_is_named(cluster, what, problem):
    cluster.server.put("pods", {"metadata": {"name": "idle"}, "spec": {}}, NAMESPACE)

    with pytest.raises(ResizeError) as refused:
        await cluster.resizing(what, **SMALLER).begin()

    assert str(refused.value) == problem


async def test_what_is_not_named_stays_as_it_was(cluster):
    cluster.claim("training")
    await cluster.resizing("training", **SMALLER).begin()
    await cluster.resizing("training", capacity={"memory": "30Gi"}).begin()

    assert cluster.spec() == {"capacity": {"computePercent": 40, "memory": "30Gi"}}
    assert cluster.said[1] == "claimresize.resource.dra-gpu.dev/training configured"


async def test_a_resize_that_is_being_deleted_is_not_taken_for_one_that_does_what_is_said(cluster):
    cluster.claim("training")
    ending = {"name": "training", "finalizers": ["resource.dra-gpu.dev/claim-resize"]}
    cluster.server.put("claimresizes", {"metadata": ending, "spec": {}}, NAMESPACE)
    await cluster.resizing("training", reset=True).begin()

    with pytest.raises(ResizeError, match=r"training is being deleted, .* wait until it is gone"):
        await cluster.resizing("training", **SMALLER).begin()


async def test_it_tells_every_phase_until_what_is_wanted_is_in_force(cluster):
    cluster.claim("training")
    begun = await cluster.resizing("training", **SMALLER).begin()
    following = asyncio.create_task(cluster.resizing("training", **SMALLER).follow(begun, PATIENCE))
    await cluster.says(Phase.WAITING_FOR_WORKLOAD, "python train.py (pid 4711) could still take more")
    await cluster.heard("WaitingForWorkload: python train.py (pid 4711) could still take more")
    await cluster.says(Phase.APPLIED, "in force: 40 % of the SMs, 20Gi of memory")

    found = await following

    assert found.status.phase is Phase.APPLIED
    assert cluster.said[-1] == "Applied: in force: 40 % of the SMs, 20Gi of memory"
    assert msgspec.json.decode(msgspec.json.encode(found))["status"]["phase"] == "Applied"


async def test_a_status_of_before_the_change_is_not_taken_for_its_result(cluster):
    cluster.claim("training")
    await cluster.resizing("training", **SMALLER).begin()
    await cluster.says(Phase.APPLIED, "as before")
    begun = await cluster.resizing("training", capacity={"memory": "30Gi"}).begin()
    following = asyncio.create_task(cluster.resizing("training").follow(begun, PATIENCE))
    await cluster.says(Phase.APPLIED, "in force: 30Gi", generation=2)

    assert (await following).status.message == "in force: 30Gi"
    assert "Applied: as before" not in cluster.said


async def test_a_refusal_ends_it(cluster):
    cluster.claim("training")
    begun = await cluster.resizing("training", capacity={"memory": "90Gi"}).begin()
    await cluster.says(Phase.REFUSED, "30Gi of memory more is wanted than the claim was allocated")

    with pytest.raises(ResizeError, match="Refused: 30Gi of memory more is wanted"):
        await cluster.resizing("training").follow(begun, PATIENCE)


async def test_where_nothing_is_free_it_tells_who_has_it_and_gives_up_in_time(cluster):
    cluster.claim("training", "train-0")
    cluster.claim("inference", "serve-0", "serve-1", capacity={"computePercent": "40", "memory": "20Gi"})
    cluster.claim("elsewhere", device="gpu-1-shared")
    await cluster.resizing("training", capacity={"memory": "70Gi"}).begin()
    await cluster.says(Phase.INSUFFICIENT_CAPACITY, "10Gi of memory more is wanted and nothing is free")
    begun = await cluster.api.get(CLAIM_RESIZES, "training", NAMESPACE)

    with pytest.raises(ResizeError) as given_up:
        await cluster.resizing("training").follow(begun, 0.1)

    holders = (
        "who has something of gpu-0-shared:\n"
        "  team-a/training: 60 % of the SMs, 60Gi of memory, 1 client, used by train-0\n"
        "  team-a/inference: 40 % of the SMs, 20Gi of memory, used by serve-0, serve-1"
    )
    assert str(given_up.value) == (
        f"after 0.1 s: InsufficientCapacity: 10Gi of memory more is wanted and nothing is free\n{holders}"
    )


async def test_a_reset_deletes_the_object_and_waits_until_nothing_of_it_is_left(cluster):
    cluster.claim("training")
    await cluster.resizing("training", **SMALLER).begin()
    there = cluster.resizing("training", reset=True)
    begun = await there.begin()

    assert await there.follow(begun, PATIENCE) is None
    assert cluster.server.objects("claimresizes") == []
    assert await there.begin() is None
    assert cluster.said[-1].endswith("training is not there: the claim has what it was allocated")


async def test_who_has_it_is_told_while_it_waits(cluster):
    cluster.claim("training", "train-0")
    begun = await cluster.resizing("training", capacity={"memory": "70Gi"}).begin()
    following = asyncio.create_task(cluster.resizing("training").follow(begun, PATIENCE))
    await cluster.says(Phase.INSUFFICIENT_CAPACITY, "nothing is free")
    await cluster.heard("  team-a/training: 60 % of the SMs, 60Gi of memory, 1 client, used by train-0")
    await cluster.says(Phase.APPLIED)

    assert (await following).status.phase is Phase.APPLIED
