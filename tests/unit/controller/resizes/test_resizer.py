"""A resize from its object to its end, call by call."""

import pytest

from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts
from tests.unit.controller.resizes.cluster import GIBI, HARDWARE, Cluster, a_claim, a_pod, a_resize
from tests.unit.controller.resizes.driving import LABEL, Replica
from tests.unit.controller.resizes.node import Node

ALLOCATED = Amounts(60, 60 * GIBI, 8, 0)


class Scene:
    """A training with most of a GPU, a controller and a node."""

    def __init__(self, capacity=None, *, beyond=True, resized=True):
        self.cluster = Cluster()
        self.pod = self.cluster.put("pods", a_pod("train"))
        self.cluster.put("resourceclaims", a_claim("training"))
        self.user = {"resource": "pods", "name": "train", "uid": self.pod["metadata"]["uid"]}
        self.cluster.allocate("training", ALLOCATED, [self.user])
        self.node, self.replica = Node(self.cluster), Replica(self.cluster, beyond=beyond)
        if resized:
            self.cluster.put("claimresizes", a_resize("training", capacity or {}))

    @property
    def resize(self):
        return self.cluster.objects.get(("claimresizes", "training"))

    @property
    def status(self):
        return self.resize["status"]

    @property
    def claim(self):
        return self.cluster.objects["resourceclaims", "training"]

    @property
    def in_force(self):
        return amounts.parse(self.status["node"]["inForce"])

    @property
    def users(self):
        return [user["resource"] for user in self.claim["status"]["reservedFor"]]

    def controller(self):
        self.replica.hear()
        self.replica.look()

    def on_the_node(self):
        self.node.read(100)
        self.node.act()
        self.node.report()

    def settle(self):
        for _ in range(40):
            before = str(self.cluster.objects)
            self.controller()
            self.on_the_node()
            self.cluster.schedule()
            self.cluster.tidy()
            if str(self.cluster.objects) == before:
                return
        raise AssertionError("it does not come to rest")

    def other(self, name, wanted):
        pod = self.cluster.put("pods", a_pod(name))
        self.cluster.put("resourceclaims", a_claim(name))
        user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
        self.cluster.allocate(name, wanted, [user], share=name)


def test_what_a_claim_gives_up_is_offered_to_others_once_the_claim_cannot_be_freed():
    scene = Scene({"computePercent": 20, "memory": "10Gi"})

    scene.settle()

    assert scene.status["phase"] == "Applied"
    assert scene.in_force == Amounts(20, 10 * GIBI, 8, 0)
    assert scene.cluster.published == HARDWARE + Amounts(40, 50 * GIBI, 0, 0)
    assert scene.users == ["pods", "claimresizes"]
    assert scene.status["message"] == "in force: 20 % of the SMs, 10Gi of memory, 8 clients"


def test_a_claim_that_grows_back_ends_with_nothing_left():
    scene = Scene({"computePercent": 20})
    scene.settle()
    scene.cluster.wish("training", {})
    scene.settle()

    assert scene.status["phase"] == "Applied"
    assert scene.in_force == ALLOCATED
    assert scene.cluster.published == HARDWARE
    assert scene.status["growths"] == []
    assert scene.cluster.growths() == []
    assert scene.users == ["pods"]


def test_a_claim_grows_beyond_its_own_by_a_claim_that_no_pod_needs():
    scene = Scene({"memory": "70Gi"})
    scene.settle()

    (growth,) = scene.cluster.growths()
    assert scene.status["phase"] == "Applied"
    assert scene.in_force == ALLOCATED + Amounts(memory=10 * GIBI)
    assert [user["resource"] for user in scene.cluster.objects["resourceclaims", growth]["status"]["reservedFor"]] == [
        "claimresizes"
    ]
    assert ("pods", growth) not in scene.cluster.objects
    # The least of everything else had to be asked for, too: others can have it.
    assert scene.cluster.published == HARDWARE + Amounts(1, 0, 1, 0)


def test_more_than_the_claim_was_allocated_is_refused_unless_the_operator_allows_it():
    scene = Scene({"memory": "70Gi", "computePercent": 20}, beyond=False)
    scene.settle()

    assert scene.status["phase"] == "Refused"
    assert scene.status["reason"] == "BeyondRequest"
    assert "10Gi of memory more is wanted than the claim was allocated" in scene.status["message"]
    assert scene.cluster.growths() == []
    assert "target" not in scene.status


def test_a_growth_that_does_not_fit_waits_and_says_what_is_free():
    scene = Scene({"memory": "90Gi"})
    scene.other("inference", Amounts(20, 20 * GIBI, 1, 0))
    scene.settle()

    assert scene.status["phase"] == "InsufficientCapacity"
    assert scene.status["message"] == (
        "30Gi of memory more is wanted and 20 % of the SMs, 20Gi of memory, 39 clients is free on gpu-0-shared of node "
        "node-0: it is taken as soon as it is there"
    )
    assert scene.status["free"]["memory"] == "20Gi"
    assert scene.in_force == ALLOCATED

    scene.cluster.remove("pods", "inference")
    scene.settle()
    assert scene.in_force.memory == 90 * GIBI


def test_a_growth_that_is_not_wanted_any_more_is_not_waited_for():
    scene = Scene({"memory": "90Gi"})
    scene.other("inference", Amounts(20, 20 * GIBI, 1, 0))
    scene.settle()
    scene.cluster.wish("training", {"memory": "60Gi"})
    scene.settle()

    assert scene.status["phase"] == "Applied"
    assert scene.cluster.growths() == []
    assert [name for plural, name in scene.cluster.objects if plural == "pods"] == ["train", "inference"]


def test_a_quota_that_refuses_the_growth_is_told():
    scene = Scene({"memory": "70Gi"})
    scene.cluster.refused = "exceeded quota: gpus"
    scene.settle()

    assert scene.status["phase"] == "InsufficientCapacity"
    assert scene.status["reason"] == "NotAdmitted"
    assert "exceeded quota: gpus" in scene.status["message"]
    assert scene.replica.again == 30


def test_somebody_elses_claim_of_a_growths_name_is_named_and_not_asked_for_again_and_again():
    same, scene = Scene({"memory": "70Gi"}), Scene({"memory": "70Gi"})
    while not same.cluster.growths():
        same.controller()
        same.on_the_node()
    (name,) = same.cluster.growths()
    scene.cluster.put("resourceclaims", a_claim(name))
    scene.settle()

    assert scene.status["phase"] == "InsufficientCapacity"
    assert f"there is a ResourceClaim team-a/{name} of somebody else: delete it" in scene.status["message"]
    assert scene.replica.again == 30
    assert scene.in_force == ALLOCATED


def test_a_former_growth_that_does_not_end_is_looked_at_less_and_less_often():
    same, scene = Scene({"memory": "70Gi"}), Scene({"memory": "70Gi"})
    while not same.cluster.growths():
        same.controller()
        same.on_the_node()
    (name,) = same.cluster.growths()
    former = a_claim(name)
    former["metadata"]["labels"] = {LABEL: scene.claim["metadata"]["uid"]}
    scene.cluster.put("resourceclaims", former)
    scene.cluster.allocate(name, Amounts(1, GIBI, 1, 0), [scene.user])
    scene.cluster.remove("resourceclaims", name)
    for _ in range(3):
        scene.controller()
        scene.on_the_node()
    looks = []
    for _ in range(9):
        scene.controller()
        looks.append(round(scene.replica.again, 1))

    assert looks == sorted(looks)
    assert looks[-1] > 10
    scene.cluster._forget("resourceclaims", name)
    scene.settle()
    assert scene.status["phase"] == "Applied"
    assert scene.in_force.memory == 70 * GIBI


def test_deleting_a_resize_undoes_it():
    scene = Scene({"computePercent": 20, "memory": "10Gi"})
    scene.settle()
    scene.cluster.remove("claimresizes", "training")
    scene.settle()

    assert scene.resize is None
    assert scene.node.journal.limit == ALLOCATED
    assert scene.cluster.published == HARDWARE
    assert scene.users == ["pods"]


def test_a_resize_that_was_removed_by_force_is_made_again_and_undone():
    scene = Scene({"computePercent": 20, "memory": "10Gi"})
    scene.settle()
    scene.cluster.force_out("training")
    scene.controller()
    assert scene.resize["metadata"]["deletionTimestamp"]
    scene.settle()

    assert scene.resize is None
    assert scene.node.journal.limit == ALLOCATED
    assert scene.cluster.published == HARDWARE
    assert scene.users == ["pods"]


def test_a_claim_that_gave_back_stays_allocated_when_its_pod_is_forced_away_until_nothing_is_given_back():
    scene = Scene({"computePercent": 20})
    scene.settle()
    scene.cluster.remove("pods", "train")
    scene.cluster.tidy()
    scene.controller()
    assert scene.users == ["claimresizes"]
    assert scene.cluster.published != HARDWARE

    scene.node.prepared = False
    scene.on_the_node()
    scene.settle()
    assert scene.cluster.published == HARDWARE
    assert "allocation" not in scene.claim["status"]
    assert scene.status["phase"] == "Pending"
    assert scene.status["reason"] == "ClaimNotAllocated"


def test_a_resize_ends_with_its_claim():
    scene = Scene({"computePercent": 20})
    scene.settle()
    scene.cluster.remove("resourceclaims", "training")
    scene.cluster.remove("pods", "train")
    scene.node.prepared = False
    scene.settle()

    assert scene.resize is None
    assert ("resourceclaims", "training") not in scene.cluster.objects


def test_a_claim_of_the_same_name_is_another_claim():
    scene = Scene({"computePercent": 20})
    scene.settle()
    scene.cluster.remove("pods", "train")
    scene.cluster.remove("resourceclaims", "training")
    scene.node.prepared = False
    scene.on_the_node()
    scene.controller()
    scene.cluster._forget("resourceclaims", "training")
    pod = scene.cluster.put("pods", a_pod("train"))
    scene.cluster.put("resourceclaims", a_claim("training"))
    scene.cluster.allocate(
        "training", ALLOCATED, [{"resource": "pods", "name": "train", "uid": pod["metadata"]["uid"]}], share="second"
    )
    scene.settle()

    assert scene.resize is None
    assert scene.users == ["pods"]


def test_a_node_that_is_gone_for_ever_holds_nothing_back():
    scene = Scene({"computePercent": 20})
    scene.settle()
    scene.cluster.remove("pods", "train")
    scene.cluster.remove("resourceclaims", "training")
    scene.replica.resizer.lost_nodes = frozenset({"node-0"})
    for _ in range(10):
        scene.controller()
        scene.cluster.tidy()

    assert scene.resize is None
    assert ("resourceclaims", "training") not in scene.cluster.objects


@pytest.mark.parametrize("allocated", [False, True])
def test_a_resize_without_an_allocated_claim_waits_for_it(allocated):
    scene = Scene(resized=False)
    scene.cluster.objects.clear()
    if allocated:
        scene.cluster.put("resourceclaims", a_claim("training"))
    scene.cluster.put("claimresizes", a_resize("training", {}))
    scene.controller()

    assert scene.status["phase"] == "Pending"
    assert scene.status["reason"] == ("ClaimNotAllocated" if allocated else "ClaimNotFound")
    assert scene.replica.again == 5


def test_what_only_processes_keep_from_being_given_up_is_waited_for():
    scene = Scene({"computePercent": 20})
    scene.node.stubborn = True
    scene.settle()

    assert scene.status["phase"] == "GivingBack"
    assert scene.cluster.published == HARDWARE
    assert scene.users == ["pods"]


class Ticking:
    """A clock that a test moves."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time


def test_how_long_a_wish_took_and_what_the_scheduler_was_asked_for_is_told():
    scene, clock, told = Scene({"computePercent": 20}), Ticking(), []
    scene.replica.resizer._clock, scene.replica.resizer._on_applied = clock, told.append
    scene.controller()
    clock.time = 1.5
    scene.settle()
    clock.time = 10.0
    scene.cluster.wish("training", {})
    scene.controller()
    clock.time = 12.0
    scene.settle()

    assert told == [1.5, 2.0]
    assert scene.replica.resizer.growths == {"asked": 1, "granted": 1, "refused": 0}


def test_finalizers_and_owners_of_others_stay_as_they_are():
    scene = Scene({"computePercent": 20})
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "app", "uid": "u", "blockOwnerDeletion": True}
    scene.cluster.put("configmaps", {"metadata": {"name": "app"}})
    scene.cluster.objects["configmaps", "app"]["metadata"]["uid"] = "u"
    scene.resize["metadata"] |= {"ownerReferences": [other], "finalizers": ["example.com/mine"]}
    scene.settle()

    meta = scene.resize["metadata"]
    assert meta["finalizers"] == ["example.com/mine", "resource.dra-gpu.dev/claim-resize"]
    assert meta["ownerReferences"][0] == other
    assert [one["kind"] for one in meta["ownerReferences"]] == ["ConfigMap", "ResourceClaim"]


def test_a_claim_that_does_not_come_is_looked_for_less_and_less_often_until_something_happens():
    scene = Scene(resized=False)
    scene.cluster.objects.clear()
    scene.cluster.put("claimresizes", a_resize("training", {}))
    looks = []
    for _ in range(7):
        scene.controller()
        looks.append(scene.replica.again)
    assert looks == [5, 5, 10, 20, 40, 60, 60]

    scene.cluster.put("resourceclaims", a_claim("training"))
    scene.controller()
    assert scene.replica.again == 5
