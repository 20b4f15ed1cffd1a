import asyncio

import pytest

from dra_gpu.claims.journal_errors import JournalFullError
from dra_gpu.inventory.model import DriverVersions, Scan, SickGpu, View
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.node import inventory_watch
from dra_gpu.node.inventory_watch import InventoryWatch
from dra_gpu.vendors.base import NotReadyError
from tests.unit.inventory.boards import A100, H100, instance, partitionable
from tests.unit.inventory.builders import gpu

BOOT = "boot-1"
WHOLE = (View.GPU, View.MONITOR)


class Looks:
    """A vendor whose looks are given in advance; the last one repeats."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.seen = asyncio.Event()
        self.count = 0
        self.there = 0

    def presence(self):
        return self.there

    async def scan(self):
        self.count += 1
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if len(self.looks) == 1:
            self.seen.set()
        if isinstance(look, Exception):
            raise look
        return look


class Names:
    def __init__(self):
        self.by_boot = {}

    async def names(self, boot_id):
        return dict(self.by_boot.get(boot_id, {}))

    async def remember_names(self, boot_id, names):
        self.by_boot.setdefault(boot_id, {}).update({name.slot: name.name for name in names})


def scan(*gpus, sick=()):
    return Scan(DriverVersions("580.1", "13.0"), gpus, tuple(sick))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(inventory_watch, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(inventory_watch, "RETRY_SECONDS", 0)


def published(layout):
    return [device.name for device in layout.inventory.devices.values()]


class Watched:
    def __init__(self, *looks, names=None, period=0.001, **options):
        self.layouts, self.troubles = [], []
        self.vendor = Looks(*looks)
        self.names = names or Names()
        self.watch = InventoryWatch(
            self.vendor,
            self.names,
            BOOT,
            self.layouts.append,
            lambda *told: self.troubles.append(told),
            period=period,
            options=ViewOptions(WHOLE),
            **options,
        )

    async def run(self, looks):
        task = asyncio.create_task(self.watch.run())
        async with asyncio.timeout(30):
            while self.vendor.count < looks:
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self

    @property
    def published(self):
        return [sorted(layout.inventory.devices) for layout in self.layouts]


@pytest.mark.case("C56")
async def test_gpus_that_a_driver_binds_one_by_one_appear_without_a_restart(quick):
    watched = await Watched(scan(), scan(gpu(0)), scan(gpu(0), gpu(1))).run(5)

    assert watched.published == [
        [],
        ["gpu-0", "gpu-0-monitor"],
        ["gpu-0", "gpu-0-monitor", "gpu-1", "gpu-1-monitor"],
    ]


@pytest.mark.case("C56")
async def test_half_a_set_is_not_published_when_the_wanted_count_is_known(quick):
    watched = await Watched(scan(), scan(gpu(0)), scan(gpu(0), gpu(1)), expected_gpus=2).run(5)

    assert [len(names) for names in watched.published] == [4]


async def test_a_sick_gpu_counts_as_there_and_the_others_are_published(quick):
    sick = SickGpu("0000:11:00.0", "lost; reset it")

    watched = await Watched(scan(gpu(0), sick=[sick]), expected_gpus=2).run(2)

    assert watched.published == [["gpu-0", "gpu-0-monitor"]]
    assert watched.troubles == [("GpuNotUsable", "GPU at 0000:11:00.0: lost; reset it")]


async def test_a_missing_driver_is_an_empty_pool_until_it_comes_and_told_once(quick):
    missing = NotReadyError("no libnvidia-ml.so.1")

    watched = await Watched(missing, missing, scan(gpu(0))).run(4)

    assert watched.published == [[], ["gpu-0", "gpu-0-monitor"]]
    assert watched.troubles == [("GpusNotReady", "no libnvidia-ml.so.1")]


async def test_a_look_that_fails_later_takes_nothing_away(quick):
    watched = await Watched(scan(gpu(0)), NotReadyError("reloading")).run(4)

    assert watched.published == [["gpu-0", "gpu-0-monitor"]]
    assert "gpu-0" in watched.watch.inventory().devices


async def test_the_first_look_opens_the_gate_even_when_it_fails(quick):
    watched = await Watched(NotReadyError("no library")).run(2)

    assert watched.watch.looked.is_set()


async def test_names_of_this_boot_survive_a_restart(quick):
    names = Names()
    await Watched(scan(gpu(0), gpu(1)), names=names).run(2)

    watched = await Watched(scan(gpu(1, minor=0)), names=names).run(2)

    assert watched.published == [["gpu-1", "gpu-1-monitor"]]


async def test_names_that_cannot_be_kept_are_not_given(quick):
    class FullDisk(Names):
        async def remember_names(self, *_):
            raise JournalFullError("no space left in /state: free some")

    watched = await Watched(scan(gpu(0)), names=FullDisk()).run(2)

    assert watched.published == [[]]
    assert watched.troubles == [("GpusNotReady", "no space left in /state: free some")]


async def test_equal_looks_are_told_once(quick):
    watched = await Watched(scan(gpu(0)), scan(gpu(0)), scan(gpu(0))).run(4)

    assert len(watched.layouts) == 1


class Claims:
    """What claims have of a GPU, asked before and after each look; answers are given in advance, the last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def __call__(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


MINE = instance(H100, "1g.10gb", 2)
PLACE = (partitionable(H100).uuid, MINE.placement)
EMPTY, WITH_ONE = scan(partitionable(H100)), scan(partitionable(H100, mig_enabled=True, mig_instances=(MINE,)))
WITH_MIG = ViewOptions((View.GPU, View.SHARED, View.MIG, View.MONITOR))


def of_claims(*answers, looks, **options):
    watched = Watched(*looks, ours=Claims(*answers), **options)
    watched.watch.options = WITH_MIG
    return watched


async def test_a_claim_that_makes_a_partition_changes_nothing_that_is_published(quick):
    watched = await of_claims((), (), {PLACE}, looks=[EMPTY, WITH_ONE]).run(4)

    assert len(watched.layouts) == 1
    assert watched.watch.gpu(PLACE[0]).mig_instances == (MINE,)


async def test_a_partition_that_is_made_or_destroyed_during_a_look_is_known_to_be_a_claims(quick):
    made = await of_claims((), (), (), {PLACE}, looks=[EMPTY, WITH_ONE]).run(4)
    destroyed = await of_claims({PLACE}, {PLACE}, {PLACE}, (), looks=[WITH_ONE, WITH_ONE, EMPTY]).run(4)

    assert (len(made.layouts), len(destroyed.layouts)) == (1, 1)


async def test_a_claim_that_comes_and_goes_within_one_look_is_not_taken_for_an_administrator(quick):
    watched = await of_claims((), looks=[EMPTY, WITH_ONE, EMPTY]).run(5)

    assert len(watched.layouts) == 1


@pytest.mark.case("C73")
async def test_an_administrators_partition_is_believed_after_a_second_look_at_once(quick):
    watched = await of_claims((), looks=[WITH_ONE], period=60).run(2)

    [names] = watched.published
    assert "gpu-0" not in names
    assert "gpu-0-mig-1g10gb-19-2" in names
    assert [reason for reason, _ in watched.troubles] == ["MigInstancesInPlace"]


async def test_claims_that_cannot_be_asked_for_leave_what_is_published_as_it_is(quick):
    class Failing(Claims):
        async def __call__(self):
            answer = await super().__call__()
            if isinstance(answer, Exception):
                raise answer
            return answer

    watched = Watched(EMPTY, WITH_ONE, ours=Failing((), (), (), JournalFullError("disk full")))
    watched.watch.options = WITH_MIG
    await watched.run(2)

    assert len(watched.layouts) == 1
    assert watched.troubles == [("GpusNotReady", "disk full")]


@pytest.mark.case("C71")
async def test_a_mode_that_waits_for_a_reset_is_told_once_with_the_remedy(quick):
    pending = scan(partitionable(A100, mig_pending=True))

    watched = await Watched(pending).run(3)

    [(reason, note)] = watched.troubles
    assert reason == "MigModePending"
    assert "needs a reset or reboot" in note


async def test_views_that_are_chosen_later_are_offered_at_once_without_a_look(quick):
    watched = await Watched(scan(gpu(0))).run(looks=3)
    looks = watched.vendor.count

    watched.watch.offer((View.MONITOR,))
    watched.watch.offer((View.MONITOR,))

    assert [published(one) for one in watched.layouts] == [["gpu-0", "gpu-0-monitor"], ["gpu-0-monitor"]]
    assert watched.vendor.count == looks
    assert list(watched.watch.inventory().devices) == ["gpu-0-monitor"]


async def test_views_that_are_chosen_before_the_first_look_are_those_that_it_comes_to(quick):
    watched = Watched(scan(gpu(0)))
    watched.watch.offer((View.MONITOR,))

    await watched.run(looks=3)

    assert [published(one) for one in watched.layouts] == [["gpu-0-monitor"]]


def lost(one):
    return SickGpu(one.pci_address, "fallen off the bus", one.uuid, last=one)


async def test_a_gpu_that_is_lost_stays_published_as_it_was_and_does_not_work(quick):
    watched = await Watched(scan(gpu(0), gpu(1)), scan(gpu(0), sick=[lost(gpu(1))])).run(4)

    before, after = watched.published
    assert after == before
    inventory = watched.watch.inventory()
    assert sorted(inventory.gpus) == [gpu(0).uuid]
    assert inventory.lost == {gpu(1).uuid: gpu(1)}
    assert watched.watch.gpu(gpu(1).uuid) == gpu(1)
    assert watched.troubles == [("GpuNotUsable", "GPU at 0000:11:00.0: fallen off the bus")]


async def test_a_gpu_that_returns_works_again_and_nothing_else_changes(quick):
    both = scan(gpu(0), gpu(1))

    watched = await Watched(both, scan(gpu(0), sick=[lost(gpu(1))]), both).run(5)

    first, _, last = [published(layout) for layout in watched.layouts]
    assert last == first
    assert watched.watch.inventory().lost == {}


async def test_partitions_of_claims_on_a_lost_gpu_stay_theirs_when_the_claims_end(quick):
    gone = partitionable(H100, mig_enabled=True, mig_instances=(MINE,))
    looks = [WITH_ONE, scan(sick=[lost(gone)])]

    watched = await of_claims({PLACE}, {PLACE}, {PLACE}, {PLACE}, (), looks=looks).run(5)

    assert watched.published[-1] == watched.published[0]
    assert [reason for reason, _ in watched.troubles] == ["GpuNotUsable"]


async def test_a_gpu_in_another_slot_gets_another_name_and_its_old_one_goes_to_nobody(quick):
    moved = gpu(1, pci_address="0000:77:00.0")

    watched = await Watched(scan(gpu(0), gpu(1)), scan(gpu(0), moved)).run(4)

    assert watched.published[-1] == ["gpu-0", "gpu-0-monitor", "gpu-2", "gpu-2-monitor"]
    assert watched.watch.inventory().devices["gpu-2"].gpu.uuid == gpu(1).uuid


async def looks_again(watched, change):
    """Let an hour's pause begin, let something happen in it, and wait for the next look."""
    task = asyncio.create_task(watched.watch.run())
    async with asyncio.timeout(30):
        await watched.watch.found.wait()
        while watched.vendor.count < 2:  # the second one settles
            await asyncio.sleep(0)
        change()
        while watched.vendor.count < 3:
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def brisk(quick, monkeypatch):
    monkeypatch.setattr(inventory_watch, "SHORTEST_SECONDS", 0)
    monkeypatch.setattr(inventory_watch, "PRESENCE_SECONDS", 0.001)


async def test_a_gpu_that_comes_is_looked_for_when_the_vendor_says_that_others_are_there(brisk):
    watched = Watched(scan(gpu(0)), scan(gpu(0)), scan(gpu(0), gpu(1)), period=3600)

    await looks_again(watched, lambda: setattr(watched.vendor, "there", 1))

    assert len(watched.published[-1]) == 4


async def test_whoever_knows_of_a_change_has_the_gpus_looked_at(brisk):
    watched = Watched(scan(gpu(0)), scan(gpu(0)), scan(gpu(0), gpu(1)), period=3600)

    await looks_again(watched, watched.watch.wake)

    assert len(watched.published[-1]) == 4


async def test_a_sick_gpu_is_looked_at_again_and_again(brisk, monkeypatch):
    monkeypatch.setattr(inventory_watch, "SICK_SECONDS", 0)

    watched = await Watched(scan(gpu(0), sick=[lost(gpu(1))]), period=3600).run(10)

    assert watched.vendor.count >= 10
