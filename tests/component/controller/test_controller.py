"""What the controller does for a cluster, as the shipped process."""

import copy

import pytest

from dra_gpu.validation import crds

SOON = (
    "--leader-election-lease-duration=3",
    "--leader-election-renew-deadline=2",
    "--leader-election-retry-period=0.5",
)


async def test_pods_that_wait_for_a_device_are_touched_once_when_it_comes_free_and_no_others(cluster):
    waits, runs, unplaced = cluster.pod("waits"), cluster.pod("runs", "Running"), cluster.pod("unplaced", node="")
    claim = cluster.claim("shared", waits, runs, unplaced)
    other = cluster.pod("other")
    await cluster.replica("a")
    await cluster.leader("a")
    cluster.event(cluster.claim("foreign", other, driver="gpu.example.com"), "free.0")
    at = cluster.event(claim)

    assert await cluster.touched(waits) == at
    again = cluster.pod("again")
    later = cluster.event(cluster.claim("later", again), "free.2")
    assert await cluster.touched(again) == later
    patched = [one.name for one in cluster.api.log.since(verb="patch", resource="pods")]
    assert patched == ["waits", "again"]


async def test_an_event_that_the_kubelet_has_outlived_by_itself_is_left_alone(cluster):
    old, new = cluster.pod("old"), cluster.pod("new")
    cluster.event(cluster.claim("old", old), "free.1", at="2026-01-01T00:00:00Z")
    cluster.event(cluster.claim("new", new), "free.2")
    await cluster.replica("a")

    assert await cluster.touched(new)
    assert not cluster.annotation(old)


async def test_of_two_replicas_one_works_and_the_other_follows_when_it_dies(cluster):
    first = await cluster.replica("a", *SOON)
    await cluster.leader("a")
    await cluster.replica("b", *SOON)
    await first.kill()
    await cluster.leader("b")
    pod = cluster.pod("waits")
    cluster.event(cluster.claim("waits", pod))

    assert await cluster.touched(pod)


async def test_a_leader_that_is_stopped_gives_the_lease_away(cluster):
    first = await cluster.replica("a")
    await cluster.leader("a")
    second = await cluster.replica("b")
    scrape = await cluster.scraper(second)
    await scrape.until("/readyz", 200)
    assert await first.stop() == 0
    assert cluster.holder() == "" or cluster.holder().startswith("b_")

    await cluster.leader("b")


async def test_slices_of_a_node_that_is_gone_are_removed_after_the_grace_and_no_others(cluster):
    node = cluster.api.put("nodes", {"metadata": {"name": "stays"}})
    for name, owner, driver in (
        ("stays", node["metadata"]["uid"], "gpu.nvidia.com"),
        ("gone", "11111111-1111-4111-8111-111111111111", "gpu.nvidia.com"),
        ("foreign", "11111111-1111-4111-8111-111111111111", "gpu.example.com"),
    ):
        owners = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner, "controller": True}]
        spec = {"driver": driver, "nodeName": name, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}
        cluster.api.put("resourceslices", {"metadata": {"name": name, "ownerReferences": owners}, "spec": spec})
    await cluster.replica("a", "--sweep-period=0.2", "--sweep-grace=0.5")
    await cluster.api.log.wait_for(lambda log: len(log.since(verb="delete")) > 0, 60)

    assert sorted(one["metadata"]["name"] for one in cluster.api.objects("resourceslices")) == ["foreign", "stays"]
    lists = cluster.api.log.since(verb="list", resource="resourceslices")
    assert all("spec.driver" in one.query for one in lists)


async def test_it_tells_whether_it_leads_and_what_it_did(cluster):
    pod = cluster.pod("waits")
    process = await cluster.replica("a")
    await cluster.leader("a")
    cluster.event(cluster.claim("waits", pod))
    await cluster.touched(pod)
    scrape = await cluster.scraper(process)
    assert (await scrape.get("/healthz"))[0] == 200
    assert (await scrape.until("/readyz", 200))[1] == "[+] election\n[+] kinds\nok\n"
    found = await scrape.families()

    assert found.value("dra_gpu_leader") == 1
    assert found.value("dra_gpu_pods_woken_total") == 1
    assert found.value("dra_gpu_build_info", component="controller") == 1
    assert found.value("dra_gpu_queue_length", queue="waiting-pods") == 0
    assert found.value("dra_gpu_queue_dropped_total", queue="waiting-pods") == 0
    assert found.value("dra_gpu_queue_failures_total", queue="waiting-pods") == 0


@pytest.mark.case("C148")
async def test_kinds_of_an_earlier_release_are_told_and_waited_for(cluster):
    name, wanted = next(iter(crds.definitions().items()))
    older = copy.deepcopy(wanted)
    fields = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del fields["capacity"]
    cluster.api.remove("customresourcedefinitions", name)
    cluster.api.put("customresourcedefinitions", older)
    scrape = await cluster.scraper(await cluster.replica("a"))
    await cluster.leader("a")

    status, said = await scrape.get("/readyz")
    cluster.api.remove("customresourcedefinitions", name)
    cluster.api.put("customresourcedefinitions", wanted)
    await scrape.until("/readyz", 200)

    assert status == 503
    assert f"[-] kinds: CustomResourceDefinition {name} is of another release and lacks spec.capacity, which" in said
    assert "kubectl apply -f deploy/crds.yaml" in said
    assert (await scrape.get("/healthz"))[0] == 200
