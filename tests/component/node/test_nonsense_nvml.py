"""An NVML that answers nonsense: what is wrong is told, the GPUs that are right serve, the process goes on."""

import asyncio

import pytest

from dra_gpu_sim.fill import apply_setting
from tests.component.node.node_under_fire import status_of, until

LOOK = "--rescan-period=0.1"


def published(world) -> list[str]:
    return sorted(
        device["name"]
        for item in world.cluster.slices()
        for device in item["spec"].get("devices", ())
        if device["attributes"]["type"]["string"] == "gpu"
    )


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("uuid=", "empty UUID"),
        ("uuid={other}", "UUID"),
        ("pci=00000000:18:00.0", "PCI address"),
        ("minor=0", "minor number"),
    ],
    ids=["no-uuid", "same-uuid", "same-address", "same-minor"],
)
async def test_a_gpu_that_cannot_be_told_from_another_is_left_out_and_told(make_world, setting, told):
    world = await make_world("H100", gpus=3, settings=["gpu.0.pci=00000000:18:00.0"])
    wrong = f"gpu.1.{setting.format(other=world.node.uuids[0])}"
    with world.node.state() as state:
        apply_setting(state, wrong)

    await world.start(devices=4)

    assert published(world) == ["gpu-0", "gpu-2"]
    assert told in world.plugin.read_log()
    await world.prepared(world.claim("job", "gpu-2"))


@pytest.mark.parametrize("field", ["uuid", "name", "serial"])
async def test_bytes_that_are_no_text_cost_at_most_that_gpu(make_world, field):
    world = await make_world("H100", gpus=2)
    with world.node.state() as state:
        setattr(state.gpus[1], field, b"\xff\xfe\x01\x1b[31m")

    await world.start(devices=2 if field == "uuid" else 4)

    assert "gpu-0" in published(world)
    await world.prepared(world.claim("job", "gpu-0"))


@pytest.mark.parametrize(
    "setting", ["memory_total=0", "memory_total=0xffffffffffffffff", "sm_count=0", "sm_count=0xffffffff", "cc_major=0"]
)
async def test_numbers_that_no_gpu_has_leave_it_published(make_world, setting):
    world = await make_world("H100", gpus=1, settings=[f"gpu.0.{setting}"])

    await world.start(devices=2)

    await world.prepared(world.claim("job", "gpu-0"))


async def test_a_count_that_fails_later_changes_nothing_of_what_is_published(make_world):
    world = await make_world(gpus=2)
    await world.start(LOOK, devices=4)

    world.node.inject("nvmlDeviceGetCount_v2", code=999)
    await until(lambda: "nvmlDeviceGetCount_v2" in world.plugin.read_log())

    assert published(world) == ["gpu-0", "gpu-1"]
    await world.prepared(world.claim("job", "gpu-0"))


async def test_an_initialisation_that_hangs_is_waited_for(make_world):
    world = await make_world(gpus=2)
    world.node.inject("nvmlInit*", block=True)
    await world.start()
    early = asyncio.create_task(world.prepare(world.claim("early", "gpu-0")))
    await asyncio.sleep(0.3)
    assert not early.done()

    world.node.clear()

    [answer] = (await early).values()
    assert answer.error == ""


async def test_a_shutdown_that_hangs_leaves_what_was_seen_published(make_world):
    world = await make_world(gpus=2)
    world.node.inject("nvmlShutdown", block=True)

    await world.start(devices=4)

    await world.prepared(world.claim("job", "gpu-0"))


async def test_five_hundred_calls_with_one_silent_gpu_cost_one_thread_and_no_memory(make_world):
    world = await make_world(gpus=2)
    await world.start(LOOK, "--gpu-timeout=4", devices=4)
    await world.prepared(warm := world.claim("warm", "gpu-0"))
    await world.unprepare(warm)
    world.node.inject("nvmlDeviceGetUUID", gpu=1, block=True)
    await world.until(lambda: "a GPU cannot be used" in world.plugin.read_log())
    threads, memory = (status_of(world.plugin.pid, field) for field in ("Threads", "VmRSS"))

    for number in range(250):
        refused, served = world.claim(f"r{number}", "gpu-1"), world.claim(f"s{number}", "gpu-0")
        answers = await world.prepare(refused, served)
        assert "does not answer" in answers[refused.uid].error
        assert answers[served.uid].error == ""
        await world.unprepare(refused, served)

    assert status_of(world.plugin.pid, "Threads") <= threads + 2
    assert status_of(world.plugin.pid, "VmRSS") - memory < 8 * 1024
