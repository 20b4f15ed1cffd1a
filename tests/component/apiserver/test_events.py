"""Events: never in the way, one object for one thing said often."""

from typing import Any

from structlog.testing import capture_logs

from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.events import EventLimits, EventRecorder, ObjectReference
from dra_gpu_sim.apiserver.server import ApiServer

from .conftest import SkippingClock, running

NODE = ObjectReference("v1", "Node", "node-1", uid="u1")
POD = ObjectReference("v1", "Pod", "train", "ml", "u2")


def events(server: ApiServer) -> list[dict[str, Any]]:
    return [one for one in server.objects("events") if one["apiVersion"] == "v1"]


def recorder(api: HttpKubernetesApi, limits: EventLimits | None = None) -> EventRecorder:
    return EventRecorder(api, "dra-gpu-node", "node-1", limits=limits, clock=SkippingClock())


async def test_an_event_stands_in_the_namespace_of_its_object(server: ApiServer, api: HttpKubernetesApi) -> None:
    spoken = recorder(api)
    async with running(spoken.run):
        spoken.record(POD, "Warning", "ShareNotFree", "gpu-0 is held by ml/eval; wait for it to end")
        await server.log.wait_for(lambda log: log.writes_since())
    (one,) = events(server)
    assert one["metadata"]["namespace"] == "ml"
    assert one["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "train",
        "namespace": "ml",
        "uid": "u2",
    }
    assert (one["type"], one["reason"], one["count"]) == ("Warning", "ShareNotFree", 1)
    assert one["source"] == {"component": "dra-gpu-node", "host": "node-1"}


async def test_an_event_about_a_node_stands_in_the_default_namespace(server: ApiServer, api: HttpKubernetesApi) -> None:
    spoken = recorder(api)
    async with running(spoken.run):
        spoken.record(NODE, "Normal", "Published", "8 GPUs")
        await server.log.wait_for(lambda log: log.writes_since())
    assert events(server)[0]["metadata"]["namespace"] == "default"


async def test_the_same_thing_said_again_raises_the_count_of_one_event(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    spoken = recorder(api)
    async with running(spoken.run):
        spoken.record(NODE, "Warning", "GpuLost", "gpu-0")
        await server.log.wait_for(lambda log: log.since(verb="create"))
        for _ in range(3):
            spoken.record(NODE, "Warning", "GpuLost", "gpu-0")
        await server.log.wait_for(lambda log: log.since(verb="patch"))
    (one,) = events(server)
    assert one["count"] == 4


async def test_a_full_queue_drops_and_counts_and_never_blocks(server: ApiServer, api: HttpKubernetesApi) -> None:
    spoken = recorder(api, EventLimits(pending=10))
    with capture_logs() as logged:
        for number in range(25):
            spoken.record(NODE, "Normal", "Number", str(number))
    assert spoken.dropped == 15
    assert [entry["note"] for entry in logged] == [str(number) for number in range(10, 25)]


async def test_an_event_that_expired_on_the_server_is_made_anew(server: ApiServer, api: HttpKubernetesApi) -> None:
    spoken = recorder(api)
    async with running(spoken.run):
        spoken.record(NODE, "Warning", "GpuLost", "gpu-0")
        await server.log.wait_for(lambda log: log.since(verb="create"))
        server.remove("events", events(server)[0]["metadata"]["name"], "default")
        spoken.record(NODE, "Warning", "GpuLost", "gpu-0")
        await server.log.wait_for(lambda log: len(log.since(verb="create")) == 2)
    assert len(events(server)) == 1


async def test_a_refused_event_is_dropped_and_the_next_one_is_sent(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.faults.fail(status=422, verb="create")
    spoken = recorder(api)
    async with running(spoken.run):
        spoken.record(NODE, "Normal", "First", "one")
        spoken.record(NODE, "Normal", "Second", "two")
        await server.log.wait_for(lambda log: len(log.since(verb="create")) == 2)
    assert [one["reason"] for one in events(server)] == ["Second"]
    assert spoken.dropped == 1


async def test_an_event_is_tried_a_few_times_and_then_dropped(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.faults.fail(status=503, verb="create", count=5)
    spoken = recorder(api)
    async with running(spoken.run):
        spoken.record(NODE, "Normal", "First", "one")
        await server.log.wait_for(lambda log: len(log.since(verb="create")) == 5)
        spoken.record(NODE, "Normal", "Second", "two")
        await server.log.wait_for(lambda log: len(log.since(verb="create")) == 6)
    assert [one["reason"] for one in events(server)] == ["Second"]
    assert spoken.dropped == 1


async def test_a_note_is_cut_at_the_length_that_the_server_accepts(server: ApiServer, api: HttpKubernetesApi) -> None:
    spoken = recorder(api)
    async with running(spoken.run):
        spoken.record(NODE, "Normal", "Long", "ü" * 2000)
        await server.log.wait_for(lambda log: log.writes_since())
    message = events(server)[0]["message"]
    assert len(message.encode()) <= 1024
    assert message.endswith("…")
