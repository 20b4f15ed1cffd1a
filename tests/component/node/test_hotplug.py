"""GPUs that are lost, return, come, go and move while the plugin runs: slices follow, claims keep what they have."""

import asyncio

import pytest

from tests.component.node.node_under_fire import PATIENCE
from tests.component.node.test_gpus import published, until_prepared

NEW_SLOT = "0000:77:00.0"


@pytest.fixture
async def make_node(make_world):
    """Make nodes whose plugin looks at its GPUs by itself once an hour: whatever comes sooner was noticed."""

    async def make(gpus=2, **options):
        world = await make_world(gpus=gpus, **options)
        await world.start("--rescan-period=3600", devices=2 * gpus)
        return world

    return make


def uuids(world):
    return {name: device["attributes"]["uuid"]["string"] for name, device in published(world).items()}


def log_has(world, words):
    return lambda: words in world.plugin.read_log()


async def repaired(world, claim):
    """Prepare a claim again until it succeeds."""
    async with asyncio.timeout(PATIENCE):
        while (answer := (await world.prepare(claim))[claim.uid]).error:
            pass
    return answer


async def test_a_lost_gpu_stays_published_takes_no_claim_and_works_again_when_it_returns(make_node):
    world = await make_node()
    before = uuids(world)
    held = world.claim("held", "gpu-1")
    await world.prepared(held)

    world.node.lose_gpu(1, xid=79)
    await world.until(log_has(world, "a GPU cannot be used"))

    assert uuids(world) == before
    assert "fallen off the bus" in await world.refused(world.claim("late", "gpu-1"))
    await world.prepared(world.claim("other", "gpu-0"))
    assert len(world.cdi_files) == 2

    assert (await world.unprepare(held))[held.uid] == ""
    world.node.return_gpu(1)
    await until_prepared(world, "again", "gpu-1")
    assert uuids(world) == before


async def test_a_claim_on_a_gpu_that_was_lost_and_returned_is_still_its_own(make_node):
    world = await make_node()
    held = world.claim("held", "gpu-1")
    first = await world.prepared(held)

    world.node.lose_gpu(1)
    await world.until(log_has(world, "a GPU cannot be used"))
    world.node.return_gpu(1)
    again = await repaired(world, held)

    assert again.devices == first.devices
    assert (await world.unprepare(held))[held.uid] == ""


async def test_a_gpu_that_is_plugged_in_is_offered_and_one_that_is_taken_away_is_not(make_world):
    world = await make_world(gpus=3)
    world.node.set_gpu_count(2)
    await world.start("--rescan-period=3600", devices=4)

    world.node.bind_gpu(2)
    await world.cluster.wait_slices(6)
    await world.prepared(world.claim("new", "gpu-2"))

    world.node.unbind_gpu(0)
    await world.cluster.wait_slices(4)
    assert sorted(published(world)) == ["gpu-1", "gpu-2"]


async def test_a_gpu_that_is_bound_in_another_slot_has_another_name_there_and_its_claim_ends_well(make_node):
    world = await make_node()
    held, uuid = world.claim("held", "gpu-1"), world.node.uuids[1]
    await world.prepared(held)

    world.node.bind_gpu(1, NEW_SLOT)
    await world.cluster.api.log.wait_for(lambda _: "gpu-2" in published(world), PATIENCE)

    assert uuids(world) == {"gpu-0": world.node.uuids[0], "gpu-2": uuid}
    assert (await world.unprepare(held))[held.uid] == ""
    await world.prepared(world.claim("moved", "gpu-2"))


async def test_a_driver_that_was_reloaded_while_the_plugin_was_away_serves_again(make_node):
    world = await make_node()
    held = world.claim("held", "gpu-1")
    await world.prepared(held)
    await world.plugin.kill()

    world.node.reload_driver()
    world.kubelet.restart()
    await world.start("--rescan-period=3600", devices=4)

    await world.prepared(held)
    assert (await world.unprepare(held))[held.uid] == ""
