"""When a GPU is well again."""

from dra_gpu.health.state import Verdict
from dra_gpu.vendors.health import RecoveryAction
from tests.unit.health.reports import SMALL, Gpu, after, lost, xid

HOUR = 3600


def sick_gpu(at=0):
    gpu = Gpu()
    gpu.looks(at)
    gpu.happens(xid(95), at + 1)
    return gpu


def is_well(gpu):
    return gpu.told.whole.verdict is Verdict.HEALTHY and not gpu.taints()


def test_at_once_when_it_was_reset_and_the_driver_wants_nothing_more():
    gpu = sick_gpu()
    gpu.looks(2)
    assert not is_well(gpu)

    gpu.looks(3, reset_mark="b")

    assert is_well(gpu)
    assert gpu.told.whole.since == after(3)


def test_not_by_a_reset_after_which_the_driver_wants_another_one():
    gpu = sick_gpu()
    gpu.looks(2)

    gpu.looks(3, reset_mark="b", recovery_action=RecoveryAction.RESET)
    assert not is_well(gpu)
    gpu.looks(4, reset_mark="b")

    assert not is_well(gpu), "that nothing is wanted any more without another reset is no proof"
    gpu.looks(5, reset_mark="c")
    assert is_well(gpu)


def test_by_a_reset_also_on_a_driver_that_tells_no_action():
    gpu = sick_gpu()
    gpu.looks(2, recovery_action=None)

    gpu.looks(3, recovery_action=None, reset_mark="b")

    assert is_well(gpu)


def test_a_reset_is_noticed_by_a_counter_that_starts_anew():
    gpu = Gpu()
    gpu.looks(0, reset_mark="", counter=100)
    gpu.happens(xid(95), at=1)
    gpu.looks(2, reset_mark="", counter=110)
    gpu.looks(3, reset_mark="", counter=900)

    gpu.looks(4, reset_mark="", counter=300)

    assert is_well(gpu), "it may have grown beyond where it was at the error"


def test_a_reboot_is_a_reset():
    gpu = sick_gpu()
    gpu.looks(2, reset_mark="")

    gpu.boot = "boot-2"
    gpu.looks(3, reset_mark="")

    assert is_well(gpu)


def test_a_reset_before_the_error_is_none_after_it():
    gpu = Gpu()
    gpu.looks(0, reset_mark="a")  # and then somebody resets it, and it fails before the next look
    gpu.happens(xid(95), at=1)

    gpu.looks(2, reset_mark="b")
    assert not is_well(gpu)
    gpu.looks(3, reset_mark="c")

    assert is_well(gpu)


def test_after_the_hold_off_without_a_reset():
    gpu = sick_gpu(at=0)

    gpu.looks(600)
    assert not is_well(gpu)
    gpu.looks(602)

    assert is_well(gpu)


def test_each_serious_error_begins_the_hold_off_anew():
    gpu = sick_gpu()
    gpu.happens(xid(95), at=500)

    gpu.looks(700)
    assert not is_well(gpu)
    gpu.looks(1101)

    assert is_well(gpu)


def test_a_harmless_error_does_not_prolong_it():
    gpu = sick_gpu()
    gpu.happens(xid(31), at=500)

    gpu.looks(602)

    assert gpu.told.whole.verdict is Verdict.HEALTHY


def test_only_a_good_look_ends_it():
    gpu = sick_gpu()

    gpu.looks(700, fabric_problem="unhealthy routes")
    gpu.looks(1000)
    assert not is_well(gpu), "what the look found begins a hold-off of its own"
    gpu.looks(1301)

    assert is_well(gpu)


def test_no_look_that_began_before_an_error_ends_it():
    gpu = sick_gpu()

    gpu.looks(5000, current=False, reset_mark="b")

    assert not is_well(gpu)


def test_a_lost_gpu_that_comes_back_is_well_at_once():
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(xid(79), at=1)
    gpu.happens(lost(), at=1)
    gpu.looks(2, lost=True, reset_mark="", recovery_action=None)
    gpu.looks(7, lost=True, reset_mark="", recovery_action=None)

    gpu.looks(12, reset_mark="b")

    assert is_well(gpu)


def test_a_lost_gpu_that_comes_back_was_reset_whatever_its_marks_say():
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(lost(), at=1)
    gpu.looks(2)
    assert not is_well(gpu), "a look that finds it proves that it was not gone"
    gpu.looks(3, lost=True)
    gpu.looks(4, unresponsive=True)

    gpu.looks(5)

    assert is_well(gpu)


def test_that_a_gpu_is_lost_may_be_reported_after_a_look_has_found_it():
    gpu = Gpu()
    gpu.looks(0)
    gpu.looks(1, lost=True)
    gpu.happens(lost(), at=2)
    gpu.happens(xid(79), at=2)

    gpu.looks(3)

    assert is_well(gpu)


def test_a_gpu_that_was_lost_and_reset_between_two_looks_is_well():
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(lost(), at=1)

    gpu.looks(2, reset_mark="b")

    assert is_well(gpu)


def test_an_error_that_is_reported_when_it_may_be_back_is_not_forgotten():
    gpu = Gpu()
    gpu.looks(0)
    gpu.looks(1, lost=True)
    gpu.happens(xid(95), at=2)

    gpu.looks(3)

    assert not is_well(gpu)


def test_an_instance_recovers_as_its_gpu_does():
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(xid(95, gpu_instance=7), at=1, placement=SMALL)
    gpu.looks(2)
    assert gpu.told.of(SMALL).verdict is Verdict.UNHEALTHY

    gpu.looks(3, reset_mark="b")

    assert gpu.told.of(SMALL).verdict is Verdict.HEALTHY


def relapsed(times, gap=10):
    """Return a GPU that became sick again so often, each time after a reset, and the time."""
    gpu = sick_gpu()
    at = 2
    for number in range(times):
        gpu.looks(at)
        gpu.looks(at + 1, reset_mark=f"reset {number}")
        assert is_well(gpu)
        gpu.happens(xid(95), at + gap)
        at += gap + 1
    return gpu, at


def test_two_relapses_are_forgiven():
    gpu, at = relapsed(2)
    assert gpu.told.whole.relapses == 2

    gpu.looks(at)
    gpu.looks(at + 1, reset_mark="z")

    assert is_well(gpu)


def test_the_third_relapse_within_an_hour_stays_whatever_is_reset_until_a_person_clears_it():
    gpu, at = relapsed(3)

    assert gpu.told.whole.stays
    assert "until a person clears it" in gpu.told.whole.reason
    gpu.looks(at)
    gpu.looks(at + 1, reset_mark="z")
    gpu.looks(at + 10 * HOUR, reset_mark="y")
    gpu.boot = "boot-2"
    gpu.looks(at + 11 * HOUR)
    assert gpu.told.whole.verdict is Verdict.UNHEALTHY
    gpu.faults = gpu.policy.cleared(gpu.faults, after(at + 12 * HOUR))

    assert is_well(gpu)
    assert not gpu.told.whole.stays
    assert gpu.told.whole.relapses == 0


def test_what_is_still_wrong_when_a_person_clears_it_is_found_again():
    gpu = Gpu()
    gpu.looks(0, lost=True, reset_mark="")
    gpu.faults = gpu.policy.cleared(gpu.faults, after(1))
    assert not gpu.told.lost

    gpu.looks(2, lost=True, reset_mark="")

    assert gpu.told.whole.verdict is Verdict.UNHEALTHY
    assert gpu.told.whole.relapses == 0, "a person starts the count anew"


def test_relapses_of_more_than_an_hour_ago_do_not_count():
    gpu, at = relapsed(2, gap=2000)
    gpu.looks(at)
    gpu.looks(at + 1, reset_mark="z")

    gpu.happens(xid(95), at + 2000)

    assert gpu.told.whole.relapses == 2
    assert not gpu.told.whole.stays


def test_the_first_error_in_a_long_life_is_no_relapse():
    gpu = sick_gpu()
    gpu.looks(602)
    assert is_well(gpu)
    gpu.looks(602 + HOUR)

    gpu.happens(xid(95), 603 + HOUR)

    assert gpu.told.whole.relapses == 0


def test_a_clock_that_is_set_back_keeps_no_gpu_sick_for_longer_than_the_hold_off():
    gpu = sick_gpu(at=100 * HOUR)

    gpu.looks(0)
    assert not is_well(gpu)
    gpu.looks(601)

    assert is_well(gpu)
