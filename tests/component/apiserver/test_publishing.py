"""What the publisher writes, what it does not, and in which order."""

import asyncio
import copy
from typing import Any

import pytest

from dra_gpu.api.resource_v1 import DeviceTaint
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import Connection
from dra_gpu.apiserver.publish_reports import Published
from dra_gpu.apiserver.slice_diff import PoolIdentity
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import Gpu, View
from dra_gpu.inventory.slices import SliceContent, arrange
from dra_gpu.inventory.views import Layout
from dra_gpu_sim.apiserver.server import ApiServer

from .pool_builders import DRIVER, NODE, Reports, counters, gpu, pool, publishing, settled

Obj = dict[str, Any]


@pytest.fixture(autouse=True)
def node(server: ApiServer) -> Obj:
    return server.put("nodes", {"metadata": {"name": NODE}})


def slices(server: ApiServer) -> list[Obj]:
    return server.objects("resourceslices")


def named(objects: list[Obj]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


async def publish_once(api: HttpKubernetesApi, contents: tuple[SliceContent, ...]) -> None:
    async with publishing(api, contents) as publisher:
        await settled(publisher)


async def test_a_new_pool_is_written_counters_first_then_devices(server: ApiServer, api: HttpKubernetesApi) -> None:
    await publish_once(api, pool(gpu(0), gpu(1)))
    written = server.log.writes_since(resource="resourceslices")
    assert [record.verb for record in written] == ["create", "create"]
    first, second = sorted(slices(server), key=lambda one: int(one["metadata"]["resourceVersion"]))
    assert "sharedCounters" in first["spec"]
    assert [device["name"] for device in second["spec"]["devices"]] == ["gpu-0", "gpu-1"]


async def test_every_slice_is_owned_by_the_node_and_carries_count_and_generation(
    server: ApiServer, api: HttpKubernetesApi, node: Obj
) -> None:
    await publish_once(api, pool(gpu(0)))
    for one in slices(server):
        assert one["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": True}
        ]
        assert one["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 2}
        assert (one["spec"]["driver"], one["spec"]["nodeName"]) == (DRIVER, NODE)


async def test_names_are_the_same_on_every_node_start_and_sort_in_the_order_of_the_slices(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    await publish_once(api, pool(gpu(0)))
    assert named(slices(server)) == ["00000-gpu.nvidia.com-node-1", "00001-gpu.nvidia.com-node-1"]


async def test_the_node_is_looked_up_once(server: ApiServer, api: HttpKubernetesApi) -> None:
    async with publishing(api, pool(gpu(0))) as publisher:
        await settled(publisher)
        publisher.publish(pool(gpu(0), gpu(1)))
        await settled(publisher)
    assert len(server.log.since(resource="nodes")) == 1


async def test_only_slices_of_this_driver_and_node_are_listed_and_watched(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    await publish_once(api, pool(gpu(0)))
    asked = [r for r in server.log.since(resource="resourceslices") if r.verb in ("list", "watch")]
    assert asked
    assert all("fieldSelector=spec.driver%3Dgpu.nvidia.com%2Cspec.nodeName%3Dnode-1" in r.query for r in asked)


async def test_writes_ask_for_strict_field_validation(server: ApiServer, api: HttpKubernetesApi) -> None:
    await publish_once(api, pool(gpu(0)))
    assert all("fieldValidation=Strict" in record.query for record in server.log.writes_since())


@pytest.mark.case("C55")
async def test_an_unchanged_restart_writes_nothing(server: ApiServer, api: HttpKubernetesApi) -> None:
    await publish_once(api, pool(gpu(0), gpu(1)))
    before, mark = slices(server), server.log.count
    for _ in range(5):
        await publish_once(api, pool(gpu(0), gpu(1)))
    assert server.log.writes_since(mark) == []
    assert slices(server) == before


@pytest.mark.case("C55")
async def test_another_spelling_of_a_quantity_writes_nothing(server: ApiServer, api: HttpKubernetesApi) -> None:
    await publish_once(api, pool(gpu(0, memory="80Gi")))
    mark = server.log.count
    await publish_once(api, pool(gpu(0, memory="85899345920")))
    assert server.log.writes_since(mark) == []


async def test_publishing_the_same_again_writes_nothing(server: ApiServer, api: HttpKubernetesApi) -> None:
    async with publishing(api, pool(gpu(0))) as publisher:
        await settled(publisher)
        mark = server.log.count
        publisher.publish(pool(gpu(0)))
        await settled(publisher)
        assert server.log.writes_since(mark) == []


@pytest.mark.case("C55")
async def test_a_changed_attribute_is_one_update_of_the_same_object_at_the_same_generation(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with publishing(api, pool(gpu(0), gpu(1))) as publisher:
        await settled(publisher)
        before, mark = slices(server), server.log.count
        publisher.publish(pool(gpu(0), gpu(1, model="H200")))
        await settled(publisher)
        after = slices(server)
        assert [record.verb for record in server.log.writes_since(mark)] == ["update"]
        assert [one["metadata"]["uid"] for one in after] == [one["metadata"]["uid"] for one in before]
        assert [one["spec"]["pool"]["generation"] for one in after] == [1, 1]


async def test_an_upgrade_that_changes_every_slice_is_one_update_each_and_no_new_generation(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    two = (counters(0, 1), SliceContent(devices=(gpu(0),)), SliceContent(devices=(gpu(1),)))
    other = (two[0], *(SliceContent(devices=(gpu(number, model="H200"),)) for number in (0, 1)))
    await publish_once(api, two)
    mark = server.log.count
    await publish_once(api, other)
    assert [record.verb for record in server.log.writes_since(mark)] == ["update", "update"]
    assert {one["spec"]["pool"]["generation"] for one in slices(server)} == {1}


@pytest.mark.case("C50")
async def test_a_taint_changes_its_slice_in_place(server: ApiServer, api: HttpKubernetesApi) -> None:
    taint = DeviceTaint("gpu.nvidia.com/xid", "NoSchedule", "79")
    async with publishing(api, pool(gpu(0), gpu(1))) as publisher:
        await settled(publisher)
        mark = server.log.count
        publisher.publish(pool(gpu(0, taints=[taint]), gpu(1)))
        await settled(publisher)
        assert [record.verb for record in server.log.writes_since(mark)] == ["update"]
        assert slices(server)[1]["spec"]["pool"]["generation"] == 1


async def test_a_taint_keeps_the_time_under_which_it_was_first_published(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    taint = DeviceTaint("gpu.nvidia.com/xid", "NoSchedule", "79")
    await publish_once(api, pool(gpu(0, taints=[taint])))
    stored = copy.deepcopy(slices(server)[1])
    stored["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-07-01T00:00:00Z"
    await api.update(_slices_resource(), stored, stored["metadata"]["name"])
    await publish_once(api, pool(gpu(0, taints=[taint], model="H200")))
    device = slices(server)[1]["spec"]["devices"][0]
    assert device["attributes"]["productName"] == {"string": "H200"}
    assert device["taints"][0]["timeAdded"] == "2026-07-01T00:00:00Z"


async def test_another_set_of_devices_raises_the_generation_of_all_slices(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with publishing(api, pool(gpu(0), gpu(1))) as publisher:
        await settled(publisher)
        publisher.publish(pool(gpu(0)))
        await settled(publisher)
        assert [one["spec"]["pool"]["generation"] for one in slices(server)] == [2, 2]


async def test_another_order_of_devices_is_a_change_but_not_another_set(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with publishing(api, pool(gpu(0), gpu(1))) as publisher:
        await settled(publisher)
        publisher.publish((counters(0, 1), SliceContent(devices=(gpu(1), gpu(0)))))
        await settled(publisher)
        assert [device["name"] for device in slices(server)[1]["spec"]["devices"]] == ["gpu-1", "gpu-0"]
        assert slices(server)[1]["spec"]["pool"]["generation"] == 1


@pytest.mark.case("C49")
async def test_a_pool_that_shrinks_leaves_no_slice_of_the_old_generation(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    big = (counters(0, 1), SliceContent(devices=(gpu(0),)), SliceContent(devices=(gpu(1),)))
    await publish_once(api, big)
    mark = server.log.count
    await publish_once(api, pool(gpu(0)))
    verbs = [record.verb for record in server.log.writes_since(mark)]
    assert verbs[0] == "delete"
    assert [one["spec"]["pool"] for one in slices(server)] == [
        {"name": NODE, "generation": 2, "resourceSliceCount": 2},
        {"name": NODE, "generation": 2, "resourceSliceCount": 2},
    ]


@pytest.mark.case("C49")
@pytest.mark.case("C50")
@pytest.mark.parametrize("gpus", [8, 9, 11, 16, 150])
async def test_however_many_gpus_there_are_every_slice_is_accepted_in_one_complete_generation(
    server: ApiServer, api: HttpKubernetesApi, gpus: int
) -> None:
    devices = [gpu(number) for number in range(gpus)]
    published = {one.name: PublishedDevice(one.name, View.GPU, Gpu(one.name, 0), one) for one in devices}
    contents = arrange(Layout(Inventory(published), counters(*range(gpus)).counter_sets))
    await publish_once(api, contents)
    stored = slices(server)
    assert {(one["spec"]["pool"]["generation"], one["spec"]["pool"]["resourceSliceCount"]) for one in stored} == {
        (1, len(stored))
    }
    assert [device["name"] for one in stored for device in one["spec"].get("devices", [])] == list(published)


async def test_obsolete_slices_are_deleted_with_uid_and_version_as_preconditions(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    await publish_once(api, (SliceContent(devices=()), SliceContent(devices=())))
    mark = server.log.count
    await publish_once(api, (SliceContent(),))
    (deletion,) = [record for record in server.log.writes_since(mark) if record.verb == "delete"]
    assert deletion.body_bytes > 100


async def test_an_empty_pool_is_one_empty_slice(server: ApiServer, api: HttpKubernetesApi) -> None:
    await publish_once(api, ())
    (one,) = slices(server)
    assert "devices" not in one["spec"]
    assert one["spec"]["pool"]["resourceSliceCount"] == 1


async def test_slices_stay_when_the_publisher_ends(server: ApiServer, api: HttpKubernetesApi) -> None:
    await publish_once(api, pool(gpu(0)))
    assert len(slices(server)) == 2


async def test_a_withdrawn_pool_is_deleted_and_comes_back_when_published_again(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with publishing(api, pool(gpu(0))) as publisher:
        await settled(publisher)
        publisher.withdraw("the device plugin holds the node")
        await settled(publisher)
        assert slices(server) == []
        publisher.publish(pool(gpu(0)))
        await settled(publisher)
        assert len(slices(server)) == 2


async def test_nothing_happens_before_the_first_inventory(server: ApiServer, api: HttpKubernetesApi) -> None:
    await publish_once(api, pool(gpu(0)))
    mark = server.log.count
    async with publishing(api, None):
        await server.log.wait_for(lambda log: log.since(mark, verb="watch"))
        await asyncio.sleep(0)
    assert server.log.writes_since(mark) == []


async def test_a_run_that_broke_off_is_continued_at_its_generation(server: ApiServer, api: HttpKubernetesApi) -> None:
    reports = Reports()
    server.faults.fail(status=500, verb="create", name="", resource="resourceslices")
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        server.faults.fail(status=0, verb="update", resource="resourceslices")
        server.faults.fail(status=503, verb="update", resource="resourceslices")
        publisher.publish(pool(gpu(0), gpu(1)))
        await reports.wait(Published, lambda report: report.generation == 2)
        assert [one["spec"]["pool"]["generation"] for one in slices(server)] == [2, 2]


@pytest.mark.case("C58")
@pytest.mark.parametrize("name", ["10.20.30.40", "rack1.node-7.example.internal", "a" * 63 + "." + "b" * 189])
async def test_every_legal_node_name_gives_a_legal_pool(server: ApiServer, api: HttpKubernetesApi, name: str) -> None:
    server.put("nodes", {"metadata": {"name": name}})
    async with publishing(api, pool(gpu(0)), identity=PoolIdentity(DRIVER, name, name)) as publisher:
        await settled(publisher)
    assert len(slices(server)) == 2
    assert all(len(one["metadata"]["name"]) <= 253 for one in slices(server))


@pytest.mark.case("C29")
async def test_the_older_of_two_instances_writes_nothing_and_the_newer_needs_no_write(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    newest = ["old"]
    other_api = HttpKubernetesApi(Connection(server.url))
    async with publishing(api, pool(gpu(0)), may_publish=lambda: newest[0] == "old") as old:
        await settled(old)
        before, mark = slices(server), server.log.count
        newest[0] = "new"
        async with publishing(other_api, pool(gpu(0)), may_publish=lambda: newest[0] == "new") as new:
            await settled(new)
            old.publish(pool(gpu(0, model="stale")))
            await asyncio.sleep(0.1)
            assert server.log.writes_since(mark) == []
            assert slices(server) == before
    other_api.close()


def _slices_resource() -> Any:
    from dra_gpu.apiserver.resources import RESOURCE_SLICES

    return RESOURCE_SLICES
