"""What one instance, or one run, takes from the one before it."""

from dataclasses import replace

from dra_gpu.health.handover import joined, resumed
from dra_gpu.vendors.health import RecoveryAction
from tests.unit.health.reports import BOOT, OTHER, SMALL, Gpu, after, xid


def taken(kept, known):
    """A GPU as it is for an instance that has looked, and takes what the other one has written."""
    gpu = Gpu()
    gpu.faults = joined(kept.faults, known.faults)
    return gpu


def test_a_reset_while_nobody_ran_came_after_an_error_that_was_heard_just_before():
    gpu = Gpu()
    gpu.looks(0, counter=500)
    gpu.happens(xid(95), 1)

    gpu.faults = resumed(gpu.faults)
    gpu.looks(60, counter=5)

    assert gpu.taints() == {}


def test_a_reboot_comes_after_an_error_that_was_heard_just_before():
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(xid(95), 1)

    gpu.faults = resumed(gpu.faults)
    gpu.boot = f"after {BOOT}"
    gpu.looks(60)

    assert gpu.taints() == {}


def test_without_a_reset_an_error_outlives_the_process():
    gpu = Gpu()
    gpu.looks(0, counter=500)
    gpu.happens(xid(95), 1)

    gpu.faults = resumed(gpu.faults)
    gpu.looks(60, counter=501)

    assert gpu.taints() == {"xid": ("95", "NoSchedule")}


def test_one_bad_look_before_a_restart_and_one_after_it_are_not_two_in_a_row():
    gpu = Gpu()
    gpu.happens(xid(31), 0)
    gpu.looks(1, problem="NVML does not answer")

    gpu.faults = resumed(gpu.faults)
    gpu.looks(60, problem="NVML does not answer")

    assert set(gpu.taints()) == {"xid-notice"}


def test_an_error_that_only_the_other_one_has_heard_is_taken_although_the_gpu_was_sick_before():
    both = Gpu()
    both.happens(xid(95), 0)
    both.looks(1)
    both.looks(2, reset_mark="b")  # well again, which is remembered
    heard, looked = Gpu(), Gpu()
    heard.faults = looked.faults = both.faults
    heard.happens(xid(48), 60)
    looked.looks(62, reset_mark="b")

    gpu = taken(heard, looked)
    gpu.looks(65, reset_mark="b")

    assert gpu.taints() == {"xid": ("48", "NoSchedule")}
    assert gpu.told.whole.relapses == 1


def test_what_only_this_one_has_found_stays():
    heard, looked = Gpu(), Gpu()
    heard.looks(0)
    heard.happens(xid(48), 1)
    looked.looks(2, recovery_action=RecoveryAction.RESET)

    gpu = taken(heard, looked)

    assert gpu.taints() == {"recovery-action": ("Reset", "NoSchedule"), "xid": ("48", "NoSchedule")}
    assert gpu.told.whole.since == after(1)


def test_the_graver_of_two_errors_of_a_kind_stays_whoever_knows_it():
    worse, better = Gpu(), Gpu()
    worse.happens(xid(79), 5)
    better.happens(xid(95), 1)

    assert taken(worse, better).taints() == taken(better, worse).taints() == {"xid": ("79", "NoSchedule")}


def test_a_reset_that_only_this_one_has_seen_is_seen_again_with_what_the_other_one_knew():
    heard, looked = Gpu(), Gpu()
    heard.looks(0, counter=500)
    heard.happens(xid(95), 1)
    looked.looks(60, counter=5)

    gpu = taken(heard, looked)
    assert gpu.taints() == {"xid": ("95", "NoSchedule")}
    gpu.looks(65, counter=6)

    assert gpu.taints() == {}


def test_a_gpu_that_the_other_one_saw_lost_is_back_after_a_reset():
    heard, looked = Gpu(), Gpu()
    heard.happens(xid(79), 0)
    heard.looks(1, lost=True)
    looked.looks(60)

    gpu = taken(heard, looked)
    assert not gpu.told.lost
    gpu.looks(65)

    assert gpu.taints() == {}


def test_instances_are_taken_each_for_itself():
    heard, looked = Gpu(), Gpu()
    heard.happens(xid(95, gpu_instance=7), 1, SMALL)
    looked.happens(xid(31, gpu_instance=7), 2, SMALL)
    looked.happens(xid(95, gpu_instance=8), 3, OTHER)

    gpu = taken(heard, looked)

    taints = {place: [taint.value for taint in part.taints] for place, part in gpu.told.partitions.items()}
    assert taints == {SMALL: ["95", "31"], OTHER: ["95"]}


def test_of_another_instance_at_the_same_place_what_was_written_last_is_true():
    heard, looked = Gpu(), Gpu()
    heard.happens(xid(31, gpu_instance=9), 1, SMALL)
    looked.happens(xid(95, gpu_instance=7), 2, SMALL)

    assert taken(heard, looked).faults.instances == heard.faults.instances


def test_who_waits_for_a_person_goes_on_waiting():
    heard, looked = Gpu(), Gpu()
    heard.happens(xid(95), 1)
    heard.faults = replace(heard.faults, whole=replace(heard.faults.whole, stays=True, relapses=(after(1),) * 3))

    gpu = taken(heard, looked)

    assert gpu.told.whole.stays
    assert gpu.told.whole.relapses == 3
