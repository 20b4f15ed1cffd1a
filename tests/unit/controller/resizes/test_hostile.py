"""Somebody with all rights to claims, pods and resizes of a namespace: nothing is promised twice, and all ends clean.

What he cannot do is told by policies: give a claim the label of a growth, or take it off, and write a status.
"""

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.unit.controller.resizes.cluster import a_claim, a_pod, a_resize
from tests.unit.controller.resizes.test_protocol import Resizing


class Hostile(Resizing):
    """The same as everywhere, and somebody who takes off what holds it together."""

    def has(self, plural, name):
        return (plural, name) in self.cluster.objects

    def change(self, plural, name, **metadata):
        one = self.cluster.objects[plural, name]
        before = copy.deepcopy(one)
        one["metadata"] |= metadata
        self.cluster._stored(plural, one, before)

    @precondition(lambda self: self.has("claimresizes", "training"))
    @rule()
    def a_resize_is_removed_by_force(self):
        self.cluster.force_out("training")

    @precondition(lambda self: self.has("claimresizes", "training"))
    @rule(capacity=st.sampled_from([{"computePercent": 5}, {"memory": "5Gi"}]))
    def a_resize_is_replaced_by_force(self, capacity):
        self.cluster.force_out("training")
        self.cluster.put("claimresizes", a_resize("training", capacity))

    @precondition(lambda self: self.has("claimresizes", "training"))
    @rule(what=st.sampled_from(["ownerReferences", "finalizers"]))
    def a_resize_loses(self, what):
        self.change("claimresizes", "training", **{what: []})

    @rule()
    def growths_are_deleted(self):
        for name in self.cluster.growths():
            self.cluster.remove("resourceclaims", name)

    @rule()
    def growths_are_used_by_a_pod(self):
        for name in self.cluster.growths():
            one = self.cluster.objects["resourceclaims", name]
            if not one.get("status", {}).get("allocation") or "deletionTimestamp" in one["metadata"]:
                continue
            if not self.has("pods", "thief"):
                self.cluster.put("pods", a_pod("thief"))
            uid = self.cluster.objects["pods", "thief"]["metadata"]["uid"]
            before, users = copy.deepcopy(one), one["status"].setdefault("reservedFor", [])
            if all(user["uid"] != uid for user in users):
                users.append({"resource": "pods", "name": "thief", "uid": uid})
                self.cluster._stored("resourceclaims", one, before)

    @precondition(lambda self: self.has("pods", "thief"))
    @rule()
    def the_thief_goes(self):
        self.cluster.remove("pods", "thief")

    @precondition(lambda self: self.has("resourceclaims", "training"))
    @rule()
    def the_claim_is_deleted(self):
        self.cluster.remove("resourceclaims", "training")

    @precondition(lambda self: not self.has("resourceclaims", "training") and not self.node.prepared)
    @rule()
    def another_claim_has_its_name(self):
        if (self.cluster.taken() + self.allocated).within(self.cluster.published):
            pod = self.cluster.put("pods", a_pod("train"))
            self.cluster.put("resourceclaims", a_claim("training"))
            self.user = {"resource": "pods", "name": "train", "uid": pod["metadata"]["uid"]}
            self.cluster.allocate("training", self.allocated, [self.user], share="another")
            self.node.prepared = True

    def teardown(self):
        if hasattr(self, "cluster"):
            claim = self.cluster.objects.get(("resourceclaims", "training"))
            ends = claim is not None and "deletionTimestamp" in claim["metadata"]
            for name in ("thief", "train") if ends else ("thief",):
                if self.has("pods", name):
                    self.cluster.remove("pods", name)
        super().teardown()


TestHostile = Hostile.TestCase
TestHostile.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
