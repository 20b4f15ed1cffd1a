"""A clock that is set neither ends a hold-off nor makes it longer."""

from datetime import timedelta

import pytest

from dra_gpu.health.clock import Jumps
from dra_gpu.health.ledger import HealthLedger
from dra_gpu.health.policy import HealthPolicy
from dra_gpu.health.verdicts import Evict
from tests.unit.health.reports import BOOT, DRIVER, GPU, after, probe, xid

HOUR, YEARS = 3600.0, 50 * 365 * 86400.0


class Clocks:
    """Time that passes, and a clock on the wall that somebody sets."""

    def __init__(self):
        self.passed = 0.0
        self.wrong = 0.0

    def wall(self):
        return after(self.passed + self.wrong)

    def steady(self):
        return self.passed


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def ledger(clocks):
    found = HealthLedger(DRIVER, BOOT, HealthPolicy(), Evict.NEVER, clocks.wall, Jumps(clocks.steady).until)
    found.present([GPU])
    return found


def looks(ledger, clocks, seconds, **facts):
    """Let time pass, look, and tell whether the GPU is sick."""
    clocks.passed += seconds
    ledger.take(ledger.begin(), [probe(**facts)])
    return ledger.states()[GPU].whole.verdict.value


@pytest.mark.parametrize("wrong", [HOUR, -HOUR, YEARS, -YEARS])
def test_a_hold_off_lasts_as_long_as_it_should(ledger, clocks, wrong):
    looks(ledger, clocks, 0)
    ledger.happened(xid(95), None)
    looks(ledger, clocks, 300)

    clocks.wrong = wrong

    assert looks(ledger, clocks, 290) == "Unhealthy"
    assert looks(ledger, clocks, 15) == "Healthy"


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_when_a_taint_came_stays_as_it_was(ledger, clocks, wrong):
    looks(ledger, clocks, 0)
    ledger.happened(xid(95), None)
    clocks.wrong = wrong
    looks(ledger, clocks, 5)
    ledger.happened(xid(95), None)

    assert ledger.states()[GPU].whole.taints[0].added == after(0)


@pytest.mark.parametrize("wrong", [2 * HOUR, -2 * HOUR])
def test_relapses_count_for_an_hour_of_time_that_passed(ledger, clocks, wrong):
    looks(ledger, clocks, 0)
    for mark in "bcd":
        ledger.happened(xid(95), None)
        looks(ledger, clocks, 5)
        assert looks(ledger, clocks, 5, reset_mark=mark) == "Healthy"
    clocks.wrong = wrong

    ledger.happened(xid(95), None)

    assert ledger.states()[GPU].whole.stays


def test_a_clock_that_is_steered_or_a_call_that_comes_late_is_no_jump(clocks):
    jumps = Jumps(clocks.steady)
    found = []
    for passed, wrong in ((0, 0), (1000, 1), (1005, 1.5), (9000, 5)):
        clocks.passed, clocks.wrong = passed, wrong
        found.append(jumps.until(clocks.wall()))

    assert found == [timedelta()] * 4


def test_what_is_kept_of_later_times_counts_as_of_the_present(ledger, clocks):
    clocks.wrong = YEARS
    looks(ledger, clocks, 0)
    ledger.happened(xid(95), None)
    looks(ledger, clocks, 1)
    kept = ledger.faults()
    clocks.wrong = 0.0
    ledger = HealthLedger(DRIVER, BOOT, HealthPolicy(), Evict.NEVER, clocks.wall, Jumps(clocks.steady).until)
    ledger.restore(kept)
    ledger.present([GPU])

    looks(ledger, clocks, 5)

    assert looks(ledger, clocks, 590) == "Unhealthy"
    assert looks(ledger, clocks, 11) == "Healthy"
