"""A whole GPU that a claim shares among its containers: settings change, and no capacity moves."""

import copy

import pytest

from tests.unit.controller.resizes.cluster import NODE, Cluster, a_claim, a_pod
from tests.unit.controller.resizes.driving import Replica


class Scene:
    """A claim with a whole GPU, and a node that says what a test wants."""

    def __init__(self, **spec):
        self.cluster = Cluster()
        pod = self.cluster.put("pods", a_pod("train"))
        self.cluster.put("resourceclaims", a_claim("training"))
        claim = self.cluster.objects["resourceclaims", "training"]
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
        user = {"resource": "pods", "name": "train", "uid": pod["metadata"]["uid"]}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        resize = {
            "apiVersion": "resource.dra-gpu.dev/v1alpha1",
            "kind": "ClaimResize",
            "metadata": {"name": "training"},
        }
        self.cluster.put("claimresizes", resize | {"spec": spec})
        self.replica = Replica(self.cluster)

    @property
    def resize(self):
        return self.cluster.objects.get(("claimresizes", "training"))

    @property
    def status(self):
        return self.resize["status"]

    def controller(self):
        self.replica.hear()
        self.replica.look()

    def node_says(self, reason="", message="", *, prepared=True):
        before, status = copy.deepcopy(self.resize), self.status
        status["node"] = {
            "claimUid": status["target"]["claimUid"],
            "observedGeneration": status["observedGeneration"],
            "permit": status["permit"],
            "prepared": prepared,
            "reason": reason,
            "message": message,
        }
        self.cluster._stored("claimresizes", self.resize, before)


@pytest.mark.parametrize("spec", [{"timeSlice": "Long"}, {"mps": {"activeThreadPercentage": 50}}])
def test_settings_are_handed_to_the_node_and_applied_when_it_says_so(spec):
    scene = Scene(**spec)
    scene.controller()
    handed = {name: value for name, value in scene.status.items() if name in ("timeSlice", "mps")}
    assert handed == spec
    assert scene.status["reason"] == "WaitingForNode"

    scene.node_says()
    scene.controller()

    assert scene.status["phase"] == "Applied"
    assert scene.cluster.growths() == []
    assert [
        user["resource"] for user in scene.cluster.objects["resourceclaims", "training"]["status"]["reservedFor"]
    ] == ["pods"]


def test_what_keeps_them_from_being_made_is_told():
    scene = Scene(mps={"activeThreadPercentage": 50})
    scene.controller()
    scene.node_says("ProcessesAttached", "python train.py (pid 4711) is attached")
    scene.controller()

    assert (scene.status["phase"], scene.status["reason"]) == ("WaitingForWorkload", "ProcessesAttached")
    assert scene.status["message"] == "python train.py (pid 4711) is attached"


def test_another_wish_waits_for_the_node_again():
    scene = Scene(timeSlice="Long")
    scene.controller()
    scene.node_says()
    scene.controller()
    before = copy.deepcopy(scene.resize)
    scene.resize["spec"] = {"timeSlice": "Short"}
    scene.cluster._stored("claimresizes", scene.resize, before)
    scene.controller()

    assert scene.status["timeSlice"] == "Short"
    assert (scene.status["phase"], scene.status["reason"]) == ("Pending", "WaitingForNode")


def test_a_deleted_one_stays_until_the_node_has_made_them_as_they_were():
    scene = Scene(timeSlice="Long")
    scene.controller()
    scene.node_says()
    scene.controller()
    scene.cluster.remove("claimresizes", "training")
    scene.controller()
    assert "timeSlice" not in scene.status
    scene.node_says("SettingsNotMade", "the GPU does not answer")
    scene.controller()
    assert scene.resize is not None

    scene.node_says()
    scene.controller()

    assert scene.resize is None


def test_a_claim_that_is_not_used_any_more_keeps_nothing():
    scene = Scene(timeSlice="Long")
    scene.controller()
    scene.node_says()
    scene.controller()
    scene.cluster.remove("pods", "train")
    scene.cluster.tidy()
    scene.node_says(prepared=False)
    scene.controller()

    assert (scene.status["phase"], scene.status["reason"]) == ("Pending", "ClaimNotAllocated")
    assert scene.resize["metadata"].get("finalizers", []) == []


def test_capacity_of_a_whole_gpu_is_refused_with_what_can_be_changed_instead():
    scene = Scene(capacity={"memory": "20Gi"})
    scene.controller()

    assert (scene.status["phase"], scene.status["reason"]) == ("Refused", "IsWhole")
    assert "spec.timeSlice and spec.mps can be changed" in scene.status["message"]
