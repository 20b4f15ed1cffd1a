"""The server in memory keeps the rules that the real one is known to keep."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.kubernetes_api import Selection, WatchEvent, WatchOptions
from dra_gpu.apiserver.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource, Unstructured
from dra_gpu_sim.apiserver.server import ApiServer
from tests.component.apiserver.conftest import PATIENCE

Obj = dict[str, Any]
RESIZES = Resource(
    "resource.dra-gpu.dev", "v1alpha1", "claimresizes", "ClaimResize", namespaced=True, type=Unstructured
)


def slice_of(*devices: Obj, counters: list[Obj] | None = None) -> Obj:
    spec: Obj = {
        "driver": "gpu.nvidia.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
    }
    if devices:
        spec["devices"] = list(devices)
    if counters is not None:
        spec["sharedCounters"] = counters
    return {"metadata": {"generateName": "00000-n-"}, "spec": spec}


def counter_set(name: str) -> Obj:
    return {"name": name, "counters": {"memory": {"value": "80Gi"}}}


TAINT = {"key": "k", "effect": "NoSchedule"}
POLICY = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}

REFUSED = {
    "devices and counters together": slice_of({"name": "a"}, counters=[counter_set("c")]),
    "129 devices": slice_of(*({"name": f"d{n}"} for n in range(129))),
    "65 devices of which one is tainted": slice_of(
        *({"name": f"d{n}", **({"taints": [TAINT]} if n == 0 else {})} for n in range(65))
    ),
    "65 devices that consume counters": slice_of(
        *(
            {"name": f"d{n}", "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1"}}}]}
            for n in range(65)
        )
    ),
    "nine counter sets": slice_of(counters=[counter_set(f"c{n}") for n in range(9)]),
    "an upper-case device name": slice_of({"name": "GPU-AAAA"}),
    "the same name twice": slice_of({"name": "a"}, {"name": "a"}),
    "a version that is not semver": slice_of({"name": "a", "attributes": {"v": {"version": "12.4"}}}),
    "an attribute without a value": slice_of({"name": "a", "attributes": {"v": {}}}),
    "an attribute with two values": slice_of({"name": "a", "attributes": {"v": {"int": 1, "string": "x"}}}),
    "an attribute that is not an identifier": slice_of({"name": "a", "attributes": {"numa-3": {"int": 1}}}),
    "a value of 65 bytes": slice_of({"name": "a", "attributes": {"v": {"string": "x" * 65}}}),
    "33 attributes": slice_of({"name": "a", "attributes": {f"a{n}": {"int": n} for n in range(33)}}),
    "a policy on an exclusive device": slice_of(
        {"name": "a", "capacity": {"m": {"value": "80Gi", "requestPolicy": POLICY}}}
    ),
    "a default that is no multiple of the step": slice_of(
        {
            "name": "a",
            "allowMultipleAllocations": True,
            "capacity": {"m": {"value": "80Gi", "requestPolicy": {**POLICY, "default": "1500Mi"}}},
        }
    ),
    "a value below min plus step": slice_of(
        {
            "name": "a",
            "allowMultipleAllocations": True,
            "capacity": {"m": {"value": "1Gi", "requestPolicy": POLICY}},
        }
    ),
    "three consumed counter sets": slice_of(
        {
            "name": "a",
            "consumesCounters": [{"counterSet": f"c{n}", "counters": {"m": {"value": "1"}}} for n in range(3)],
        }
    ),
    "17 taints": slice_of({"name": "a", "taints": [{**TAINT, "key": f"k{n}"} for n in range(17)]}),
    "an unknown taint effect": slice_of({"name": "a", "taints": [{"key": "k", "effect": "Explode"}]}),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
async def test_a_slice_is_refused_with(server: ApiServer, api: HttpKubernetesApi, body: Obj) -> None:
    with pytest.raises(errors.InvalidError):
        await api.create(RESOURCE_SLICES, body)


ACCEPTED = {
    "128 plain devices": slice_of(*({"name": f"d{n}"} for n in range(128))),
    "64 tainted devices": slice_of(*({"name": f"d{n}", "taints": [TAINT]} for n in range(64))),
    "eight counter sets": slice_of(counters=[counter_set(f"c{n}") for n in range(8)]),
    "nothing": slice_of(),
    "a reference to a counter set that does not exist": slice_of(
        {"name": "a", "consumesCounters": [{"counterSet": "nowhere", "counters": {"m": {"value": "1"}}}]}
    ),
    "a shareable device": slice_of(
        {"name": "a", "allowMultipleAllocations": True, "capacity": {"m": {"value": "80Gi", "requestPolicy": POLICY}}}
    ),
}


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED.keys())
async def test_a_slice_is_accepted_with(server: ApiServer, api: HttpKubernetesApi, body: Obj) -> None:
    stored = await api.create(RESOURCE_SLICES, body)
    assert stored.metadata.name.startswith("00000-n-")


async def test_a_taint_without_a_time_gets_the_present(server: ApiServer, api: HttpKubernetesApi) -> None:
    stored = await api.create(RESOURCE_SLICES, slice_of({"name": "a", "taints": [TAINT]}))
    assert stored.spec.devices[0].taints[0].time_added is not None


async def test_the_node_of_a_slice_cannot_be_changed(server: ApiServer, api: HttpKubernetesApi) -> None:
    stored = await api.create(RESOURCE_SLICES, slice_of())
    body = slice_of()
    body["metadata"] = {"name": stored.metadata.name}
    body["spec"]["nodeName"] = "other"
    with pytest.raises(errors.InvalidError, match=r"spec\.nodeName.*immutable"):
        await api.update(RESOURCE_SLICES, body, stored.metadata.name)


async def test_the_spec_of_a_claim_cannot_be_changed(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("resourceclaims", {"metadata": {"name": "c"}, "spec": {}}, "ns")
    with pytest.raises(errors.InvalidError):
        await api.patch(RESOURCE_CLAIMS, {"spec": {"devices": {}}}, "c", "ns")


async def test_a_write_without_a_difference_changes_no_version(server: ApiServer, api: HttpKubernetesApi) -> None:
    made = server.put("nodes", {"metadata": {"name": "a"}})
    again = await api.update(NODES, {"metadata": {"name": "a"}}, "a")
    assert again.metadata.resource_version == made["metadata"]["resourceVersion"]


async def test_an_object_with_finalizers_is_marked_and_goes_with_the_last_of_them(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    server.put("resourceclaims", {"metadata": {"name": "c", "finalizers": ["x"]}, "spec": {}}, "ns")
    await api.delete(RESOURCE_CLAIMS, "c", "ns")
    assert server.objects("resourceclaims")[0]["metadata"]["deletionTimestamp"]
    await api.patch(RESOURCE_CLAIMS, {"metadata": {"finalizers": None}}, "c", "ns")
    assert server.objects("resourceclaims") == []


async def test_of_a_resize_that_is_created_the_status_is_dropped_and_comes_by_its_subresource_alone(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    await api.create(RESIZES, {"metadata": {"name": "c"}, "spec": {}, "status": {"nodeName": "n"}}, "ns")
    assert "status" not in server.objects("claimresizes")[0]
    await api.patch(RESIZES, {"status": {"nodeName": "n"}}, "c", "ns")
    assert "status" not in server.objects("claimresizes")[0]
    await api.patch(RESIZES, {"status": {"nodeName": "n"}}, "c", "ns", subresource="status")
    assert server.objects("claimresizes")[0]["status"] == {"nodeName": "n"}


async def test_the_generation_of_a_resize_counts_changes_of_its_spec_and_its_deletion_and_none_of_its_status(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    def generation() -> int:
        return server.objects("claimresizes")[0]["metadata"]["generation"]

    await api.create(RESIZES, {"metadata": {"name": "c", "finalizers": ["x/y"]}, "spec": {}}, "ns")
    await api.patch(RESIZES, {"status": {"phase": "Pending"}}, "c", "ns", subresource="status")
    assert generation() == 1
    await api.patch(RESIZES, {"spec": {"capacity": {"memory": "1Gi"}}}, "c", "ns")
    assert generation() == 2
    await api.delete(RESIZES, "c", "ns")
    assert generation() == 3


async def test_resizes_are_selected_and_watched_by_the_node_of_their_status(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    for name, node in (("here", "n"), ("there", "m")):
        server.put("claimresizes", {"metadata": {"name": name}, "spec": {}, "status": {"nodeName": node}}, "ns")
    mine = Selection(field_selector="status.nodeName=n")
    listed = await api.list(RESIZES, mine)
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def deliver(event: WatchEvent[Unstructured]) -> None:
        if event.object is not None:
            seen.put_nowait((event.type, event.object.metadata.name))

    watch = asyncio.create_task(api.watch(RESIZES, mine, WatchOptions(listed.resource_version), deliver))
    await api.patch(RESIZES, {"status": {"nodeName": "n"}}, "there", "ns", subresource="status")
    await api.patch(RESIZES, {"status": {"nodeName": ""}}, "here", "ns", subresource="status")

    assert [one.metadata.name for one in listed.items] == ["here"]
    async with asyncio.timeout(PATIENCE):
        assert [await seen.get(), await seen.get()] == [("ADDED", "there"), ("DELETED", "here")]
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def test_a_whole_collection_can_be_deleted_by_field_as_the_kubelet_does(server: ApiServer) -> None:
    server.put("resourceslices", slice_of())
    other = slice_of()
    other["spec"]["nodeName"] = "elsewhere"
    server.put("resourceslices", other)
    url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn"
    request = urllib.request.Request(url, method="DELETE")
    await asyncio.to_thread(lambda: urllib.request.urlopen(request).close())
    assert [one["spec"]["nodeName"] for one in server.objects("resourceslices")] == ["elsewhere"]


async def test_an_unknown_field_selector_is_a_bad_request(server: ApiServer, api: HttpKubernetesApi) -> None:
    with pytest.raises(errors.BadRequestError, match="field label not supported"):
        await api.list(RESOURCE_SLICES, Selection(field_selector="spec.colour=red"))


async def test_a_server_in_another_process_is_broken_through_its_back_door(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "dra_gpu_sim.apiserver", "--port-file", str(port_file)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        assert url.endswith(f":{port_file.read_text().strip()}")
        await _post(f"{url}/_objects/nodes", {"metadata": {"name": "a"}})
        await _post(f"{url}/_faults", {"action": "fail", "status": 503, "verb": "get", "resource": "nodes"})
        from dra_gpu.apiserver.connection import Connection

        api = HttpKubernetesApi(Connection(url))
        with pytest.raises(errors.UnavailableError):
            await api.get(NODES, "a")
        assert (await api.get(NODES, "a")).metadata.name == "a"
        api.close()
    finally:
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def _post(url: str, body: Obj) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    await asyncio.to_thread(lambda: urllib.request.urlopen(request).close())
