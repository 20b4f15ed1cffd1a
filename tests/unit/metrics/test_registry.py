"""A scrape: what Prometheus' parser reads of it, fresh where that is quick, and never late."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from dra_gpu.metrics import registry as registries
from dra_gpu.metrics.node import CallMetrics
from dra_gpu.metrics.registry import Registry


def samples(text: bytes) -> dict[tuple[str, tuple], float]:
    found = text_string_to_metric_families(text.decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in found for one in family.samples}


async def test_a_snapshot_is_replaced_as_a_whole_and_leaves_nothing_behind():
    registry = Registry("test")
    held = registry.snapshot("dra_gpu_held", "gauge", "text", ("gpu",))
    held.replace({("gpu-0",): 1.0, ('we"ird\n\\',): 2.0})
    before = samples(await registry.render())
    held.replace({("gpu-1",): 3.0})
    after = samples(await registry.render())

    assert before[("dra_gpu_held", (("gpu", 'we"ird\n\\'),))] == 2.0
    assert {key: value for key, value in after.items() if key[0] == "dra_gpu_held"} == {
        ("dra_gpu_held", (("gpu", "gpu-1"),)): 3.0
    }


async def test_more_series_than_there_may_be_are_cut_off():
    registry = Registry("test")
    many = registry.snapshot("dra_gpu_many", "gauge", "text", ("claim",), most=10)
    many.replace({(f"claim-{number:03}",): 1.0 for number in range(100)})

    assert sum(key[0] == "dra_gpu_many" for key in samples(await registry.render())) == 10


async def test_what_is_refreshed_in_time_is_fresh():
    registry = Registry("test")
    number = registry.gauge("dra_gpu_number", "text")

    async def refresh() -> None:
        await asyncio.sleep(0)
        number.inc()

    registry.before_render(refresh)
    assert samples(await registry.render())[("dra_gpu_number", ())] == 1.0
    assert samples(await registry.render())[("dra_gpu_number", ())] == 2.0


async def test_what_hangs_is_waited_for_shortly_asked_once_and_the_old_value_shown(monkeypatch):
    monkeypatch.setattr(registries, "REFRESH_SECONDS", 0.01)
    registry = Registry("test")
    calls = 0
    hanging = asyncio.Event()

    async def refresh() -> None:
        nonlocal calls
        calls += 1
        await hanging.wait()

    registry.before_render(refresh)
    texts = [await registry.render() for _ in range(5)]

    assert calls == 1
    assert all(b"dra_gpu_build_info" in text for text in texts)
    await registry.close()


async def test_a_refresher_that_fails_costs_its_values_alone():
    registry = Registry("test")

    async def refresh() -> None:
        raise ValueError("broken")

    registry.before_render(refresh)
    assert b"dra_gpu_build_info" in await registry.render()


async def test_scrapes_at_the_same_time_share_one_text():
    registry = Registry("test")
    looks = 0

    async def refresh() -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)

    registry.before_render(refresh)
    texts = await asyncio.gather(*(registry.render() for _ in range(50)))

    assert looks == 1
    assert len(set(map(id, texts))) == 1


async def test_calls_in_flight_come_back_to_0_after_exceptions_and_cancelled_calls():
    registry = Registry("test")
    calls = CallMetrics(registry, "gpu.nvidia.com")

    async def hang() -> None:
        with calls.call("prepare"):
            await asyncio.Event().wait()

    async def fail() -> None:
        with calls.call("prepare"):
            raise ValueError

    hanging = asyncio.ensure_future(hang())
    await asyncio.sleep(0)
    labels = (("driver", "gpu.nvidia.com"), ("operation", "prepare"))
    during = samples(await registry.render())
    hanging.cancel()
    await asyncio.gather(hanging, fail(), return_exceptions=True)
    after = samples(await registry.render())

    assert during[("nvidia_dra_requests_inflight", labels)] == 1
    assert after[("nvidia_dra_requests_inflight", labels)] == 0
    assert after[("nvidia_dra_requests_total", labels)] == 2
    assert after[("nvidia_dra_request_duration_seconds_count", labels)] == 2
