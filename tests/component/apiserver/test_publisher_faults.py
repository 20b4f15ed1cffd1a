"""Wipes, foreign masters, refusals, dropped fields and a server that fails."""

import asyncio
from typing import Any

import pytest

from dra_gpu.api.resource_v1 import DeviceTaint
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.publish_reports import (
    DroppedFields,
    ForeignSlices,
    LeftOut,
    Published,
    PublishFailed,
    Rejected,
    WatchFailed,
    Wiped,
    Withdrawn,
)
from dra_gpu.apiserver.publisher import PublisherLimits, SlicePublisher
from dra_gpu.apiserver.slice_names import slice_name
from dra_gpu.inventory.slices import SliceContent
from dra_gpu_sim.apiserver.server import ApiServer

from .conftest import PATIENCE, SkippingClock
from .pool_builders import DRIVER, FAST, NODE, Reports, counters, gpu, pool, publishing, settled

Obj = dict[str, Any]


@pytest.fixture(autouse=True)
def node(server: ApiServer) -> Obj:
    return server.put("nodes", {"metadata": {"name": NODE}})


@pytest.fixture
def reports() -> Reports:
    return Reports()


def slices(server: ApiServer) -> list[Obj]:
    return server.objects("resourceslices")


def wipe(server: ApiServer) -> None:
    for one in slices(server):
        server.remove("resourceslices", one["metadata"]["name"])


async def restored(publisher: SlicePublisher, server: ApiServer) -> None:
    """Wait until both slices are there again: of a wipe, the publisher may see one deletion later than the other."""
    async with asyncio.timeout(PATIENCE):
        while len(slices(server)) < 2:
            await asyncio.sleep(0.005)
        await publisher.settled.wait()


def foreign_slice(name: str = "00000-gpu.nvidia.com-node-1-x7kf2") -> Obj:
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}}
    return {"metadata": {"name": name}, "spec": spec}


async def test_nothing_is_published_before_the_kubelet_has_registered_the_plugin(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with publishing(api, pool(gpu(0)), registered=False) as publisher:
        await server.log.wait_for(lambda log: log.since(verb="watch"))
        await asyncio.sleep(0.05)
        assert server.log.writes_since() == []
        publisher.set_registered(True)
        await settled(publisher)
        assert len(slices(server)) == 2


async def test_the_shipped_limits_have_a_wiped_slice_back_within_two_seconds(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    clock = SkippingClock()
    limits = PublisherLimits(recent_registration=0.0)
    async with publishing(api, pool(gpu(0)), reports, limits=limits, clock=clock) as publisher:
        await settled(publisher)
        wiped_at = clock.time
        server.remove("resourceslices", slices(server)[1]["metadata"]["name"])
        await reports.wait(Wiped)
        await restored(publisher, server)
        assert clock.time - wiped_at < 2.0


async def test_a_wipe_is_answered_as_soon_as_the_kubelet_registers_again(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    limits = PublisherLimits(recent_registration=0.0, registration=2 * PATIENCE)
    async with publishing(api, pool(gpu(0)), reports, limits=limits) as publisher:
        await settled(publisher)
        wipe(server)
        async with asyncio.timeout(PATIENCE):
            while len(publisher._wiped) < 2:
                await asyncio.sleep(0.01)
        assert slices(server) == []
        publisher.set_registered(True)
        await reports.wait(Wiped)  # in a time that is short beside a minute
        await restored(publisher, server)


async def test_after_a_wipe_slices_return_at_the_generation_they_had(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    async with publishing(api, pool(gpu(0), gpu(1)), reports) as publisher:
        await settled(publisher)
        publisher.publish(pool(gpu(0)))
        await settled(publisher)
        wipe(server)
        await reports.wait(Wiped)
        await restored(publisher, server)
        assert [one["spec"]["pool"]["generation"] for one in slices(server)] == [2, 2]


async def test_one_deleted_slice_is_one_write(server: ApiServer, api: HttpKubernetesApi, reports: Reports) -> None:
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        mark = server.log.count
        server.remove("resourceslices", slices(server)[1]["metadata"]["name"])
        await reports.wait(Wiped)
        await settled(publisher)
        assert [record.verb for record in server.log.writes_since(mark)] == ["create"]


async def test_a_slice_that_somebody_edited_is_put_right(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    from dra_gpu.apiserver.resources import RESOURCE_SLICES

    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        edited = slices(server)[1]
        edited["spec"]["devices"] = []
        await api.update(RESOURCE_SLICES, edited, edited["metadata"]["name"])
        await reports.wait(Published, lambda report: report.generation == 2)
        assert slices(server)[1]["spec"]["devices"][0]["name"] == "gpu-0"


async def test_slices_come_back_with_the_new_owner_when_the_node_object_was_made_again(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        server.remove("nodes", NODE)
        again = server.put("nodes", {"metadata": {"name": NODE}})
        wipe(server)
        await reports.wait(Wiped)
        await restored(publisher, server)
        assert {one["metadata"]["ownerReferences"][0]["uid"] for one in slices(server)} == {again["metadata"]["uid"]}


async def test_while_slices_of_another_driver_exist_nothing_is_published(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.put("resourceslices", foreign_slice())
    async with publishing(api, pool(gpu(0)), reports):
        report = await reports.wait(ForeignSlices)
        assert report.names == ("00000-gpu.nvidia.com-node-1-x7kf2",)
        assert server.log.writes_since() == []


async def test_publishing_starts_by_itself_when_the_other_driver_is_gone(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    other = server.put("resourceslices", foreign_slice())
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await reports.wait(ForeignSlices)
        server.remove("resourceslices", other["metadata"]["name"])
        await reports.wait(ForeignSlices, lambda report: report.names == ())
        await settled(publisher)
        assert len(slices(server)) == 2


async def test_our_slices_are_withdrawn_when_another_driver_takes_the_node(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        other = server.put("resourceslices", foreign_slice())
        await reports.wait(Withdrawn)
        assert [one["metadata"]["uid"] for one in slices(server)] == [other["metadata"]["uid"]]


async def test_a_name_that_is_taken_by_our_own_earlier_create_is_adopted(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.faults.fail(status=504, verb="create", resource="resourceslices", apply_first=True)
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        assert len(slices(server)) == 2
        assert {record.status for record in server.log.writes_since()} <= {201, 409, 504}


async def test_a_name_that_a_foreign_slice_has_taken_is_not_overwritten(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.put("resourceslices", foreign_slice(slice_name(0, DRIVER, NODE, NODE)))
    async with publishing(api, pool(gpu(0)), reports):
        await reports.wait(ForeignSlices)
        assert server.log.writes_since() == []


async def test_content_that_the_server_refuses_is_reported_once_and_not_sent_again(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.faults.fail(status=422, verb="create", message="spec.devices: nonsense")
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        rejected = await reports.wait(Rejected)
        assert "spec.devices: nonsense" in rejected.message
        mark = server.log.count
        publisher.wake()
        publisher.set_registered(True)
        await asyncio.sleep(0.1)
        assert server.log.writes_since(mark) == []
        assert len(reports.of(Rejected)) == 1


async def test_other_content_is_sent_after_a_refusal(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.faults.fail(status=422, verb="create")
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await reports.wait(Rejected)
        publisher.publish(pool(gpu(0, model="H200")))
        await settled(publisher)
        assert len(slices(server)) == 2


async def test_a_bad_part_is_left_out_and_reported_once_while_the_rest_is_published(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    bad = gpu(7, memory="plenty")
    async with publishing(api, (counters(0, 7), SliceContent(devices=(gpu(0), bad))), reports) as publisher:
        await settled(publisher)
        publisher.publish((counters(0, 7), SliceContent(devices=(gpu(0, model="H200"), bad))))
        await settled(publisher)
        assert [device["name"] for device in slices(server)[1]["spec"]["devices"]] == ["gpu-0"]
        assert len(reports.of(LeftOut)) == 1


async def test_a_pool_that_is_wrong_as_a_whole_never_reaches_the_server(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    both = SliceContent(devices=(gpu(0),), counter_sets=counters(0).counter_sets)
    async with publishing(api, (both,), reports):
        await reports.wait(Rejected)
        assert server.log.writes_since() == []


async def test_device_slices_are_not_published_on_a_server_that_drops_counters(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.handlers.gates_off = {"DRAPartitionableDevices"}
    async with publishing(api, pool(gpu(0)), reports):
        report = await reports.wait(DroppedFields)
        await asyncio.sleep(0.05)
        assert report.unsafe
        assert report.gates == ("DRAPartitionableDevices",)
        (only,) = slices(server)
        assert "devices" not in only["spec"]
        assert only["spec"]["pool"]["resourceSliceCount"] == 2


async def test_the_pool_is_completed_once_the_server_keeps_counters(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.handlers.gates_off = {"DRAPartitionableDevices"}
    limits = PublisherLimits(unsafe_retry=0.05, requests_per_second=1000.0, burst=100)
    async with publishing(api, pool(gpu(0)), reports, limits=limits) as publisher:
        await reports.wait(DroppedFields)
        server.handlers.gates_off = set()
        await settled(publisher)
        assert [bool(one["spec"].get("devices")) for one in slices(server)] == [False, True]


async def test_a_device_slice_that_lost_its_counters_is_deleted_at_once(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        server.handlers.gates_off = {"DRAPartitionableDevices"}
        publisher.publish(pool(gpu(0, model="H200")))
        report = await reports.wait(DroppedFields)
        await server.log.wait_for(lambda log: log.since(verb="delete"))
        assert report.unsafe
        assert all("devices" not in one["spec"] for one in slices(server))


async def test_dropped_taints_are_reported_and_do_not_loop(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.handlers.gates_off = {"DRADeviceTaints"}
    tainted = pool(gpu(0, taints=[DeviceTaint("gpu.nvidia.com/xid", "NoSchedule", "79")]))
    async with publishing(api, tainted, reports) as publisher:
        await settled(publisher)
        mark = server.log.count
        publisher.wake()
        await asyncio.sleep(0.05)
        (report,) = reports.of(DroppedFields)
        assert (report.fields, report.unsafe) == (("taints",), False)
        assert server.log.writes_since(mark) == []


async def test_a_dropped_permission_to_share_is_reported_as_safe(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.handlers.gates_off = {"DRAConsumableCapacity"}
    async with publishing(api, pool(gpu(0, shared=True)), reports) as publisher:
        await settled(publisher)
        (report,) = reports.of(DroppedFields)
        assert (report.fields, report.gates, report.unsafe) == (
            ("allowMultipleAllocations",),
            ("DRAConsumableCapacity",),
            False,
        )


@pytest.mark.case("C65")
async def test_a_server_that_is_down_at_the_start_is_waited_for(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.refuse()
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await reports.wait(WatchFailed)
        await server.reopen()
        await settled(publisher)
        assert len(slices(server)) == 2


@pytest.mark.case("C65")
async def test_a_missing_right_is_reported_once_with_verb_and_resource_and_retried(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.faults.fail(status=403, verb="get", resource="nodes", count=4, message="nodes is forbidden")
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        (failure,) = reports.of(PublishFailed)
        assert "cannot get nodes node-1: 403 Forbidden" in failure.message
        assert "grant this verb" in failure.message


@pytest.mark.case("C65")
async def test_a_busy_server_is_given_the_time_it_asks_for(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.faults.fail(status=429, verb="create", resource="resourceslices", headers={"Retry-After": "1"})
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        refused, repeated = server.log.since(verb="create")[:2]
        assert repeated.at - refused.at >= 1.0


async def test_neither_a_wake_nor_other_content_shortens_the_wait_that_a_busy_server_asked_for(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.faults.fail(status=429, verb="create", resource="resourceslices", headers={"Retry-After": "1"})
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await reports.wait(PublishFailed)
        publisher.wake()
        publisher.publish(pool(gpu(0, model="H200")))
        await settled(publisher)
        refused, repeated = server.log.since(verb="create")[:2]
        assert repeated.at - refused.at >= 1.0


@pytest.mark.case("C65")
async def test_server_errors_are_retried_until_the_pool_stands(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    server.faults.fail(status=500, verb="create", resource="resourceslices", count=5)
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        assert len(slices(server)) == 2
        assert len(reports.of(PublishFailed)) == 1


async def test_a_conflict_is_answered_by_reading_the_slice_again(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    async with publishing(api, pool(gpu(0)), reports) as publisher:
        await settled(publisher)
        server.faults.fail(status=409, verb="update", resource="resourceslices", message="modified")
        publisher.publish(pool(gpu(0, model="H200")))
        await settled(publisher)
        assert slices(server)[1]["spec"]["devices"][0]["attributes"]["productName"] == {"string": "H200"}


async def test_requests_are_bounded_to_the_configured_rate(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    limits = PublisherLimits(requests_per_second=20.0, burst=1)
    contents = (counters(0, 1, 2), *(SliceContent(devices=(gpu(number),)) for number in range(3)))
    async with publishing(api, contents, reports, limits=limits) as publisher:
        await settled(publisher)
        created = server.log.since(verb="create")
        assert created[-1].at - created[0].at >= 3 * 0.05 * 0.9


async def test_only_the_last_of_many_quick_changes_is_written(
    server: ApiServer, api: HttpKubernetesApi, reports: Reports
) -> None:
    async with publishing(api, pool(gpu(0)), reports, limits=FAST) as publisher:
        await settled(publisher)
        mark = server.log.count
        for number in range(50):
            publisher.publish(pool(gpu(0, model=f"H{number}")))
        await settled(publisher)
        assert len(server.log.writes_since(mark)) == 1
