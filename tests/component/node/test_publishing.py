"""What stands in the ResourceSlices of a node, through the shipped process."""

import asyncio

import pytest

from dra_gpu_sim.apiserver.server import ApiServer, ServerOptions
from dra_gpu_sim.local.cluster import DRIVER


def writes(world, mark=0):
    return world.api.log.writes_since(mark, resource="resourceslices")


def devices(world):
    return [device["name"] for item in world.cluster.slices() for device in item["spec"].get("devices", ())]


def device(world, name):
    return next(
        one for item in world.cluster.slices() for one in item["spec"].get("devices", ()) if one["name"] == name
    )


async def test_every_gpu_is_published_as_gpu_and_as_monitor(world):
    assert devices(world) == [f"gpu-{n}" for n in reversed(range(8))] + [f"gpu-{n}-monitor" for n in range(8)]


async def test_counter_sets_stand_in_a_slice_of_their_own_in_front(world):
    first, second = world.cluster.slices()

    assert [one["name"] for one in first["spec"]["sharedCounters"]] == [f"gpu-{n}-counter-set" for n in range(8)]
    assert "sharedCounters" not in second["spec"]


async def test_slices_belong_to_the_node(world):
    [node] = world.api.objects("nodes")

    for item in world.cluster.slices():
        [owner] = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-0", node["metadata"]["uid"])
        assert item["spec"]["nodeName"] == item["spec"]["pool"]["name"] == "node-0"


async def test_nothing_is_published_before_the_kubelet_has_registered_the_plugin(make_world):
    world = await make_world()
    await world.cluster.start_plugin("--views=gpu,monitor")
    await world.api.log.wait_for(lambda log: log.since(resource="nodes"))
    await asyncio.sleep(0.3)
    assert world.cluster.slices() == []

    await world.kubelet.wait_registered(DRIVER)

    assert len(await world.cluster.wait_slices(16)) == 2


@pytest.mark.case("C55")
async def test_five_restarts_without_a_change_write_nothing(world):
    before = world.cluster.slices()
    mark = world.api.log.count

    for _ in range(5):
        listed = world.api.log.count
        plugin = await world.restart()
        await world.api.log.wait_for(lambda log, mark=listed: log.since(mark, verb="watch", resource="resourceslices"))
        await world.until(lambda plugin=plugin: "this instance publishes" in plugin.read_log())
    assert world.cluster.slices() == before

    # What the last one writes once something is missing shows that it compares everything, and that this is all.
    world.api.remove("resourceslices", before[1]["metadata"]["name"])
    await world.cluster.wait_slices(16)
    assert [write.verb for write in writes(world, mark)] == ["create"]
    assert [item["spec"] for item in world.cluster.slices()] == [item["spec"] for item in before]


async def test_slices_that_somebody_wipes_are_back_as_soon_as_the_kubelet_has_registered_the_plugin(world):
    for item in world.cluster.slices():
        world.api.remove("resourceslices", item["metadata"]["name"])
    world.kubelet.restart()
    await world.kubelet.wait_registered(DRIVER)

    await world.cluster.wait_slices(16)


@pytest.mark.case("C29")
async def test_two_instances_change_each_slice_once_and_keep_the_objects(make_world):
    world = await make_world()
    await world.start("--pod-uid=a", "--views=gpu", devices=8)
    before = {item["metadata"]["name"]: item["metadata"]["uid"] for item in world.cluster.slices()}
    old, mark = world.plugin, world.api.log.count

    await world.start("--pod-uid=b", devices=16)
    assert await old.stop() == 0
    await asyncio.sleep(0.5)

    after = {item["metadata"]["name"]: item["metadata"]["uid"] for item in world.cluster.slices()}
    assert after == before
    assert len(writes(world, mark)) <= len(before)
    assert "gpu-0-monitor" in devices(world)


@pytest.mark.case("C29")
async def test_claims_go_on_while_instances_come_and_go(make_world):
    world = await make_world()
    await world.start("--pod-uid=a", devices=16)
    held = world.claim("held", "gpu-0")
    first = await world.prepared(held)
    old = world.plugin

    await world.start("--pod-uid=b")
    assert (await world.prepared(held)) == first
    assert await old.stop() == 0
    await world.kubelet.look()

    await world.prepared(world.claim("new", "gpu-1"))
    assert (await world.unprepare(held))[held.uid] == ""
    assert [plugin.socket.name for plugin in world.kubelet.plugins] == ["gpu.nvidia.com-b-reg.sock"]


async def test_the_older_instance_publishes_again_when_the_newer_one_is_killed(make_world):
    world = await make_world()
    await world.start("--pod-uid=a", "--views=gpu", devices=8)
    await world.start("--pod-uid=b", devices=16)

    await world.plugin.kill()

    await world.cluster.wait_slices(8)


@pytest.mark.migration("The node does not list nvidia.com/gpu")
async def test_while_a_device_plugin_holds_the_node_nothing_is_published(make_world):
    world = await make_world()
    world.api.remove("nodes", "node-0")
    world.api.put("nodes", {"metadata": {"name": "node-0"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})

    await world.start()
    await world.api.log.wait_for(lambda log: log.writes_since(resource="events"))

    await world.until(lambda: "8 nvidia.com/gpu" in world.plugin.read_log())
    assert world.cluster.slices() == []


async def test_while_foreign_slices_of_our_name_exist_nothing_is_published_and_then_it_goes_on(make_world):
    world = await make_world()
    world.api.put(
        "resourceslices",
        {
            "metadata": {"name": "theirs"},
            "spec": {
                "driver": DRIVER,
                "nodeName": "node-0",
                "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}],
            },
        },
    )
    await world.start()
    await world.api.log.wait_for(lambda log: log.writes_since(resource="events"))
    assert [item["metadata"]["name"] for item in world.cluster.slices()] == ["theirs"]

    world.api.remove("resourceslices", "theirs")

    await world.cluster.wait_slices(16)


@pytest.mark.case("C65")
async def test_an_api_server_that_comes_late_is_waited_for(make_world):
    world = await make_world()
    world.api.refuse()
    plugin = await world.start()
    await world.until(lambda: "the Node object cannot be read" in plugin.read_log())

    await world.api.reopen()

    await world.cluster.wait_slices(16, within=90)


@pytest.mark.migration("Kubernetes before 1.36")
async def test_counters_that_the_server_drops_keep_every_device_back(make_world):
    world = await make_world(api=ApiServer(ServerOptions(gates_off=["DRAPartitionableDevices"])))

    await world.start()
    await world.api.log.wait_for(lambda log: log.writes_since(resource="events"))

    await world.until(lambda: "DRAPartitionableDevices" in world.plugin.read_log())
    assert devices(world) == []


async def test_an_attribute_has_the_name_and_type_of_nvidias_driver(world):
    attributes = device(world, "gpu-3")["attributes"]

    assert attributes["type"] == {"string": "gpu"}
    assert attributes["uuid"] == {"string": world.node.uuids[3]}
    assert attributes["cudaComputeCapability"] == {"version": "9.0.0"}
    assert attributes["resource.kubernetes.io/pciBusID"] == {"string": world.node.gpus[3].pci}
    assert attributes["resource.kubernetes.io/pcieRoot"]["string"].startswith("pci0000:")
    assert set(attributes["resource.kubernetes.io/numaNode"]) == {"int"}
    assert len({device(world, f"gpu-{n}")["attributes"]["nvlinkGroup"]["string"] for n in range(8)}) == 1
