"""A Node's label narrows what the shipped process publishes of it, and takes nothing away from who has it."""

from dra_gpu_sim.apiserver import resources

LABEL = "resource.dra-gpu.dev/views"


def devices(world):
    return {device["name"] for item in world.cluster.slices() for device in item["spec"].get("devices", ())}


def label(world, value):
    """Label the node, or take the label away."""
    (node,) = world.api.objects("nodes")
    labels = {key: one for key, one in node["metadata"].get("labels", {}).items() if key != LABEL}
    if value is not None:
        labels[LABEL] = value
    changed = node | {"metadata": node["metadata"] | {"labels": labels}}
    world.api.store.replace(resources.by_plural("nodes"), "", node["metadata"]["name"], changed, status_only=False)


def told(world):
    return [one["message"] for one in world.api.objects("events") if one["reason"] == "ViewsLabel"]


async def test_a_labelled_node_publishes_these_views_alone_from_the_start(make_world):
    world = await make_world(gpus=2)
    label(world, "monitor")
    await world.start("--views=gpu,monitor")
    await world.cluster.wait_slices(2)

    assert devices(world) == {"gpu-0-monitor", "gpu-1-monitor"}
    generations = {one["spec"]["pool"]["generation"] for one in world.cluster.slices()}
    assert generations == {1}, "nothing else was published before"
    assert told(world) == []


async def test_a_label_is_followed_while_a_claim_has_a_device_of_a_view_that_goes(make_world):
    world = await make_world(gpus=2)
    await world.start("--views=gpu,monitor", devices=4)
    claim = world.claim("held", "gpu-0")
    await world.prepared(claim)

    label(world, "monitor")
    await world.cluster.wait_slices(2)
    assert devices(world) == {"gpu-0-monitor", "gpu-1-monitor"}
    again = await world.prepared(claim)
    label(world, "gpu,monitor")
    await world.api.log.wait_for(lambda _: told(world), 60)
    assert devices(world) == {"gpu-0-monitor", "gpu-1-monitor"}
    assert "such as gpu.shared" in told(world)[0]

    assert [one.device for one in again.devices] == ["gpu-0"]
    assert (await world.unprepare(claim))[claim.uid] == ""
