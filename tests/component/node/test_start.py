"""A start beside something that is wrong on the node, through the shipped process."""


async def test_a_cdi_directory_that_cannot_be_read_at_the_start_does_not_end_the_plugin(make_world):
    world = await make_world(gpus=2)
    cdi = world.cluster.paths.cdi
    cdi.rmdir()
    cdi.write_text("a file stands where the directory should be")

    await world.start(devices=4)
    await world.api.log.wait_for(lambda log: log.writes_since(resource="events"))

    assert "StartNotFinished" in {event["reason"] for event in world.api.objects("events")}
    cdi.unlink()
    cdi.mkdir()
    await world.prepared(world.claim("job", "gpu-0"))
