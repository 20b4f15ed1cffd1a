"""Health in the node plugin: what goes to slices, to the Node, to claims; and what a person asks for."""

import asyncio

import pytest

from dra_gpu.api.cordon import CLEAR_ANNOTATION
from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.apiserver.resources import Node
from dra_gpu.claims.journal_errors import JournalFullError
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.model import MigInstance, MigPlacement, MigProfile, Scan, View
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.node import health
from dra_gpu.node.health import HealthInputs, HealthOutputs, NodeHealth
from dra_gpu.node.health_settings import HealthSettings
from tests.unit.health.reports import BOOT, DRIVER, probe, xid
from tests.unit.inventory.builders import GIB, gpu

SECONDS = 20
LEFT, RIGHT = MigPlacement(9, 0, 4), MigPlacement(9, 4, 4)
HALF = MigProfile(9, 9, "3g.40gb", 3, 40 * GIB, 60, placements=(LEFT, RIGHT))


class Vendor:
    """Reports what a test says."""

    def __init__(self):
        self.watching = asyncio.Event()
        self.report = None

    async def watch_health(self, gpus, report, ready):
        self.report = report
        ready([one.uuid for one in gpus])
        self.watching.set()
        await asyncio.get_running_loop().create_future()

    async def probe_health(self, gpus):
        return tuple(probe(gpu=one.uuid) for one in gpus)


def held(name, *holds, boot=BOOT, state=State.PREPARED):
    return Record(ClaimRef("team", name, f"uid-{name}"), boot, state, holds=holds)


class World:
    """Two GPUs, the second with partitions, and claims on both."""

    def __init__(self, directory):
        self.gpus = (
            gpu(0),
            gpu(1, mig_capable=True, mig_live=True, mig_enabled=True, mig_profiles=(HALF,),
                mig_instances=(MigInstance(LEFT, 7, 0, "MIG-7"),)),
        )  # fmt: skip
        options = ViewOptions((View.GPU, View.MIG, View.MONITOR))
        ours = {(self.gpus[1].uuid, LEFT)}
        self.layout = views.build(Scan(gpus=self.gpus), naming.assign({}, self.gpus), options, ours)
        first, second = (one.uuid for one in self.gpus)
        self.claims = [
            held("whole", Hold("gpu-0", first, Access.EXCLUSIVE)),
            held("left", Hold("gpu-1-mig-3g40gb-9-0", second, Access.PARTITION, units=LEFT.units)),
            held("right", Hold("gpu-1-mig-3g40gb-9-4", second, Access.PARTITION, units=RIGHT.units)),
            held("of-an-earlier-boot", Hold("gpu-0", first, Access.EXCLUSIVE), boot="before"),
            held("half-made", Hold("gpu-0", first, Access.EXCLUSIVE), state=State.PREPARING),
        ]
        self.vendor = Vendor()
        self.published, self.of_node, self.of_claims, self.said = [], [], [], []
        self.failures = []
        self.happened = asyncio.Event()
        self.health = NodeHealth(
            HealthSettings(), DRIVER, BOOT, directory, self.vendor,
            HealthInputs(lambda: self.layout.inventory, self.records, lambda *_: None, lambda: None, lambda: True),
            HealthOutputs(
                self.took(self.published), self.took(self.of_node), self.took(self.of_claims), self.took(self.said)
            ),
        )  # fmt: skip

    def took(self, into):
        def take(*what):
            into.append(what if len(what) > 1 else what[0])
            self.happened.set()

        return take

    async def records(self):
        if self.failures:
            raise self.failures.pop()
        return self.claims

    async def until(self, condition):
        async with asyncio.timeout(SECONDS):
            while not condition():
                self.happened.clear()
                await self.happened.wait()

    def taints(self):
        """By device, the last part of the keys in the slices that were published last."""
        return {
            device.name: [taint.key.rpartition("/")[2] for taint in device.taints]
            for content in self.published[-1]
            for device in content.devices
            if device.taints
        }


@pytest.fixture
async def world(tmp_path):
    found = World(tmp_path)
    found.health.set_layout(found.layout)
    task = asyncio.create_task(found.health.run())
    async with asyncio.timeout(SECONDS):
        await found.vendor.watching.wait()
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_sick_gpu_is_published_tainted_and_told_to_the_node_and_to_who_holds_it(world):
    world.vendor.report(xid(95, gpu=world.gpus[0].uuid))

    await world.until(lambda: world.of_claims and world.taints() == {"gpu-0": ["xid"]})

    assert [(kind, reason) for kind, reason, _ in world.of_node] == [("Warning", "GpuUnhealthy")]
    assert "GPU gpu-0 (GPU-00000000-" in world.of_node[0][2]
    assert [(ref.name, kind, reason) for ref, kind, reason, _ in world.of_claims] == [
        ("whole", "Warning", "DeviceUnhealthy")
    ]


@pytest.mark.case("C103")
async def test_a_sick_partition_concerns_whoever_holds_that_partition(world):
    world.vendor.report(xid(95, gpu_instance=7, gpu=world.gpus[1].uuid))

    await world.until(lambda: world.of_claims and world.taints() == {"gpu-1-mig-3g40gb-9-0": ["xid"]})

    assert [ref.name for ref, *_ in world.of_claims] == ["left"]
    assert "the partition of 4 memory units from 0 of GPU gpu-1" in world.of_claims[0][3]
    assert world.health.of(world.gpus[1].uuid, LEFT).taints
    assert not world.health.of(world.gpus[1].uuid, RIGHT).taints


async def test_a_partition_that_is_destroyed_takes_its_taint_along(world):
    world.vendor.report(xid(95, gpu_instance=7, gpu=world.gpus[1].uuid))
    await world.until(world.taints)

    world.health.destroyed(world.gpus[1].uuid, LEFT)

    await world.until(lambda: world.taints() == {})


async def test_the_status_of_claims_on_every_gpu_is_said_once_it_has_been_looked_at(world):
    await world.until(lambda: {record.ref.name for record in world.said} == {"whole", "left", "right"})

    assert world.of_claims == []


async def test_claims_are_told_later_while_the_journal_cannot_be_read(world, monkeypatch):
    monkeypatch.setattr(health, "RETRY_SECONDS", 0.01)
    await world.until(lambda: len(world.said) >= 3)
    world.failures = [JournalFullError("no space")]

    world.vendor.report(xid(95, gpu=world.gpus[0].uuid))

    await world.until(lambda: world.of_claims)


async def test_a_person_calls_a_gpu_well_by_an_annotation_of_the_node(world):
    uuid = world.gpus[0].uuid
    world.vendor.report(xid(95, gpu=uuid))
    await world.until(world.taints)

    world.health.read_node(Node(metadata=ObjectMeta(name="node-a", annotations={CLEAR_ANNOTATION: f"{uuid},x"})))

    await world.until(lambda: world.taints() == {})
    assert world.of_node[-1][:2] == ("Normal", "GpuHealthy")


async def test_what_is_reported_is_counted_and_the_count_is_bounded(world):
    uuid = world.gpus[0].uuid
    for number in range(6000):
        world.vendor.report(xid(number, gpu=uuid))
    world.vendor.report(xid(1, gpu=uuid))

    assert world.health.events[uuid, "1"] == 2
    assert len(world.health.events) == 4096


async def test_a_change_of_the_layout_is_published_at_once_with_what_is_known(tmp_path):
    world = World(tmp_path)

    world.health.set_layout(world.layout)

    assert len(world.published) >= 1
    assert world.taints() == {}
