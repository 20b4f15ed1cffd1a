"""The loops around the ledger, with a vendor that does what a test says. No test waits for a time to pass."""

import asyncio
import contextlib
import dataclasses

import pytest

from dra_gpu.health.ledger import HealthLedger
from dra_gpu.health.monitor import HealthMonitor, MonitorTimes
from dra_gpu.health.policy import HealthPolicy
from dra_gpu.health.store import HealthStore, Remembered
from dra_gpu.health.verdicts import Evict
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.health import RecoveryAction
from tests.unit.health.reports import BOOT, DRIVER, SMALL, Gpu, lost, probe, xid
from tests.unit.inventory.builders import gpu

SECONDS = 20
QUICK = MonitorTimes(period=3600, soon=0.01, first_wait=0.01, longest_wait=0.02, blind=0.0, keep=3600)


class FakeVendor:
    """Watches until a test ends it, and finds what a test has put there."""

    def __init__(self):
        self.watches = asyncio.Queue()
        self.report = self.ready = None
        self.ends = []
        self.found = {}
        self.looks = []
        self.looked = asyncio.Event()
        self.hold = None
        self.left = asyncio.Event()

    async def watch_health(self, gpus, report, ready):
        self.report, self.ready = report, ready
        self.watches.put_nowait([one.uuid for one in gpus])
        if self.ends:
            raise self.ends.pop(0)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.left.set()

    async def probe_health(self, gpus):
        self.looks.append([one.uuid for one in gpus])
        self.looked.set()
        if self.hold is not None:
            await self.hold.wait()
        return tuple(self.found.get(one.uuid, probe(gpu=one.uuid)) for one in gpus)


class World:
    def __init__(self, directory, times=QUICK):
        self.vendor = FakeVendor()
        self.gpus = [gpu(0), gpu(1)]
        self.instances = {}
        self.counted = []
        self.around = asyncio.Event()
        self.store = HealthStore(directory)
        self.may_write = True
        self.changes = asyncio.Condition()
        self.new(times)

    def new(self, times=QUICK, policy=None):
        from datetime import UTC, datetime

        self.ledger = HealthLedger(DRIVER, BOOT, policy or HealthPolicy(), Evict.NEVER, lambda: datetime.now(UTC))
        self.monitor = HealthMonitor(
            self.vendor,
            self.ledger,
            self.store,
            lambda: self.gpus,
            lambda uuid, instance, _: self.instances.get((uuid, instance)),
            may_write=lambda: self.may_write,
            on_event=self.counted.append,
            on_change=self.around.set,
            times=times,
        )
        self.monitor.restore()

    @contextlib.asynccontextmanager
    async def running(self):
        self.changed = asyncio.Event()
        self.ledger.subscribe(self.changed.set)
        task = asyncio.create_task(self.monitor.run())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition):
        async with asyncio.timeout(SECONDS):
            while not condition():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 0.02)

    async def watched(self):
        async with asyncio.timeout(SECONDS):
            return await self.vendor.watches.get()

    def verdicts(self):
        return [self.ledger.states()[one.uuid].whole.verdict.value for one in self.gpus]

    def taints(self, number):
        return {one.key.rpartition("/")[2] for one in self.ledger.states()[self.gpus[number].uuid].whole.taints}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


async def test_all_gpus_are_watched_and_looked_at(world):
    async with world.running():
        assert await world.watched() == [one.uuid for one in world.gpus]
        await world.until(lambda: len(world.ledger.states()) == 2 and world.verdicts() == ["Healthy", "Healthy"])

    assert world.vendor.looks == [[one.uuid for one in world.gpus]]


async def test_an_event_is_taken_at_once_and_a_look_at_that_gpu_follows(world):
    async with world.running():
        await world.watched()
        await world.until(lambda: len(world.ledger.states()) == 2)
        world.vendor.looked.clear()

        world.vendor.report(xid(95, gpu=world.gpus[1].uuid))

        assert world.taints(1) == {"xid"}
        async with asyncio.timeout(SECONDS):
            await world.vendor.looked.wait()
        assert world.vendor.looks[-1] == [world.gpus[1].uuid]
    assert [event.xid for event in world.counted] == [95]


async def test_however_much_is_reported_looks_are_few(world):
    world.new(MonitorTimes(period=3600, soon=3600))
    async with world.running():
        await world.watched()
        await world.until(lambda: len(world.vendor.looks) == 1)
        for _ in range(1000):
            world.vendor.report(xid(31, gpu=world.gpus[0].uuid))
            await asyncio.sleep(0)

    assert len(world.vendor.looks) <= 2
    assert len(world.counted) == 1000


async def test_a_watch_that_ends_is_begun_again_and_gpus_are_unmonitored_meanwhile(world):
    world.vendor.ends = [VendorError(FailureKind.TRANSIENT, "no event set")] * 3
    async with world.running():
        for _ in range(3):
            await world.watched()
        await world.until(lambda: world.ledger.states() and world.taints(0) == {"unmonitored"})
        await world.watched()

        world.vendor.ready([one.uuid for one in world.gpus])

        assert world.taints(0) == set()


async def test_a_vendor_that_fails_in_an_unforeseen_way_ends_nothing(world):
    world.vendor.ends = [RuntimeError("a mistake of ours")]
    async with world.running():
        await world.watched()
        await world.watched()


async def test_gpus_that_are_not_among_the_watched_say_so(world):
    async with world.running():
        await world.watched()
        await world.until(lambda: len(world.ledger.states()) == 2)

        world.vendor.ready([world.gpus[0].uuid])

        assert (world.taints(0), world.taints(1)) == (set(), {"unmonitored"})


async def test_gpus_that_come_later_are_watched_too(world):
    async with world.running():
        await world.watched()
        world.gpus = [*world.gpus, gpu(2)]

        world.monitor.gpus_changed()

        assert await world.watched() == [one.uuid for one in world.gpus]


async def test_a_node_without_gpus_asks_for_nothing(world):
    world.gpus = []
    async with world.running():
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.vendor.watches.empty()
        assert world.vendor.looks == []
        world.gpus = [gpu(0)]

        world.monitor.gpus_changed()

        assert await world.watched() == [world.gpus[0].uuid]
        await world.until(lambda: world.verdicts() == ["Healthy"])


async def test_a_lost_gpu_makes_the_node_look_who_is_there(world):
    async with world.running():
        await world.watched()
        world.vendor.found[world.gpus[0].uuid] = probe(gpu=world.gpus[0].uuid, lost=True)

        world.vendor.report(lost(world.gpus[0].uuid))

        assert world.around.is_set()
        await world.until(lambda: world.ledger.states()[world.gpus[0].uuid].lost)


async def test_that_a_gpu_which_answers_is_lost_for_events_still_is_no_news_and_no_proof_that_it_is_well(world):
    uuid = world.gpus[0].uuid

    def last_seen():
        return next(one.whole.serious[0].last for one in world.ledger.faults() if one.gpu == uuid)

    async with world.running():
        await world.watched()
        await world.until(lambda: len(world.ledger.states()) == 2)
        world.vendor.report(lost(uuid))
        await world.until(lambda: not world.ledger.states()[uuid].lost)
        world.around.clear()
        before = world.ledger.states()
        last = last_seen()

        world.vendor.report(dataclasses.replace(lost(uuid), count=0))

        assert world.ledger.states() == before
        assert last_seen() > last
        assert not world.around.is_set()


async def test_a_gpu_that_a_look_finds_lost_or_back_makes_the_node_look_who_is_there(world):
    uuid = world.gpus[0].uuid
    world.new(MonitorTimes(period=0.02, soon=0.01))
    async with world.running():
        await world.until(lambda: world.ledger.states() and world.verdicts() == ["Healthy", "Healthy"])
        assert not world.around.is_set()
        for is_lost in (True, False):
            world.around.clear()
            world.vendor.found[uuid] = probe(gpu=uuid, lost=is_lost, reset_mark="" if is_lost else "b")
            async with asyncio.timeout(SECONDS):
                await world.around.wait()

        await world.until(lambda: world.verdicts() == ["Healthy", "Healthy"])


@pytest.mark.case("C103")
async def test_an_error_of_an_instance_that_is_gone_taints_nothing(world):
    uuid = world.gpus[0].uuid
    world.instances[uuid, 7] = SMALL
    async with world.running():
        await world.watched()
        await world.until(lambda: len(world.ledger.states()) == 2)

        world.vendor.report(xid(95, gpu_instance=9, gpu=uuid))
        world.vendor.report(xid(95, gpu_instance=7, gpu=uuid))

        assert world.taints(0) == set()
        assert list(world.ledger.states()[uuid].partitions) == [SMALL]


@pytest.mark.case("C103")
async def test_a_sick_instance_that_somebody_destroyed_is_forgotten(world):
    uuid = world.gpus[0].uuid
    world.instances[uuid, 7] = SMALL
    async with world.running():
        await world.watched()
        await world.until(lambda: len(world.ledger.states()) == 2)
        world.vendor.report(xid(95, gpu_instance=7, gpu=uuid))
        del world.instances[uuid, 7]

        world.monitor.gpus_changed()

        await world.until(lambda: not world.ledger.states()[uuid].partitions)


async def test_what_is_wrong_outlives_a_restart(world):
    async with world.running():
        await world.watched()
        world.vendor.report(xid(95, gpu=world.gpus[0].uuid))
        await world.until(lambda: world.store.load().gpus)
        before = world.ledger.states()[world.gpus[0].uuid].whole.taints

    world.new()
    world.monitor.gpus_changed()

    assert world.verdicts() == ["Unhealthy", "Unknown"]
    assert world.ledger.states()[world.gpus[0].uuid].whole.taints == before


async def test_an_instance_that_does_not_publish_looks_and_neither_writes_nor_holds_gpus_open_for_events(world):
    world.may_write = False
    world.vendor.found[world.gpus[0].uuid] = probe(gpu=world.gpus[0].uuid, lost=True)
    async with world.running():
        await world.until(lambda: world.ledger.states() and world.taints(0) == {"gpu-lost"})
        for _ in range(10):
            await asyncio.sleep(0)

    assert world.store.load().gpus == ()
    assert world.vendor.watches.empty()


async def test_whoever_publishes_watches_until_it_hands_over(world):
    world.may_write = False
    async with world.running():
        await world.until(world.vendor.looked.is_set)
        world.may_write = True
        await world.watched()

        world.may_write = False
        async with asyncio.timeout(SECONDS):
            await world.vendor.left.wait()


async def test_the_instance_that_begins_to_publish_takes_what_the_one_before_has_written(world):
    uuid = world.gpus[0].uuid
    world.may_write = False
    async with world.running():
        await world.until(lambda: world.ledger.states() and world.verdicts() == ["Healthy", "Healthy"])
        other = Gpu()
        other.happens(xid(95), at=1)
        world.store.save(Remembered((dataclasses.replace(other.faults, gpu=uuid),), "GPU-9"))

        world.may_write = True

        await world.until(lambda: world.verdicts() == ["Unhealthy", "Healthy"])
        assert world.monitor.clear("GPU-9") == ()


async def test_what_another_instance_has_heard_is_taken_though_this_one_has_found_something_meanwhile(world):
    uuid = world.gpus[0].uuid
    world.may_write = False
    world.vendor.found[uuid] = probe(gpu=uuid, recovery_action=RecoveryAction.RESET)
    async with world.running():
        await world.until(lambda: world.ledger.states() and world.taints(0) == {"recovery-action"})
        other = Gpu()
        other.happens(xid(95), at=1)
        world.store.save(Remembered((dataclasses.replace(other.faults, gpu=uuid),)))

        world.may_write = True
        world.monitor.clear("GPU-9")  # something to be written at once

        await world.until(lambda: world.taints(0) == {"recovery-action", "xid"})
        await world.until(lambda: world.store.load().cleared == "GPU-9")
    faults = {fault.kind.value for fault in world.store.load().gpus[0].whole.faults}
    assert faults == {"recovery-action", "xid"}


async def test_what_nobody_else_has_written_meanwhile_is_not_taken_again(world):
    uuid = world.gpus[0].uuid
    earlier = Gpu()
    earlier.boot = "before"
    earlier.looks(0)
    earlier.happens(xid(95), at=1)
    world.store.save(Remembered((dataclasses.replace(earlier.faults, gpu=uuid),)))
    world.new()
    world.may_write = False
    told = []
    async with world.running():
        await world.until(lambda: world.ledger.states() and world.verdicts() == ["Healthy", "Healthy"])  # a reboot
        world.ledger.subscribe(lambda: told.append(world.verdicts()))
        world.may_write = True
        await world.watched()

    assert told == []


async def test_a_request_to_clear_acts_once_also_over_a_restart(world):
    uuid = world.gpus[0].uuid
    async with world.running():
        await world.watched()
        world.vendor.report(xid(95, gpu=uuid))

        assert world.monitor.clear(f" {uuid} ,GPU-9") == (uuid,)
        assert world.taints(0) == set()
        world.vendor.report(xid(95, gpu=uuid))
        assert world.monitor.clear(f" {uuid} ,GPU-9") == ()
        await world.until(lambda: world.store.load().cleared and world.store.load().gpus)

    world.new()
    world.monitor.gpus_changed()
    assert world.monitor.clear(f" {uuid} ,GPU-9") == ()
    assert world.taints(0) == {"xid"}
    assert world.monitor.clear("") == ()
    assert world.monitor.clear(f" {uuid} ,GPU-9") == (uuid,)


async def test_a_state_directory_that_takes_nothing_stops_nothing(tmp_path):
    world = World(tmp_path / "missing")
    async with world.running():
        await world.watched()
        world.vendor.report(xid(95, gpu=world.gpus[0].uuid))
        await world.until(lambda: world.taints(0) == {"xid"})


@pytest.mark.case("C103")
async def test_a_sick_instance_is_known_after_a_restart_before_it_is_known_which_instances_there_are(world):
    uuid = world.gpus[0].uuid
    world.instances[uuid, 7] = SMALL
    async with world.running():
        await world.watched()
        world.vendor.report(xid(95, gpu_instance=7, gpu=uuid))
        await world.until(lambda: world.store.load().gpus)
    gpus, instances = world.gpus, world.instances
    world.gpus, world.instances = [], {}
    world.new()
    async with world.running():
        for _ in range(10):
            await asyncio.sleep(0)
        world.gpus, world.instances = gpus, instances

        world.monitor.gpus_changed()

        assert list(world.ledger.states()[uuid].partitions) == [SMALL]  # what is published at this moment


async def test_an_error_that_goes_on_happening_is_not_written_again_and_again(world, monkeypatch):
    uuid = world.gpus[0].uuid
    saved = []

    def save(what):
        saved.append(what)
        world.ledger.happened(xid(95, gpu=uuid), None)  # by the time it is on disk

    monkeypatch.setattr(world.store, "save", save)
    async with world.running():
        await world.watched()
        await world.until(lambda: len(world.ledger.states()) == 2)
        world.vendor.report(xid(95, gpu=uuid))
        await world.until(lambda: saved)
        for _ in range(20):
            await asyncio.to_thread(lambda: None)

        assert len(saved) == 1
        world.monitor.clear("GPU-9")
        await world.until(lambda: saved[-1].cleared == "GPU-9")


async def test_errors_of_instances_that_are_gone_are_logged_once_in_a_while(world):
    from structlog.testing import capture_logs

    with capture_logs() as logs:
        async with world.running():
            await world.watched()
            for _ in range(1000):
                world.vendor.report(xid(43, gpu_instance=9, gpu=world.gpus[0].uuid))

    assert [line["count"] for line in logs if "MIG instances that are gone" in line["event"]] == [1]
    assert len(world.counted) == 1000
