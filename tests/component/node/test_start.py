"""A start beside something that is wrong on the node, through the shipped process."""

import asyncio

from tests.component.node.sharing import VIEWS
from tests.component.node.test_broken_node import fill, small_disk


async def test_a_cdi_directory_that_cannot_be_read_at_the_start_does_not_end_the_plugin(make_world):
    world = await make_world(gpus=2)
    cdi = world.cluster.paths.cdi
    cdi.rmdir()
    cdi.write_text("a file stands where the directory should be")

    await world.start(devices=4)
    await world.api.log.wait_for(
        lambda _: "StartNotFinished" in {event["reason"] for event in world.api.objects("events")}
    )

    cdi.unlink()
    cdi.mkdir()
    await world.prepared(world.claim("job", "gpu-0"))


async def test_a_start_on_a_full_disk_names_the_disk(make_world):
    world = await make_world(gpus=1)
    with small_disk(world.cluster.paths.state):
        await world.start(devices=2)
        assert await world.plugin.stop() == 0
        fill(world.cluster.paths.state / "filler")

        again = await world.cluster.start_plugin(VIEWS)

        async with asyncio.timeout(50):
            assert await again.process.wait() == 1
        assert "no space left on device (ENOSPC) for the journal" in again.read_log()
