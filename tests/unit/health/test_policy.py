"""What follows from what a vendor reports."""

import pytest

from dra_gpu.health.policy import HealthPolicy
from dra_gpu.health.state import Verdict
from dra_gpu.health.verdicts import Evict
from dra_gpu.health.xids import XidRules, rules
from dra_gpu.vendors.health import HealthEvent, HealthEventKind, RecoveryAction
from tests.unit.health.reports import GPU, OTHER, SMALL, Gpu, after, lost, xid


def test_a_gpu_is_unknown_until_it_was_looked_at_and_then_healthy():
    gpu = Gpu()
    assert gpu.told.whole.verdict is Verdict.UNKNOWN

    gpu.looks(1)

    assert gpu.told.whole.verdict is Verdict.HEALTHY
    assert gpu.told.whole.since == after(1)
    assert gpu.taints() == {}


def test_a_fatal_xid_keeps_new_claims_away_and_evicts_nobody():
    gpu = Gpu()

    gpu.happens(xid(95), at=1)

    assert gpu.told.whole.verdict is Verdict.UNHEALTHY
    assert gpu.taints() == {"xid": ("95", "NoSchedule")}
    assert "XID 95 (Uncontained memory error): reset the GPU" in gpu.told.whole.reason


@pytest.mark.migration("Taints of sick GPUs")
@pytest.mark.case("C101")
def test_a_harmless_xid_after_a_fatal_one_changes_nothing():
    gpu = Gpu()
    gpu.happens(xid(79), at=1)
    first = gpu.told.whole.taints

    for at, number in ((2, 43), (3, 79), (4, 31)):
        gpu.happens(xid(number), at)
        assert gpu.told.whole.verdict is Verdict.UNHEALTHY

    assert gpu.taints() == {"xid": ("79", "NoSchedule"), "xid-notice": ("31", "None")}
    assert first[0] in gpu.told.whole.taints, "with the time at which it came"


def test_a_graver_xid_replaces_a_lesser_one_and_a_lesser_one_never_a_graver():
    gpu = Gpu()

    gpu.happens(xid(999), at=1)
    gpu.happens(xid(95), at=2)
    assert gpu.taints() == {"xid": ("95", "NoSchedule")}
    gpu.happens(xid(48), at=3)

    assert gpu.taints() == {"xid": ("95", "NoSchedule")}, "the first of two as grave is the cause"
    assert gpu.told.whole.taints[0].added == after(2)


@pytest.mark.parametrize(
    ("evict", "effects"),
    [
        (Evict.NEVER, {94: "None", 999: "NoSchedule", 95: "NoSchedule", 79: "NoSchedule"}),
        (Evict.LOST, {94: "None", 999: "NoSchedule", 95: "NoSchedule", 79: "NoExecute"}),
        (Evict.FATAL, {94: "None", 999: "NoSchedule", 95: "NoExecute", 79: "NoExecute"}),
    ],
)
def test_who_is_evicted_is_the_operators_choice(evict, effects):
    found = {}
    for number in effects:
        gpu = Gpu(evict=evict)
        gpu.happens(xid(number), at=1)
        (effect,) = [effect for _, effect in gpu.taints().values()]
        found[number] = effect

    assert found == effects


def test_an_xid_that_the_operator_ignores_is_not_even_a_notice():
    gpu = Gpu(HealthPolicy(XidRules(rules("13=ignore,79=ignore"))))

    gpu.happens(xid(13), at=1)
    gpu.happens(xid(79), at=2)

    assert gpu.taints() == {}


def test_an_xid_that_the_operator_calls_fatal_is():
    gpu = Gpu(HealthPolicy(XidRules(rules("94=fatal"))))

    gpu.happens(xid(94), at=1)

    assert gpu.taints() == {"xid": ("94", "NoSchedule")}


def test_a_contained_error_is_a_notice_and_a_counted_memory_error_too():
    gpu = Gpu(evict=Evict.FATAL)
    gpu.looks(0)

    gpu.happens(xid(94), at=1)
    gpu.happens(HealthEvent(GPU, HealthEventKind.ECC, detail="2 errors"), at=1)

    assert gpu.told.whole.verdict is Verdict.HEALTHY
    assert gpu.taints() == {"xid-notice": ("94", "None"), "memory-error": ("", "None")}
    assert "2 errors" in gpu.told.whole.reason


def test_notices_of_a_failing_workload_do_not_rewrite_slices_again_and_again():
    gpu = Gpu()
    gpu.happens(xid(13), at=1)

    for at in range(2, 60):
        gpu.happens(xid(31 if at % 2 else 94), at)
        assert gpu.taints() == {"xid-notice": ("13", "None")}
    gpu.happens(xid(31), at=62)

    assert gpu.taints() == {"xid-notice": ("31", "None")}


def test_a_notice_fades_when_nothing_more_is_heard():
    gpu = Gpu()
    gpu.happens(xid(13), at=1)

    gpu.looks(600)
    assert "xid-notice" in gpu.taints()
    gpu.looks(602)

    assert gpu.taints() == {}


@pytest.mark.parametrize(
    ("action", "effect"),
    [
        (RecoveryAction.RESET, "NoExecute"),
        (RecoveryAction.REBOOT, "NoExecute"),
        (RecoveryAction.DRAIN_P2P, "NoSchedule"),
        (RecoveryAction.DRAIN_AND_RESET, "NoSchedule"),  # a drain is what the workloads end by themselves
        (RecoveryAction.RECOVER_IMEX, "NoSchedule"),
    ],
)
def test_what_the_driver_wants_done_decides_without_any_event(action, effect):
    gpu = Gpu(evict=Evict.FATAL)

    gpu.looks(1, recovery_action=action)

    assert gpu.taints() == {"recovery-action": (action.value, effect)}
    assert gpu.told.whole.verdict is Verdict.UNHEALTHY


def test_the_action_that_is_wanted_now_is_the_one_that_is_told():
    gpu = Gpu()

    gpu.looks(1, recovery_action=RecoveryAction.RESET)
    gpu.looks(2, recovery_action=RecoveryAction.DRAIN_AND_RESET)

    assert gpu.taints() == {"recovery-action": ("DrainAndReset", "NoSchedule")}


@pytest.mark.parametrize(
    ("facts", "taint"),
    [
        ({"lost": True}, "gpu-lost"),
        ({"fabric_problem": "unhealthy routes"}, "fabric-problem"),
    ],
)
def test_what_a_look_finds_wrong_keeps_new_claims_away(facts, taint):
    gpu = Gpu()

    gpu.looks(1, **facts)

    assert gpu.taints() == {taint: ("", "NoSchedule")}
    assert gpu.told.whole.verdict is Verdict.UNHEALTHY


@pytest.mark.parametrize(
    ("facts", "taint"),
    [
        ({"unresponsive": True, "recovery_action": None, "reset_mark": ""}, "unresponsive"),
        ({"problem": "memory rows failed"}, "hardware-problem"),
    ],
)
def test_one_look_that_did_not_go_well_may_be_a_busy_node_two_are_a_fault(facts, taint):
    gpu = Gpu()
    gpu.looks(1)

    gpu.looks(2, **facts)
    assert gpu.taints() == {}
    gpu.looks(3, **facts)

    assert gpu.taints() == {taint: ("", "NoSchedule")}
    assert gpu.told.whole.verdict is Verdict.UNHEALTHY


def test_a_lost_gpu_is_lost_from_the_event_on_until_a_look_finds_it():
    gpu = Gpu()

    assert gpu.happens(lost(), at=1).lost
    assert gpu.looks(2, lost=True, reset_mark="").lost
    assert gpu.looks(3, current=False).lost, "a look that began before the event proves nothing"
    assert not gpu.looks(4).lost


def test_a_recovery_action_that_changed_is_left_to_the_look():
    gpu = Gpu()

    gpu.happens(HealthEvent(GPU, HealthEventKind.RECOVERY_ACTION), at=1)

    assert gpu.taints() == {}


@pytest.mark.case("C103")
def test_a_sick_instance_is_sick_alone():
    gpu = Gpu()
    gpu.looks(0)

    gpu.happens(xid(95, gpu_instance=7), at=1, placement=SMALL)

    assert gpu.told.of(SMALL).verdict is Verdict.UNHEALTHY
    assert gpu.told.of(OTHER).verdict is Verdict.HEALTHY
    assert gpu.told.of(None).verdict is Verdict.HEALTHY


@pytest.mark.case("C103")
def test_partitions_are_as_sick_as_their_gpu():
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(xid(94, gpu_instance=7), at=1, placement=SMALL)

    gpu.happens(xid(95), at=2)

    for placement in (SMALL, OTHER, None):
        assert gpu.told.of(placement).verdict is Verdict.UNHEALTHY
    assert {taint.key.rpartition("/")[2] for taint in gpu.told.of(SMALL).taints} == {"xid", "xid-notice"}


def test_a_partition_has_one_taint_of_a_key_though_its_gpu_has_it_too():
    gpu = Gpu()
    gpu.happens(xid(48, gpu_instance=7), at=1, placement=SMALL)
    gpu.happens(xid(95), at=2)

    taints = gpu.told.of(SMALL).taints

    assert [(taint.key, taint.value) for taint in taints] == [("gpu.nvidia.com/xid", "95")]


def test_a_gpu_that_fell_off_the_bus_is_lost_as_a_whole_whichever_instance_noticed():
    gpu = Gpu()

    gpu.happens(xid(79, gpu_instance=7), at=1, placement=SMALL)

    assert gpu.told.whole.verdict is Verdict.UNHEALTHY
    assert gpu.told.partitions == {}


@pytest.mark.case("C103")
def test_the_next_instance_at_the_same_place_is_another_one():
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(xid(95, gpu_instance=7), at=1, placement=SMALL)

    gpu.faults = gpu.policy.without_instance(gpu.faults, SMALL)

    assert gpu.told.of(SMALL).verdict is Verdict.HEALTHY
    assert gpu.told.of(SMALL).taints == ()


def test_an_instance_with_another_id_at_the_same_place_does_not_inherit():
    gpu = Gpu()
    gpu.happens(xid(95, gpu_instance=7), at=1, placement=SMALL)

    gpu.happens(xid(94, gpu_instance=9), at=2, placement=SMALL)

    assert [taint.key for taint in gpu.told.of(SMALL).taints] == ["gpu.nvidia.com/xid-notice"]


def test_a_gpu_whose_events_are_not_seen_says_so_and_is_offered():
    gpu = Gpu()
    gpu.looks(0)

    gpu.faults = gpu.policy.monitored(gpu.faults, after(1), by_events=False)
    assert gpu.taints() == {"unmonitored": ("", "None")}
    assert gpu.told.whole.verdict is Verdict.HEALTHY
    gpu.looks(5000)
    assert "unmonitored" in gpu.taints(), "it does not fade"
    gpu.faults = gpu.policy.monitored(gpu.faults, after(5001), by_events=True)

    assert gpu.taints() == {}
