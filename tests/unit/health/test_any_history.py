"""Whatever is reported in whatever order: what must always hold, and what a far simpler reckoning says of it."""

from dataclasses import dataclass
from datetime import timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dra_gpu.health.faults import FaultKind, GpuFaults
from dra_gpu.health.policy import DOUBTFUL_LOOKS, HealthPolicy
from dra_gpu.health.recovery import RecoveryRules
from dra_gpu.health.state import Effect, Verdict
from dra_gpu.health.tainting import MAX_TAINTS
from dra_gpu.health.verdicts import MAX_REASON, Evict, told
from dra_gpu.health.xids import Severity, XidRules
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.vendors.health import HealthEvent, HealthEventKind, HealthProbe, RecoveryAction
from tests.unit.health.reports import BOOT, DRIVER, GPU, after

HOLD_OFF = 600
PLACES = [MigPlacement(0, start, 1) for start in range(3)]
XIDS = st.sampled_from((13, 31, 43, 45, 48, 79, 94, 95, 119, 154, 999))
LOST_XID = 79
BAD = (
    ("lost", {"lost": True, "recovery_action": None}),
    ("problem", {"problem": "rows failed"}),
    ("fabric", {"fabric_problem": "routes"}),
    ("action", {"recovery_action": RecoveryAction.RESET}),
    ("action", {"recovery_action": RecoveryAction.DRAIN_AND_RESET}),
)
SERIOUS = {xid for xid in range(1, 1000) if (XidRules().severity(xid) or 0) > Severity.NOTICE}


@dataclass
class Trouble:
    """One kind of thing that is wrong.

    Attributes:
        last: when it last happened.
        settled: a look has followed, so that a reset which is noticed from now on came later.
        reset: the GPU has been reset since.
    """

    last: float
    settled: bool
    reset: bool = False


class GpuHistory(RuleBasedStateMachine):
    """One GPU, and beside it a reckoning of what is wrong and whether it was reset since."""

    def __init__(self):
        super().__init__()
        self.policy = HealthPolicy(recovery=RecoveryRules(hold_off=timedelta(seconds=HOLD_OFF)))
        self.faults = GpuFaults(GPU)
        self.time = 0.0
        self.boot = BOOT
        self.resets, self.noticed = 0, None  # a first look has nothing to compare with
        self.gone = False
        self.doubtful = 0
        self.troubles = {}
        self.well_for_sure = False
        self.evict = Evict.NEVER

    def wrong(self, what, *, settled):
        self.troubles[what] = Trouble(self.time, settled)
        self.well_for_sure = False

    def looked(self, *, found=True, current=True, doubtful=False):
        """Reckon with a look: it notices resets, and that a GPU is back, which nothing but a reset brings about."""
        if self.noticed not in (None, self.resets) or (self.gone and found):
            for trouble in self.troubles.values():
                trouble.reset = trouble.reset or trouble.settled
        if current:
            for trouble in self.troubles.values():
                trouble.settled = True
        self.noticed, self.gone = self.resets, not found
        self.doubtful = self.doubtful + 1 if doubtful else 0

    @rule(seconds=st.floats(0, 900))
    def time_passes(self, seconds):
        self.time += seconds
        self.well_for_sure = False

    @rule(number=XIDS)
    def an_xid_of_the_gpu(self, number):
        event = HealthEvent(GPU, HealthEventKind.XID, number)
        self.faults = self.policy.happened(self.faults, event, None, after(self.time))
        if number in SERIOUS:
            self.wrong("xid", settled=number == LOST_XID)

    @rule(number=XIDS, place=st.sampled_from(PLACES), instance=st.integers(1, 3))
    def an_xid_of_an_instance(self, number, place, instance):
        event = HealthEvent(GPU, HealthEventKind.XID, number, instance, 0)
        self.faults = self.policy.happened(self.faults, event, place, after(self.time))
        if number == LOST_XID:
            self.wrong("xid", settled=True)

    @rule(kind=st.sampled_from((HealthEventKind.ECC, HealthEventKind.RECOVERY_ACTION, HealthEventKind.LOST)))
    def something_else(self, kind):
        self.faults = self.policy.happened(self.faults, HealthEvent(GPU, kind), None, after(self.time))
        if kind is HealthEventKind.LOST:
            self.wrong("lost", settled=True)

    @rule()
    def it_is_reset(self):
        self.resets += 1

    @rule()
    def the_node_is_rebooted(self):
        self.boot = f"{self.boot}+"
        self.resets += 1

    @rule()
    def a_good_look(self):
        probe = HealthProbe(GPU, recovery_action=RecoveryAction.NONE, reset_mark=str(self.resets))
        self.faults = self.policy.looked(self.faults, probe, self.boot, after(self.time), current=True)
        self.looked()
        left = {what: one for what, one in self.troubles.items() if not one.reset}
        if all(self.time - one.last >= HOLD_OFF for one in left.values()):
            left = {}
        if not self.faults.whole.stays:
            self.troubles, self.well_for_sure = left, not left

    @rule(fact=st.sampled_from(BAD))
    def a_bad_look(self, fact):
        what, facts = fact
        probe = HealthProbe(**{"gpu": GPU, "reset_mark": str(self.resets), **facts})
        self.faults = self.policy.looked(self.faults, probe, self.boot, after(self.time), current=True)
        self.looked(found=what != "lost", doubtful=what == "problem")
        if what != "problem" or self.doubtful >= DOUBTFUL_LOOKS:
            self.wrong(what, settled=True)
        self.well_for_sure = False

    @rule()
    def a_look_that_began_before_something_serious(self):
        probe = HealthProbe(GPU, recovery_action=RecoveryAction.NONE, reset_mark=str(self.resets))
        sick = self.faults.whole.serious
        self.faults = self.policy.looked(self.faults, probe, self.boot, after(self.time), current=False)
        assert {one.kind for one in sick} == {one.kind for one in self.faults.whole.serious}
        self.looked(current=False)

    @rule()
    def the_plugin_restarts(self):
        self.faults = msgspec.json.decode(msgspec.json.encode(self.faults), type=GpuFaults)

    @rule(by_events=st.booleans())
    def its_events_are_seen_or_not(self, by_events):
        self.faults = self.policy.monitored(self.faults, after(self.time), by_events=by_events)

    @rule(place=st.sampled_from(PLACES))
    def an_instance_is_destroyed(self, place):
        self.faults = self.policy.without_instance(self.faults, place)
        assert place not in told(self.faults, DRIVER, self.evict).partitions

    @rule(evict=st.sampled_from(Evict))
    def the_operator_chooses(self, evict):
        self.evict = evict

    @precondition(lambda self: self.faults.whole.stays)
    @rule()
    def a_person_clears_it(self):
        self.faults = self.policy.cleared(self.faults, after(self.time))
        self.troubles = {}
        assert not self.faults.whole.serious

    @invariant()
    def a_serious_error_is_never_forgotten_too_early(self):
        if any(not one.reset and self.time - one.last < HOLD_OFF for one in self.troubles.values()):
            assert told(self.faults, DRIVER, self.evict).whole.verdict is Verdict.UNHEALTHY

    @invariant()
    def a_good_look_when_it_is_time_makes_it_well(self):
        if self.well_for_sure:
            assert not self.faults.whole.serious

    @invariant()
    def what_is_told_fits_into_the_api_and_is_what_is_known(self):
        health = told(self.faults, DRIVER, self.evict)
        for part in (health.whole, *(health.of(place) for place in PLACES)):
            keys = [taint.key for taint in part.taints]
            assert len(keys) == len(set(keys)) <= MAX_TAINTS
            assert all(taint.added.microsecond == 0 for taint in part.taints)
            serious = any(taint.effect is not Effect.NONE for taint in part.taints)
            assert serious == (part.verdict is Verdict.UNHEALTHY)
            assert bool(part.reason) == bool(part.taints)
            assert len(part.reason.encode()) <= MAX_REASON
            if self.evict is Evict.NEVER:
                assert all(taint.effect is not Effect.NO_EXECUTE for taint in part.taints)

    @invariant()
    def whole_and_partitions_go_together(self):
        health = told(self.faults, DRIVER, self.evict)
        if health.whole.verdict is Verdict.UNHEALTHY:
            assert all(health.of(place).verdict is Verdict.UNHEALTHY for place in PLACES)

    @invariant()
    def what_is_remembered_is_bounded(self):
        parts = [self.faults.whole, *(one.part for one in self.faults.instances)]
        assert len(parts) <= 1 + len(PLACES)
        for part in parts:
            assert len(part.faults) <= len(FaultKind)
            assert len(part.relapses) <= 3


GpuHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnyHistory = GpuHistory.TestCase
