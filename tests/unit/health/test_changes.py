"""What there is to say when the health of GPUs changed."""

import pytest

from dra_gpu.health.changes import Change, ChangeKind, changes
from dra_gpu.health.state import GpuHealth
from dra_gpu.vendors.health import RecoveryAction
from tests.unit.health.reports import GPU, SMALL, Gpu, xid


def said(gpu, work):
    """Return what is new after some work at a GPU."""
    before: dict[str, GpuHealth] = {GPU: gpu.told}
    work()
    return changes(before, {GPU: gpu.told})


@pytest.fixture
def gpu():
    found = Gpu()
    found.looks(0)
    return found


def kinds(found):
    return [change.kind for change in found]


def test_a_gpu_that_becomes_sick_is_told_with_the_reason(gpu):
    (change,) = said(gpu, lambda: gpu.happens(xid(95), 1))

    assert change == Change(ChangeKind.SICK, GPU, None, "XID 95 (Uncontained memory error): reset the GPU")


def test_the_same_error_again_is_nothing_new(gpu):
    gpu.happens(xid(95), 1)

    assert said(gpu, lambda: gpu.happens(xid(95), 2)) == ()


def test_another_thing_that_is_wrong_is_told(gpu):
    gpu.happens(xid(95), 1)

    (change,) = said(gpu, lambda: gpu.looks(2, recovery_action=RecoveryAction.RESET))

    assert change.kind is ChangeKind.SICK
    assert "recovery action Reset" in change.text


def test_a_gpu_that_is_well_again_is_told(gpu):
    gpu.happens(xid(95), 1)
    gpu.looks(2)

    assert kinds(said(gpu, lambda: gpu.looks(3, reset_mark="b"))) == [ChangeKind.WELL]


def test_a_workloads_own_error_is_a_notice_once(gpu):
    assert kinds(said(gpu, lambda: gpu.happens(xid(31), 1))) == [ChangeKind.NOTICE]
    assert said(gpu, lambda: gpu.happens(xid(31), 2)) == ()


def test_a_notice_on_a_sick_gpu_is_not_worth_a_word(gpu):
    gpu.happens(xid(95), 1)

    assert said(gpu, lambda: gpu.happens(xid(31), 2)) == ()


def test_a_sick_partition_is_told_of_that_partition_and_again_when_it_is_well(gpu):
    (sick,) = said(gpu, lambda: gpu.happens(xid(95, gpu_instance=7), 1, SMALL))
    gpu.looks(2)
    (well,) = said(gpu, lambda: gpu.looks(3, reset_mark="b"))

    assert (sick.kind, sick.placement) == (ChangeKind.SICK, SMALL)
    assert (well.kind, well.placement) == (ChangeKind.WELL, SMALL)


def test_that_a_gpu_stays_sick_is_told(gpu):
    for number in range(3):
        gpu.happens(xid(95), 10 * number + 1)
        gpu.looks(10 * number + 2)
        gpu.looks(10 * number + 3, reset_mark=f"reset {number}")

    (change,) = said(gpu, lambda: gpu.happens(xid(95), 40))

    assert change.kind is ChangeKind.SICK
    assert "until a person clears it" in change.text


def test_the_first_look_is_told_as_such():
    gpu = Gpu()

    assert kinds(said(gpu, lambda: gpu.looks(1))) == [ChangeKind.KNOWN]


def test_what_an_earlier_run_knew_is_not_told_again():
    gpu = Gpu()
    gpu.happens(xid(95), 1)

    assert changes({}, {GPU: gpu.told}) == ()
