"""Watching GPUs by NVML's events, on simulated nodes."""

import asyncio

import pytest

from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.health import HealthEventKind
from dra_gpu.vendors.nvidia import event_watch
from dra_gpu_sim import checker
from tests.component.nvidia.watching import PATIENCE, watching

LOST, TIMEOUT, UNKNOWN = 15, 10, 999
DOUBLE_BIT = 0x2
WAIT = "nvmlEventSetWait_v2"


@pytest.fixture(autouse=True)
def _brisk(monkeypatch):
    """Waits that end soon: nobody waits for one to end before the watch leaves."""
    monkeypatch.setattr(event_watch, "WAIT_MS", 50)


def waits(bed, result=TIMEOUT):
    """How many waits ended so since the log was emptied."""
    return sum(call.result == result for call in bed.node.calls(WAIT))


async def until_waited(bed, times):
    """Wait until so many further waits have ended without an event.

    The first one may be of a GPU alone, before it is registered; after the second one every GPU is.
    """
    before = waits(bed)
    async with asyncio.timeout(PATIENCE):
        while waits(bed) < before + times:
            await asyncio.sleep(0.02)


async def test_an_xid_is_reported_with_its_gpu(make_bed):
    bed = make_bed(gpus=2)
    async with watching(bed) as watch:
        bed.node.xid(1, 48)

        event = await watch.until_xid(48)

    assert (event.gpu, event.kind, event.gpu_instance) == (bed.node.uuids[1], HealthEventKind.XID, None)


@pytest.mark.case("C103")
async def test_an_xid_of_a_mig_instance_names_both_instances(bed):
    async with watching(bed) as watch:
        bed.node.xid(0, 43, gi=7, ci=0)

        event = await watch.until_xid(43)

    assert (event.gpu_instance, event.compute_instance) == (7, 0)


async def test_what_is_no_xid_is_reported_by_its_kind(bed):
    from dra_gpu_sim.statefile import add_event

    async with watching(bed) as watch:
        bed.node.set_recovery_action(0, 1)
        with bed.node.state() as state:
            add_event(state, 0, DOUBLE_BIT, 0)

        await watch.until(lambda: len(watch.events) == 2)

    assert [event.kind for event in watch.events] == [HealthEventKind.RECOVERY_ACTION, HealthEventKind.ECC]


@pytest.mark.case("C100")
async def test_a_lost_gpu_is_told_once_and_costs_the_others_nothing(make_bed):
    bed = make_bed(gpus=3)
    uuids = bed.node.uuids
    async with watching(bed) as watch:
        bed.node.forget_calls()
        bed.node.lose_gpu(1, xid=79)
        await watch.until_ready(uuids[0], uuids[2])
        bed.node.xid(2, 31)
        await watch.until_xid(31)
        await until_waited(bed, 3)

    assert watch.xids == [79, 31]
    assert watch.lost == [uuids[1]]
    assert waits(bed, LOST) <= 4  # after its Xid, alone, and of the set that it spoilt


@pytest.mark.case("C100")
async def test_a_gpu_that_answers_and_ends_every_wait_is_left_out(make_bed, monkeypatch):
    monkeypatch.setattr(event_watch, "WAIT_MS", 20)
    monkeypatch.setattr(event_watch, "RETRY_SECONDS", 0.1)
    bed = make_bed(gpus=3)
    uuids = bed.node.uuids
    async with watching(bed) as watch:
        bed.node.forget_calls()
        bed.node.inject("nvmlEventSetWait*", gpu=1, code=LOST)
        await watch.until_ready(uuids[0], uuids[2])
        async with asyncio.timeout(PATIENCE):
            while waits(bed, LOST) < 5:  # it is tried again
                await asyncio.sleep(0.02)
        bed.node.xid(0, 13)
        await watch.until_xid(13)

    assert watch.lost == [uuids[1]]
    assert len(watch.ready) == 2
    assert waits(bed, LOST) <= waits(bed) + 2  # one more wait for the others before each time


@pytest.mark.case("C100")
async def test_that_a_gpu_is_lost_still_is_told_again_and_counts_once(make_bed, monkeypatch):
    monkeypatch.setattr(event_watch, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(event_watch, "STILL_SECONDS", 0.0)
    bed = make_bed(gpus=2)
    async with watching(bed) as watch:
        bed.node.inject("nvmlEventSetWait*", gpu=1, code=LOST)

        await watch.until(lambda: len(watch.lost) >= 3)

    assert set(watch.lost) == {bed.node.uuids[1]}
    assert sum(event.count for event in watch.events) == 1


@pytest.mark.case("C100")
async def test_when_every_wait_says_lost_and_none_is_the_watch_ends_and_says_so(make_bed):
    bed = make_bed(gpus=2)
    async with watching(bed) as watch:
        bed.node.inject("nvmlEventSetWait*", code=LOST)

        with pytest.raises(VendorError, match="none is") as ended:
            await watch.until(lambda: False)

    assert ended.value.kind is FailureKind.LOST
    assert watch.lost == []
    assert len(bed.node.calls(WAIT)) < 20


async def test_a_gpu_that_does_not_answer_is_not_lost_and_costs_the_others_nothing(make_bed, monkeypatch):
    monkeypatch.setattr(event_watch, "_SEE_SECONDS", 0.5)
    monkeypatch.setattr(event_watch, "RETRY_SECONDS", 0.1)
    bed = make_bed(gpus=3)
    gpus, uuids = (await bed.vendor.scan()).gpus, bed.node.uuids
    bed.node.inject("nvmlDeviceGetUUID", gpu=1, block=True)
    async with watching(bed, gpus) as watch:
        await watch.until_ready(uuids[0], uuids[2])
        bed.node.xid(2, 31)
        await watch.until_xid(31)
        assert watch.lost == []

        bed.node.clear()
        await watch.until_ready(*uuids)


async def test_a_wait_that_fails_ends_the_watch_and_leaves_nothing_open(bed):
    async with watching(bed) as watch:
        bed.node.inject("nvmlEventSetWait*", code=UNKNOWN)

        with pytest.raises(VendorError, match="nvmlEventSetWait_v2"):
            await watch.until(lambda: False)

    assert checker.sessions(bed.node.root) == {}


async def test_a_gpu_that_returns_is_watched_again_after_a_look(make_bed):
    bed = make_bed(gpus=2)
    uuids = bed.node.uuids
    async with watching(bed) as watch:
        bed.node.lose_gpu(1)
        await watch.until_ready(uuids[0])
        bed.node.return_gpu(1)

        scan = await bed.vendor.scan()
        await watch.until_ready(*uuids)
        bed.node.xid(1, 31)
        await watch.until_xid(31)

    assert (len(scan.gpus), scan.sick) == (2, ())


async def test_a_gpu_that_comes_is_found_while_others_are_watched(make_bed):
    bed = make_bed(gpus=2)
    bed.node.set_gpu_count(1)
    async with watching(bed) as watch:
        assert watch.ready == [(bed.node.uuids[0],)]
        bed.node.set_gpu_count(2)

        scan = await bed.vendor.scan()
        await until_waited(bed, 2)

        bed.node.xid(0, 13)
        await watch.until_xid(13)
    assert [gpu.uuid for gpu in scan.gpus] == bed.node.uuids


async def test_looks_leave_the_watch_alone_while_the_same_gpus_are_there(make_bed):
    bed = make_bed(gpus=2)
    async with watching(bed):
        bed.node.forget_calls()
        for _ in range(3):
            await bed.vendor.scan()

        assert bed.node.calls("nvmlEventSetFree") == []


async def test_a_watched_gpu_is_reset_and_watched_again(bed):
    async with watching(bed) as watch:
        gpu = await bed.gpu()
        bed.node.set_recovery_action(0, 1)

        await bed.vendor.reset_gpu(gpu)
        await until_waited(bed, 2)
        bed.node.xid(0, 31)

        await watch.until_xid(31)
    assert bed.node.gpus[0].recovery_action == 0


async def test_a_watch_that_ends_holds_no_gpu_open(bed):
    async with watching(bed):
        assert list(checker.sessions(bed.node.root).values()) == [(0,)]

    assert checker.sessions(bed.node.root) == {}


async def test_gpus_that_report_no_events_are_not_ready_and_not_held_open(make_bed):
    bed = make_bed("P-vgpu1")
    async with watching(bed) as watch:
        async with asyncio.timeout(PATIENCE):
            while checker.sessions(bed.node.root):
                await asyncio.sleep(0.01)

        assert watch.ready == [()]
        assert watch.lost == []


async def test_a_mode_is_changed_while_one_watches(bed):
    async with watching(bed):
        gpu = await bed.partitioned()

    assert bed.modes() == (True, True)
    assert gpu.mig_live
