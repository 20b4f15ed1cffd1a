"""The health of all GPUs of a node: looks that overlap, and who hears of changes."""

import pytest

from dra_gpu.health.ledger import HealthLedger
from dra_gpu.health.policy import HealthPolicy
from dra_gpu.health.state import Verdict
from dra_gpu.health.verdicts import Evict
from tests.unit.health.reports import BOOT, DRIVER, GPU, Gpu, after, lost, probe, xid

OTHER_GPU = "GPU-1"


class Times:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return after(self.seconds)


@pytest.fixture
def time():
    return Times()


@pytest.fixture
def ledger(time):
    found = HealthLedger(DRIVER, BOOT, HealthPolicy(), Evict.NEVER, time)
    found.present([GPU, OTHER_GPU])
    return found


def look(ledger, *probes):
    ledger.take(ledger.begin(), probes)


def verdicts(ledger):
    return {uuid: gpu.whole.verdict.value for uuid, gpu in ledger.states().items()}


def test_one_sick_gpu_is_sick_alone(ledger):
    look(ledger, probe(), probe(gpu=OTHER_GPU))

    ledger.happened(xid(95), None)

    assert verdicts(ledger) == {GPU: "Unhealthy", OTHER_GPU: "Healthy"}


def test_a_look_that_began_before_an_error_does_not_clear_it(ledger, time):
    look(ledger, probe())
    early = ledger.begin()
    ledger.happened(xid(95), None)
    time.seconds = 10_000

    ledger.take(early, [probe(reset_mark="b")])

    assert verdicts(ledger)[GPU] == "Unhealthy"


def test_a_look_proves_something_though_a_workload_fails_all_the_time(ledger, time):
    look(ledger, probe())
    ledger.happened(xid(95), None)
    time.seconds = 1000
    early = ledger.begin()
    ledger.happened(xid(13), None)

    ledger.take(early, [probe()])

    assert verdicts(ledger)[GPU] == "Healthy"


def test_a_look_that_took_longer_than_a_later_one_is_dropped(ledger):
    early, late = ledger.begin(), ledger.begin()
    ledger.take(late, [probe(lost=True)])

    ledger.take(early, [probe()])

    assert ledger.states()[GPU].lost


def test_listeners_hear_of_changes_and_of_nothing_else(ledger):
    heard = []
    end = ledger.subscribe(lambda: heard.append(verdicts(ledger)[GPU]))
    look(ledger, probe())
    look(ledger, probe())
    ledger.happened(xid(95), None)
    ledger.happened(xid(95), None)
    end()
    ledger.happened(xid(31), None)

    assert heard == ["Healthy", "Unhealthy"]


def test_a_listener_that_fails_costs_the_others_nothing(ledger):
    heard = []

    def fails():
        raise OSError("no space")

    ledger.subscribe(fails)
    ledger.subscribe(lambda: heard.append(1))

    ledger.happened(xid(95), None)

    assert heard == [1]


def test_what_was_told_before_is_never_changed_afterwards(ledger):
    before = ledger.states()

    ledger.happened(xid(95), None)

    assert before[GPU].whole.verdict is Verdict.UNKNOWN


def test_what_an_earlier_run_knew_is_told_when_the_gpu_is_there(time):
    gpu = Gpu()
    gpu.happens(xid(95), 1)
    ledger = HealthLedger(DRIVER, BOOT, HealthPolicy(), Evict.NEVER, time)

    ledger.restore([gpu.faults])
    assert ledger.states() == {}
    ledger.present([GPU])

    assert verdicts(ledger) == {GPU: "Unhealthy"}
    assert ledger.states()[GPU].whole.taints[0].added == after(1)


def test_what_is_restored_late_does_not_hide_what_happened_since(ledger):
    ledger.happened(xid(95), None)

    ledger.restore([Gpu().faults])

    assert verdicts(ledger)[GPU] == "Unhealthy"


def test_what_another_instance_has_heard_is_taken_by_the_one_that_follows_it(ledger):
    look(ledger, probe())
    gpu = Gpu()
    gpu.looks(0)
    gpu.happens(xid(95), 1)

    ledger.restore([gpu.faults])
    look(ledger, probe())

    assert verdicts(ledger)[GPU] == "Unhealthy"
    look(ledger, probe(reset_mark="b"))
    assert verdicts(ledger)[GPU] == "Healthy"


def test_a_gpu_that_was_reset_is_well_at_the_next_good_look_though_nothing_else_shows_it(ledger):
    look(ledger, probe(counter=5))
    ledger.happened(xid(95), None)
    look(ledger, probe(counter=6))
    early = ledger.begin()
    ledger.was_reset(GPU)

    ledger.take(early, [probe(counter=7)])
    assert verdicts(ledger)[GPU] == "Unhealthy"
    look(ledger, probe(counter=8))

    assert verdicts(ledger)[GPU] == "Healthy"


def test_a_gpu_that_is_sick_after_its_reset_stays_so(ledger):
    look(ledger, probe())
    ledger.happened(xid(95), None)
    look(ledger, probe())
    ledger.was_reset(GPU)
    ledger.happened(xid(95), None)

    look(ledger, probe())

    assert verdicts(ledger)[GPU] == "Unhealthy"


def test_gpus_whose_events_are_not_seen_are_marked_and_a_lost_one_is_not(ledger):
    ledger.happened(lost(OTHER_GPU), None)

    ledger.monitored([])

    keys = {uuid: [taint.key for taint in gpu.whole.taints] for uuid, gpu in ledger.states().items()}
    assert keys == {GPU: [f"{DRIVER}/unmonitored"], OTHER_GPU: [f"{DRIVER}/gpu-lost"]}


def test_a_person_clears_the_gpus_that_are_named_and_known(ledger):
    ledger.happened(xid(95), None)
    ledger.happened(xid(95, gpu=OTHER_GPU), None)
    early = ledger.begin()

    assert ledger.clear([OTHER_GPU, "GPU-9", OTHER_GPU, ""]) == (OTHER_GPU,)
    assert verdicts(ledger)[GPU] == "Unhealthy"
    assert not ledger.states()[OTHER_GPU].whole.taints
    ledger.take(early, [probe(gpu=OTHER_GPU)])
    assert not ledger.states()[OTHER_GPU].whole.taints
