"""Whatever is reported in whatever order: what must always hold, and what a far simpler reckoning says of it."""

from datetime import timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dra_gpu.health.faults import FaultKind, GpuFaults
from dra_gpu.health.policy import HealthPolicy
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
SERIOUS = {xid for xid in range(1, 1000) if (XidRules().severity(xid) or 0) > Severity.NOTICE}


class GpuHistory(RuleBasedStateMachine):
    """One GPU. What is remembered beside it: when something serious last happened, and whether it was reset since."""

    def __init__(self):
        super().__init__()
        self.policy = HealthPolicy(recovery=RecoveryRules(hold_off=timedelta(seconds=HOLD_OFF)))
        self.faults = GpuFaults(GPU)
        self.time = 0.0
        self.resets = 0
        self.boot = BOOT
        self.last_serious = None  # of the GPU as a whole
        self.reset_since = False
        self.looked_since_event = True
        self.evict = Evict.NEVER
        self.well_for_sure = False

    def serious(self):
        self.last_serious, self.reset_since, self.well_for_sure = self.time, False, False

    @rule(seconds=st.floats(0, 900))
    def time_passes(self, seconds):
        self.time += seconds
        self.well_for_sure = False

    @rule(number=XIDS)
    def an_xid_of_the_gpu(self, number):
        self.faults = self.policy.happened(
            self.faults, HealthEvent(GPU, HealthEventKind.XID, number), None, after(self.time)
        )
        if number in SERIOUS:
            self.serious()
            self.looked_since_event = False

    @rule(number=XIDS, place=st.sampled_from(PLACES), instance=st.integers(1, 3))
    def an_xid_of_an_instance(self, number, place, instance):
        event = HealthEvent(GPU, HealthEventKind.XID, number, instance, 0)
        self.faults = self.policy.happened(self.faults, event, place, after(self.time))
        if XidRules().severity(number) is Severity.LOST:
            self.serious()
            self.looked_since_event = False

    @rule(kind=st.sampled_from((HealthEventKind.ECC, HealthEventKind.RECOVERY_ACTION, HealthEventKind.LOST)))
    def something_else(self, kind):
        self.faults = self.policy.happened(self.faults, HealthEvent(GPU, kind), None, after(self.time))
        if kind is HealthEventKind.LOST:
            self.serious()
            self.looked_since_event = False

    @rule()
    def it_is_reset(self):
        self.resets += 1
        if self.looked_since_event:
            self.reset_since = True

    @rule()
    def the_node_is_rebooted(self):
        self.boot = f"{self.boot}+"
        self.resets += 1
        if self.looked_since_event:
            self.reset_since = True

    @rule()
    def a_good_look(self):
        probe = HealthProbe(GPU, recovery_action=RecoveryAction.NONE, reset_mark=str(self.resets))
        self.faults = self.policy.looked(self.faults, probe, self.boot, after(self.time), current=True)
        self.looked_since_event = True
        due = self.last_serious is None or self.reset_since or self.time - self.last_serious >= HOLD_OFF
        if due and not self.faults.whole.stays:
            self.last_serious, self.well_for_sure = None, True

    @rule(
        facts=st.sampled_from(
            (
                {"lost": True, "recovery_action": None},
                {"problem": "rows failed"},
                {"fabric_problem": "routes"},
                {"recovery_action": RecoveryAction.RESET},
                {"recovery_action": RecoveryAction.DRAIN_AND_RESET},
            )
        )
    )
    def a_bad_look(self, facts):
        probe = HealthProbe(**{"gpu": GPU, "reset_mark": str(self.resets), **facts})
        self.faults = self.policy.looked(self.faults, probe, self.boot, after(self.time), current=True)
        self.looked_since_event = True
        self.serious()

    @rule()
    def a_look_that_began_before_something_serious(self):
        probe = HealthProbe(GPU, recovery_action=RecoveryAction.NONE, reset_mark=str(self.resets))
        sick = self.faults.whole.serious
        self.faults = self.policy.looked(self.faults, probe, self.boot, after(self.time), current=False)
        assert {one.kind for one in sick} == {one.kind for one in self.faults.whole.serious}

    @rule()
    def the_plugin_restarts(self):
        # As the file has it; the first look afterwards takes every reset for one that came later.
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
        self.last_serious = None
        assert not self.faults.whole.serious

    @invariant()
    def a_serious_error_is_never_forgotten_too_early(self):
        due = self.last_serious is None or self.reset_since or self.time - self.last_serious >= HOLD_OFF
        if not due:
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
