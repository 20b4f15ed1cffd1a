"""Whatever happens in between, nothing is promised twice, and everything ends clean."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dra_gpu.inventory.amounts import Amounts
from tests.unit.controller.resizes.cluster import GIBI, HARDWARE, Cluster, a_claim, a_pod, a_resize
from tests.unit.controller.resizes.driving import Replica
from tests.unit.controller.resizes.node import Node

CAPACITIES = st.fixed_dictionaries(
    {},
    optional={"computePercent": st.sampled_from([5, 20, 40, 60]), "memory": st.sampled_from(["5Gi", "20Gi", "60Gi"])},
)


class Resizing(RuleBasedStateMachine):
    """One claim that is resized by two controllers, one of which does not know yet that it leads no more."""

    @initialize(percent=st.sampled_from([20, 40]), capacity=CAPACITIES)
    def begin(self, percent, capacity):
        self.cluster = Cluster()
        self.allocated = Amounts(percent, percent * GIBI, 8, 0)
        pod = self.cluster.put("pods", a_pod("train"))
        self.cluster.put("resourceclaims", a_claim("training"))
        self.user = {"resource": "pods", "name": "train", "uid": pod["metadata"]["uid"]}
        self.cluster.allocate("training", self.allocated, [self.user])
        self.cluster.put("claimresizes", a_resize("training", capacity))
        self.node = Node(self.cluster)
        self.replicas = [Replica(self.cluster), Replica(self.cluster)]
        self.others = 0
        self.unsafe = False

    # The controllers

    @rule(which=st.integers(0, 1))
    def hear(self, which):
        self.replicas[which].hear()

    @rule(which=st.integers(0, 1), calls=st.integers(1, 6))
    def work(self, which, calls):
        for _ in range(calls):
            if not self.replicas[which].advance():
                break

    @rule(which=st.integers(0, 1))
    def look(self, which):
        self.replicas[which].hear()
        self.replicas[which].look()

    @rule(which=st.integers(0, 1))
    def die(self, which):
        self.replicas[which].die()

    # The node

    @rule(most=st.integers(1, 5))
    def read(self, most):
        self.node.read(most)
        self.node.act()

    @rule()
    def report(self):
        self.node.act()
        self.node.report()

    @rule(stubborn=st.booleans())
    def processes(self, stubborn):
        self.node.stubborn = stubborn

    # The cluster

    @rule()
    def schedule(self):
        self.cluster.schedule()

    @rule()
    def tidy(self):
        self.cluster.tidy()

    @rule(percent=st.sampled_from([1, 10, 30]))
    def somebody_comes(self, percent):
        wanted = Amounts(percent, percent * GIBI, 1, 0)
        if self.others < 8 and (self.cluster.taken() + wanted).within(self.cluster.published):
            self.others += 1
            name = f"other-{self.others}"
            pod = self.cluster.put("pods", a_pod(name))
            self.cluster.put("resourceclaims", a_claim(name))
            user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
            self.cluster.allocate(name, wanted, [user], share=name)

    @rule()
    def everybody_else_leaves(self):
        for number in range(1, self.others + 1):
            if ("pods", f"other-{number}") in self.cluster.objects:
                self.cluster.remove("pods", f"other-{number}")

    @rule(reason=st.sampled_from(["", "exceeded quota"]))
    def quota(self, reason):
        self.cluster.refused = reason

    # The user

    @precondition(lambda self: ("claimresizes", "training") in self.cluster.objects)
    @rule(capacity=CAPACITIES)
    def wish(self, capacity):
        self.cluster.wish("training", capacity)

    @precondition(lambda self: ("claimresizes", "training") not in self.cluster.objects)
    @rule(capacity=CAPACITIES)
    def wish_again(self, capacity):
        self.cluster.put("claimresizes", a_resize("training", capacity))

    @precondition(lambda self: ("claimresizes", "training") in self.cluster.objects)
    @rule()
    def delete(self):
        self.cluster.remove("claimresizes", "training")

    @rule()
    def a_placeholder_is_deleted(self):
        for plural, name in list(self.cluster.objects):
            if plural == "pods" and "-grow-" in name:
                self.cluster.remove(plural, name)

    @precondition(lambda self: ("pods", "train") in self.cluster.objects)
    @rule()
    def the_pod_is_forced_away(self):
        self.cluster.remove("pods", "train")

    @precondition(lambda self: ("pods", "train") not in self.cluster.objects)
    @rule()
    def it_is_unprepared(self):
        self.node.prepared = False

    # What holds

    @invariant()
    def nothing_is_promised_twice(self):
        if not hasattr(self, "node") or self.node.journal is None or not self.of_the_claim(self.node.journal):
            return
        journal = self.node.journal
        has = self.cluster.allocated("training")
        granted = sum((self.cluster.allocated(name) for name in self.cluster.growths()), has)
        # A claim that gave nothing back may be freed while its pod is ending: Prepare judges then.
        if journal.given_back or has:
            limit = journal.limit if self.node.prepared else Amounts()
            assert (limit + journal.given_back).within(granted), (journal, granted)

    def of_the_claim(self, journal):
        claim = self.cluster.objects.get(("resourceclaims", "training"))
        return claim is not None and claim["metadata"]["uid"] == journal.claim

    def settle(self, rounds=60):
        """Let everything run until nothing changes."""
        for _ in range(rounds):
            before = str(self.cluster.objects)
            for replica in self.replicas[:1]:
                replica.hear()
                replica.look()
                self.nothing_is_promised_twice()
            self.node.read(100)
            self.node.act()
            self.node.report()
            self.cluster.schedule()
            self.cluster.tidy()
            self.nothing_is_promised_twice()
            if str(self.cluster.objects) == before:
                return
        raise AssertionError("it does not come to rest")

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        for replica in self.replicas:
            replica.die()
        self.cluster.refused = ""
        self.node.stubborn = False
        self.everybody_else_leaves()
        if ("pods", "train") not in self.cluster.objects:
            self.node.prepared = False
        self.settle()
        if ("claimresizes", "training") in self.cluster.objects:
            self.cluster.remove("claimresizes", "training")
        self.settle()

        assert ("claimresizes", "training") not in self.cluster.objects
        assert self.cluster.growths() == []
        assert [name for plural, name in self.cluster.objects if plural == "pods" and "-grow-" in name] == []
        claim = self.cluster.objects.get(("resourceclaims", "training"))
        users = claim.get("status", {}).get("reservedFor", []) if claim is not None else []
        assert users in ([], [self.user])
        assert self.cluster.published == HARDWARE
        journal = self.node.journal
        if journal is not None and self.node.prepared and self.of_the_claim(journal):
            assert journal.limit == self.allocated


TestResizing = Resizing.TestCase
TestResizing.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
