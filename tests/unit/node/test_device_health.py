"""What the kubelet is told of each device."""

from datetime import UTC, datetime

import pytest

from dra_gpu.claims.journal_errors import JournalFullError
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.health.state import GpuHealth, PartHealth, Verdict
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.model import MigPlacement, MigProfile, Scan, View
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.kubelet.health import DeviceHealth, HealthStatus
from dra_gpu.node.device_health import DeviceHealthReader, device_health
from tests.unit.inventory.builders import GIB, gpu

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
HEALTHY = PartHealth(Verdict.HEALTHY, since=SINCE)
SICK = PartHealth(Verdict.UNHEALTHY, reason="XID 79: reset it", since=SINCE)
LEFT, RIGHT = MigPlacement(9, 0, 4), MigPlacement(9, 4, 4)
HALF = MigProfile(9, 9, "3g.40gb", 3, 40 * GIB, 60, placements=(LEFT, RIGHT))


def inventory(*gpus, of=(View.GPU, View.MONITOR)):
    return views.build(Scan(gpus=gpus), naming.assign({}, gpus), ViewOptions(tuple(of))).inventory


def told(*gpus, states, held=(), of=(View.GPU, View.MONITOR)):
    found = device_health("node-a", inventory(*gpus, of=of), {one.gpu: one for one in states}, held)
    assert all(one.pool == "node-a" for one in found)
    return {one.device: (one.status.name, one.message) for one in found}


def test_every_view_of_a_gpu_is_as_well_as_the_gpu():
    first, second = gpu(0), gpu(1)

    found = told(first, second, states=[GpuHealth(first.uuid, SICK), GpuHealth(second.uuid, HEALTHY)])

    assert found == {
        "gpu-0": ("UNHEALTHY", "XID 79: reset it"),
        "gpu-0-monitor": ("UNHEALTHY", "XID 79: reset it"),
        "gpu-1": ("HEALTHY", ""),
        "gpu-1-monitor": ("HEALTHY", ""),
    }


def test_a_gpu_that_nobody_has_looked_at_is_unknown():
    assert told(gpu(0), states=[])["gpu-0"] == ("UNKNOWN", "")


def test_a_sick_partition_leaves_its_neighbours_healthy():
    divided = gpu(0, mig_capable=True, mig_live=True, mig_enabled=False, mig_pending=False, mig_profiles=(HALF,))

    found = told(divided, states=[GpuHealth(divided.uuid, HEALTHY, {LEFT: SICK})], of=(View.MIG,))

    assert found == {"gpu-0-mig-3g40gb-9-0": ("UNHEALTHY", SICK.reason), "gpu-0-mig-3g40gb-9-4": ("HEALTHY", "")}


def test_a_held_device_that_is_not_published_any_more_is_told_by_its_gpu():
    gone = gpu(3)

    found = told(states=[GpuHealth(gone.uuid, SICK)], held=[Hold("gpu-3", gone.uuid, Access.EXCLUSIVE)])

    assert found == {"gpu-3": ("UNHEALTHY", SICK.reason)}


def test_a_held_partition_that_is_not_published_any_more_is_told_by_its_units():
    states = [GpuHealth("GPU-1", HEALTHY, {LEFT: SICK})]
    held = [
        Hold("left", "GPU-1", Access.PARTITION, units=LEFT.units),
        Hold("right", "GPU-1", Access.PARTITION, units=RIGHT.units),
    ]

    assert told(states=states, held=held) == {"left": ("UNHEALTHY", SICK.reason), "right": ("HEALTHY", "")}


def test_a_name_that_another_gpu_has_now_is_told_by_the_gpu_that_is_held():
    here, held_one = gpu(0), "GPU-held"

    states = [GpuHealth(here.uuid, HEALTHY), GpuHealth(held_one, SICK)]
    found = told(here, states=states, held=[Hold("gpu-0", held_one, Access.EXCLUSIVE)])

    assert found["gpu-0"] == ("UNHEALTHY", SICK.reason)


def test_a_held_gpu_that_was_never_seen_is_unknown_and_says_so():
    [(status, message)] = told(states=[], held=[Hold("gpu-0", "GPU-never", Access.EXCLUSIVE)]).values()

    assert status == "UNKNOWN"
    assert "GPU-never" in message


def test_what_is_held_comes_first_and_what_is_sick_next():
    gpus = [gpu(number) for number in range(3)]
    states = {one.uuid: GpuHealth(one.uuid, HEALTHY) for one in gpus} | {gpus[1].uuid: GpuHealth(gpus[1].uuid, SICK)}

    found = device_health(
        "node-a", inventory(*gpus, of=(View.GPU,)), states, [Hold("gpu-0", gpus[0].uuid, Access.EXCLUSIVE)]
    )

    assert [one.device for one in found] == ["gpu-0", "gpu-1", "gpu-2"]


class Health:
    """One sick GPU, and who wants to hear of changes."""

    def __init__(self):
        self.listeners = []

    def states(self):
        return {"GPU-1": GpuHealth("GPU-1", SICK)}

    def subscribe(self, listener):
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)


def reader(records, health=None):
    return DeviceHealthReader("node-a", lambda: inventory(gpu(0)), health or Health(), records, "boot-1")


def record(boot_id):
    ref = ClaimRef("default", "job", "uid-1")
    return Record(ref, boot_id, State.PREPARED, holds=(Hold("gpu-9", "GPU-1", Access.EXCLUSIVE),))


@pytest.mark.parametrize(("boot_id", "there"), [("boot-1", True), ("boot-0", False)])
async def test_holds_of_this_boot_alone_count(boot_id, there):
    async def records():
        return [record(boot_id)]

    names = [one.device for one in await reader(records).read()]

    assert ("gpu-9" in names) is there


async def test_published_devices_are_told_while_the_journal_cannot_be_read():
    async def records():
        raise JournalFullError("no space left")

    found = await reader(records).read()

    assert DeviceHealth("node-a", "gpu-0", HealthStatus.UNKNOWN) in found


async def test_the_streams_hear_of_each_change():
    async def records():
        return []

    health = Health()
    feed = reader(records, health).feed()

    assert health.listeners == [feed.changed]
