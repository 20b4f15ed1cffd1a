"""What the shipped node plugin tells a Prometheus server, and whether it says that it is well."""

import asyncio
import re

import pytest

from tests.component.node.node_under_fire import PATIENCE
from tests.component.node.scraping import Scraper
from tests.component.node.sharing import CLASSIC, GIB

HTTP = "--http-endpoint=127.0.0.1:0"
LIB_RM_VERSION_MISMATCH = 18


async def scraper(world) -> Scraper:
    """Where the newest instance serves; its log says which port it got."""

    def told() -> list[str]:
        lines = [line for line in world.plugin.read_log().splitlines() if "serving metrics and health" in line]
        return re.findall(r'"port": (\d+)', "".join(lines))

    await world.until(told)
    return Scraper(int(told()[-1]))


@pytest.mark.case("C161")
async def test_prepared_devices_are_told_from_the_journal_whatever_happened_since(make_world):
    world = await make_world(gpus=4)
    await world.start(HTTP, devices=8)
    first = world.claim("first", "gpu-0", "gpu-1", "gpu-2")
    await world.prepared(first)
    before = await (await scraper(world)).prepared()
    await world.restart(HTTP)
    scrape = await scraper(world)
    after = await scrape.prepared()
    await world.refused(world.claim("second", "gpu-7"))
    failed = await scrape.families()
    await world.unprepare(first)
    nothing = await scrape.prepared()

    assert before == after == {"gpu": 3, "monitor": 0, "shared": 0, "mig": 0, "shared-mig": 0, "vfio": 0, "unknown": 0}
    assert failed.value("nvidia_dra_prepared_devices", device_type="gpu") == 3
    assert failed.value("nvidia_dra_node_prepare_errors_total", error_type="claim") == 1
    assert failed.value("nvidia_dra_requests_inflight", operation="prepare") == 0
    assert failed.label_values("nvidia_dra_node_prepare_errors_total", "error_type") == {"claim"}
    assert {"claim-statuses", "events", "waiting-claims"} <= failed.label_values("dra_gpu_queue_dropped_total", "queue")
    assert {one.value for one in failed.matching("dra_gpu_queue_dropped_total")} == {0}
    assert set(nothing.values()) == {0}


async def test_what_claims_hold_and_what_is_free_adds_up_to_each_gpu(make_sharing):
    sharing = await make_sharing("P-dc8", HTTP, gpus=2)
    await sharing.pod("one", 20, "10Gi")
    await sharing.pod("two", 30, "20Gi")
    found = await (await scraper(sharing.world)).families()

    assert found.value("dra_gpu_capacity_held", gpu="gpu-0", capacity="computePercent") == 50
    assert found.value("dra_gpu_capacity_held", gpu="gpu-0", capacity="memory") == 30 * GIB
    assert found.value("dra_gpu_capacity_free", gpu="gpu-0", capacity="computePercent") == 50
    for gpu in ("gpu-0", "gpu-1"):
        for capacity in ("computePercent", "memory", "clients"):
            labels = {"gpu": gpu, "capacity": capacity}
            held, free = (found.value(f"dra_gpu_capacity_{part}", **labels) for part in ("held", "free"))
            assert held + free == found.value("dra_gpu_capacity", **labels)


async def test_usage_is_told_per_claim_with_where_it_comes_from(make_sharing):
    sharing = await make_sharing("P-dc8", HTTP, gpus=1)
    pod = await sharing.pod("one", 20, "10Gi")
    scrape = await scraper(sharing.world)
    labels = {"namespace": "default", "claim": "one", "gpu": "gpu-0"}
    with pod.client() as client:
        assert client.attached.startswith("attached")
        assert client.command("alloc 3G").startswith("ok")
        found = await scrape.until_told("dra_gpu_claim_memory_used_bytes", **labels)

    # A process' context takes some memory of its own.
    assert 3 * GIB <= found.value("dra_gpu_claim_memory_used_bytes", source="cgroup", **labels) < 4 * GIB
    assert found.value("dra_gpu_claim_memory_held_bytes", **labels) == 10 * GIB
    assert 0 <= found.value("dra_gpu_claim_sm_utilization_ratio", **labels) <= 1


async def test_without_limits_on_cgroups_usage_is_that_of_processes(make_sharing):
    sharing = await make_sharing("P-dc8", HTTP, gpus=1, driver_version=CLASSIC)
    pod = await sharing.pod("whole", requests=[{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}])
    scrape = await scraper(sharing.world)
    labels = {"namespace": "default", "claim": "whole", "gpu": "gpu-0"}
    with pod.client() as client:
        assert client.command("alloc 3G").startswith("ok")
        found = await scrape.until_told("dra_gpu_claim_memory_used_bytes", **labels)

    assert 3 * GIB <= found.value("dra_gpu_claim_memory_used_bytes", source="process", **labels) < 4 * GIB
    assert found.value("dra_gpu_unattributed_memory_bytes", gpu="gpu-0") == 0


@pytest.mark.case("C163")
async def test_scrapes_in_parallel_are_answered_while_a_gpu_does_not_answer_and_claims_go_on(make_world):
    world = await make_world(gpus=2)
    await world.start(HTTP, devices=4)
    scrape = await scraper(world)
    world.node.inject("nvmlDeviceGetProcessUtilization", gpu=0, block=True)

    texts = await asyncio.gather(*(scrape.text() for _ in range(50)))
    await world.prepared(world.claim("other", "gpu-1"))

    assert all('dra_gpu_gpus{state="working"} 2.0' in text for text in texts)
    (stuck,) = world.node.faults()
    assert stuck.hits == 1
    assert len(world.node.calls("nvmlDeviceGetProcessUtilization", gpu=1)) < 5
    world.node.clear()


async def test_it_is_alive_at_once_and_ready_once_it_is_registered_and_published(make_world):
    world = await make_world(gpus=1)
    await world.start(HTTP, devices=2)
    scrape = await scraper(world)

    alive, ready = await scrape.get("/healthz"), await scrape.until("/readyz", 200)

    assert alive == (200, "[+] journal\nok\n")
    assert ready == (200, "[+] registered\n[+] published\n[+] gpus\nok\n")


async def not_ready(scrape) -> str:
    """What stands in the answer of a plugin that is not Ready because it cannot look at its GPUs."""

    async def told() -> str:
        return next((line for line in (await scrape.get("/readyz"))[1].splitlines() if line.startswith("[-] gpus")), "")

    async with asyncio.timeout(PATIENCE):
        while not (line := await told()):
            await asyncio.sleep(0.05)
    return line


@pytest.mark.case("C149")
async def test_a_node_without_gpus_is_idle_and_ready(make_world):
    world = await make_world(gpus=1)
    world.node.set_gpu_count(0)
    await world.start(HTTP, devices=0)

    await (await scraper(world)).until("/readyz", 200)


@pytest.mark.case("C149")
async def test_a_node_whose_driver_is_missing_says_where_it_was_looked_for_and_is_ready_once_it_is_there(make_world):
    world = await make_world(gpus=1)
    root = world.node.driver_root
    root.rename(hidden := root.with_name("not-yet"))
    await world.start(HTTP)
    scrape = await scraper(world)

    said = await not_ready(scrape)
    hidden.rename(root)
    await scrape.until("/readyz", 200)

    assert str(root) in said
    assert "Install the NVIDIA driver" in said or "check the driver" in said
    assert (await scrape.get("/healthz"))[0] == 200


@pytest.mark.case("C149")
async def test_a_node_whose_library_and_kernel_module_differ_says_so_and_is_ready_once_they_do_not(make_world):
    world = await make_world(gpus=1)
    world.node.inject("nvmlInit*", code=LIB_RM_VERSION_MISMATCH)
    await world.start(HTTP)
    scrape = await scraper(world)

    said = await not_ready(scrape)
    world.node.clear()
    await scrape.until("/readyz", 200)

    assert re.search(r"NVML in /\S+/libnvidia-ml\.so\S*: nvmlInit_v2 answered .* \(18\); the kernel module", said)
