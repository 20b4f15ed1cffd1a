"""A node plugin as the protocol allows one: it reads old objects, answers late, and never does more than it may."""

import copy
from dataclasses import dataclass, field, replace

from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts
from tests.unit.controller.resizes.cluster import DEVICE, HARDWARE, NODE, Cluster

NOTHING = Amounts()


@dataclass(frozen=True)
class Journal:
    """What the node remembers of one share of a claim."""

    claim: str
    allocated: Amounts
    limit: Amounts
    given_back: Amounts = NOTHING
    offered: Amounts = NOTHING
    round: int = 0
    released_round: int = 0
    object: str = ""
    permit: int = 0
    permitted: Amounts = NOTHING


@dataclass
class Node:
    """One share of one claim at a time."""

    cluster: Cluster
    journal: Journal | None = None
    prepared: bool = True
    stubborn: bool = False  # its processes hold what they have
    seen: int = 0  # how much of the history it has read
    resize: dict | None = None
    said: dict = field(default_factory=dict)

    def read(self, most: int = 1) -> None:
        """Read on; never back."""
        for one in self.cluster.history[self.seen : self.seen + most]:
            self.seen += 1
            self.resize = None if one.get("gone") else one

    def act(self) -> None:
        """Do all that can be done with what was read."""
        for _ in range(20):
            before = self.journal
            self._step()
            self._publish()
            if self.journal == before:
                return

    def report(self) -> None:
        """Say how it is; the server merges it into whatever object there is."""
        there = self.cluster.objects.get(("claimresizes", "training"))
        if there is None or self.journal is None or self._status() is None:
            return
        if self.resize is None or there["metadata"]["uid"] != self.resize["metadata"]["uid"]:
            return
        one, journal = there, self.journal
        before = copy.deepcopy(one)
        status = one.setdefault("status", {})
        goal = self._goal()
        status["node"] = {
            "claimUid": journal.claim,
            "observedGeneration": self._status().get("observedGeneration", 0),
            "permit": journal.permit,
            "permitted": journal.permitted.wire(zeros=True),
            "inForce": journal.limit.wire(zeros=True),
            "giveBack": goal.wire(zeros=True),
            "givenBack": journal.given_back.wire(zeros=True),
            "round": journal.round,
            "releasedRound": journal.released_round,
            "prepared": self.prepared,
        }
        self.cluster._stored("claimresizes", one, before)

    # What the protocol says

    def _status(self) -> dict | None:
        status = (self.resize or {}).get("status", {})
        target = status.get("target")
        if target is None or target["device"] != DEVICE or status.get("nodeName") != NODE:
            return None
        return status

    def _step(self) -> None:
        status = self._status()
        if status is None:
            self._return()
            return
        target, journal = status["target"], self.journal
        if journal is None or (journal.claim != target["claimUid"] and not journal.offered):
            allocated = amounts.parse(status["allocated"])
            journal = self.journal = Journal(target["claimUid"], allocated, allocated)
        if journal.claim != target["claimUid"]:
            return
        uid = self.resize["metadata"]["uid"]
        if journal.object != uid:
            journal = replace(journal, object=uid, permit=0, permitted=NOTHING)
        permitted, permit = amounts.parse(status["permitted"]), status["permit"]
        wanted = amounts.parse(status["wanted"]).at_most(permitted)
        if permit < journal.permit:
            return
        limit = journal.limit
        if not (self.stubborn and self.prepared):
            limit = limit.at_most(wanted)
        raised = wanted.at_most(permitted - journal.given_back)
        self.journal = journal = replace(journal, limit=limit.at_least(raised))
        goal = self._goal()
        less = journal.offered.at_most(goal)
        journal = replace(journal, offered=less, given_back=less)  # the server has it before anything else is done
        if goal != journal.offered:
            journal = self._offer(journal, goal, status)
        if not goal and not journal.offered:
            journal = replace(journal, released_round=journal.round)
        if (journal.limit + journal.given_back).within(permitted):
            journal = replace(journal, permit=permit, permitted=permitted)
        self.journal = journal

    def _return(self) -> None:
        """Go back to what was allocated where no object asks for less, and nothing is published."""
        journal = self.journal
        if journal is not None and self.prepared and not (journal.given_back or journal.offered):
            self.journal = replace(journal, limit=journal.limit.at_least(journal.allocated))

    @staticmethod
    def _offer(journal: Journal, goal: Amounts, status: dict) -> Journal:
        if journal.round == journal.released_round:
            journal = replace(journal, round=journal.round + 1)
        told = status.get("node", {})
        known = (
            told.get("claimUid") == journal.claim
            and status.get("reservedRound") == told.get("round") == journal.round
            and (amounts.parse(told["inForce"]) + goal).within(amounts.parse(status["permitted"]))
            and goal.within(amounts.parse(told["giveBack"]))
        )
        return replace(journal, offered=goal, given_back=goal) if known else journal

    def _goal(self) -> Amounts:
        status, journal = self._status(), self.journal
        if not self.prepared or status is None or journal is None:
            return NOTHING
        return (amounts.parse(status["permitted"]) - journal.limit).at_least(NOTHING)

    def _publish(self) -> None:
        self.cluster.published = HARDWARE + (self.journal.offered if self.journal is not None else NOTHING)
