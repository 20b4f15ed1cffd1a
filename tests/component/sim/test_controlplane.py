"""The local mode's scheduler and controllers do with claims what the real ones do (see e2e/test_resize_pillars.py)."""

import asyncio

import pytest

from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.apiserver.server import ApiServer
from dra_gpu_sim.local.controlplane import ControlPlane

PATIENCE = 30.0
NODE = "node-0"
ENTRY = {"apiGroup": "resource.dra-gpu.dev", "resource": "claimresizes", "name": "training", "uid": "r-1"}


class World:
    """One device that claims share, and pods that want some of it."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self.plane = ControlPlane(self.api, NODE)
        self.api.put("nodes", {"metadata": {"name": NODE}})
        selector = {"cel": {"expression": "device.driver == 'gpu.example.com'"}}
        self.api.put("deviceclasses", {"metadata": {"name": "some"}, "spec": {"selectors": [selector]}})
        self.api.put("resourceslices", {"metadata": {"name": "gpus"}, "spec": self._slice("100")})

    def _slice(self, percent: str) -> dict:
        policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
        capacity = {"computePercent": {"value": percent, "requestPolicy": policy}}
        device = {"name": "gpu-0-shared", "allowMultipleAllocations": True, "capacity": capacity}
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        return {"driver": "gpu.example.com", "nodeName": NODE, "pool": pool, "devices": [device]}

    def publish(self, percent: str) -> None:
        served = resources.by_plural("resourceslices")
        self.api.store.replace(served, "", "gpus", {"metadata": {"name": "gpus"}, "spec": self._slice(percent)})

    def want(self, name: str, percent: str = "60") -> None:
        capacity = {"requests": {"computePercent": percent}}
        request = {"name": "gpu", "exactly": {"deviceClassName": "some", "capacity": capacity}}
        self.api.put("resourceclaims", {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}, "ns")
        self.add_pod(name, {"name": "gpu", "resourceClaimName": name})

    def add_pod(self, name: str, *claims: dict) -> None:
        self.api.put("pods", {"metadata": {"name": name}, "spec": {"resourceClaims": list(claims)}}, "ns")

    def one(self, plural: str, name: str) -> dict:
        return next(it for it in self.api.objects(plural) if it["metadata"]["name"] == name)

    def status(self, name: str) -> dict:
        return self.one("resourceclaims", name).get("status", {})

    def set_status(self, name: str, **status) -> None:
        served = resources.by_plural("resourceclaims")
        present = self.one("resourceclaims", name)
        merged = {key: value for key, value in (present.get("status", {}) | status).items() if value is not None}
        self.api.store.replace(served, "ns", name, present | {"status": merged}, status_only=True)

    def reserve(self, name: str) -> None:
        self.set_status(name, reservedFor=[*self.status(name)["reservedFor"], ENTRY])

    def allocated(self) -> dict[str, str]:
        found = {}
        for claim in self.api.objects("resourceclaims"):
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()):
                found[claim["metadata"]["name"]] = result["consumedCapacity"]["computePercent"]
        return found

    def bound(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.api.objects("pods") if pod["spec"].get("nodeName")]


@pytest.fixture
def world():
    made = World()
    made.want("training")
    made.plane.settle()
    return made


def test_a_pod_whose_claim_fits_is_bound_and_entered_and_one_whose_claim_does_not_is_told_why(world):
    world.want("late")
    world.plane.settle()

    assert world.bound() == ["training"]
    assert [one["name"] for one in world.status("training")["reservedFor"]] == ["training"]
    [condition] = world.one("pods", "late")["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")


def test_the_last_pod_that_goes_takes_the_allocation_along_and_whoever_waits_for_it_gets_it(world):
    world.want("late")
    world.plane.settle()

    world.api.remove("pods", "training", "ns")
    world.plane.settle()

    assert world.allocated() == {"late": "60"}
    assert world.bound() == ["late"]


def test_an_entry_of_another_kind_keeps_a_claim_allocated_and_a_deletion_waiting(world):
    world.reserve("training")
    world.api.remove("resourceclaims", "training", "ns")
    world.api.remove("pods", "training", "ns")
    world.plane.settle()
    assert world.status("training")["reservedFor"] == [ENTRY]
    assert world.allocated() == {"training": "60"}

    world.set_status("training", reservedFor=None)
    world.plane.settle()

    assert world.api.objects("resourceclaims") == []


def test_a_claim_whose_last_entry_somebody_else_took_out_stays_allocated_unless_he_took_both(world):
    world.reserve("training")
    world.api.remove("pods", "training", "ns")
    world.plane.settle()

    world.set_status("training", reservedFor=None)
    world.plane.settle()
    assert world.allocated() == {"training": "60"}

    world.set_status("training", allocation=None)
    world.plane.settle()
    assert world.allocated() == {}


def test_what_the_scheduler_has_decided_counts_before_it_is_written_and_is_written_after_the_value_has_fallen(world):
    world.publish("160")
    world.want("second")
    world.want("third")
    assert world.plane.scheduler.decide()
    assert not world.plane.scheduler.decide()

    world.publish("100")

    assert world.plane.scheduler.bind()
    assert world.allocated() == {"training": "60", "second": "60"}
    world.plane.settle()
    assert world.bound() == ["second", "training"]


def test_a_scheduler_whose_watch_is_late_decides_on_the_slices_that_it_has_seen(world):
    world.publish("160")
    world.plane.scheduler.hold_slices()
    world.publish("100")
    world.want("second")

    world.plane.settle()
    assert world.bound() == ["second", "training"]
    world.plane.scheduler.release_slices()
    world.want("third", "1")
    world.plane.settle()
    assert world.bound() == ["second", "training"]


def test_a_decision_about_a_pod_that_is_gone_meanwhile_is_written_for_nobody(world):
    world.publish("160")
    world.want("second")
    world.plane.scheduler.decide()
    world.api.remove("pods", "second", "ns")

    world.plane.settle()

    assert world.allocated() == {"training": "60"}


def test_a_claim_by_a_template_is_made_for_its_pod_and_goes_with_it(world):
    spec = world.one("resourceclaims", "training")["spec"] | {}
    spec["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["computePercent"] = "10"
    world.api.put("resourceclaimtemplates", {"metadata": {"name": "tenth"}, "spec": {"spec": spec}}, "ns")
    world.add_pod("small", {"name": "gpu", "resourceClaimTemplateName": "tenth"})
    world.plane.settle()
    assert sorted(world.allocated().values()) == ["10", "60"]

    world.api.remove("pods", "small", "ns")
    world.plane.settle()

    assert [claim["metadata"]["name"] for claim in world.api.objects("resourceclaims")] == ["training"]


async def test_by_itself_it_follows_whatever_changes(world):
    changed = asyncio.Event()
    world.api.store.subscribe(lambda _: changed.set())
    async with asyncio.timeout(PATIENCE), world.plane.running():
        world.want("second", "40")
        while world.bound() != ["second", "training"]:
            changed.clear()
            await changed.wait()
