"""GPUs and libraries as they are found in the field: lost, old, odd, late. Through the shipped process."""

import asyncio
import itertools

import pytest

from tests.component.node.node_under_fire import PATIENCE

LOST, NOT_SUPPORTED, UNKNOWN = 15, 3, 999
# Every call by which the plugin learns an optional fact about a GPU.
OPTIONAL = [
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetName",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlSystemGetConfComputeState",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
]


def published(world, view="gpu"):
    return {
        device["name"]: device
        for item in world.cluster.slices()
        for device in item["spec"].get("devices", ())
        if device["attributes"]["type"]["string"] == view
    }


async def test_one_gpu_lost_at_start_leaves_seven_serving(make_world):
    world = await make_world()
    world.node.lose_gpu(2)

    await world.start(devices=14)

    assert sorted(published(world)) == [f"gpu-{n}" for n in range(8) if n != 2]
    await world.prepared(world.claim("job", "gpu-3"))
    assert "gpu-2" in await world.refused(world.claim("dead", "gpu-2"))
    assert "fallen off the bus" in world.plugin.read_log()


async def until_prepared(world, name, device):
    """Prepare claims on a device until one succeeds: nothing tells when a GPU works again."""
    async with asyncio.timeout(PATIENCE):
        for number in itertools.count():
            claim = world.claim(f"{name}-{number}", device)
            if not (await world.prepare(claim))[claim.uid].error:
                return


async def test_a_gpu_that_does_not_answer_costs_nobody_but_itself_and_stays_published(make_world):
    world = await make_world(gpus=4)
    await world.start("--rescan-period=0.1", "--gpu-timeout=4", devices=8)

    world.node.inject("nvmlDeviceGetUUID", gpu=1, block=True)
    await world.prepared(world.claim("job", "gpu-0"))
    await world.until(lambda: "a GPU cannot be used" in world.plugin.read_log())
    assert "does not answer" in await world.refused(world.claim("hanging", "gpu-1"))
    await world.prepared(world.claim("other", "gpu-2"))
    assert sorted(published(world)) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    world.node.clear()

    await until_prepared(world, "again", "gpu-1")


async def test_a_gpu_that_returns_is_published_again_without_a_restart(make_world):
    world = await make_world(gpus=4)
    world.node.lose_gpu(1)
    await world.start("--rescan-period=0.1", devices=6)

    world.node.return_gpu(1)

    await world.cluster.wait_slices(8)


@pytest.mark.case("C56")
async def test_gpus_that_the_driver_binds_late_are_published_as_they_come(make_world):
    world = await make_world()
    world.node.set_gpu_count(0)
    await world.start("--rescan-period=0.1", devices=0)

    world.node.set_gpu_count(1)
    await world.cluster.wait_slices(2)
    world.node.set_gpu_count(8)

    await world.cluster.wait_slices(16)


async def test_a_driver_that_is_installed_late_is_found(make_world):
    world = await make_world(gpus=2)
    root = world.node.driver_root
    root.rename(hidden := root.with_name("not-yet"))
    await world.start(devices=0)
    assert "driver root" in await world.refused(world.claim("early", "gpu-0"))

    hidden.rename(root)

    await world.cluster.wait_slices(4)


@pytest.mark.case("C61")
@pytest.mark.parametrize(
    "symbol",
    [name for name in OPTIONAL if name not in ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber")],
)
async def test_a_library_without_a_symbol_costs_that_fact_only(make_world, symbol):
    world = await make_world("H100", gpus=2, without_symbols=[symbol])

    await world.start(devices=4)

    assert sorted(published(world)) == ["gpu-0", "gpu-1"]


@pytest.mark.case("C67")
@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN], ids=["not-supported", "unknown"])
async def test_every_optional_answer_that_fails_on_one_gpu_leaves_both_published(make_world, code):
    world = await make_world("H100", gpus=2)
    for call in OPTIONAL:
        world.node.inject(call, gpu=0 if "Device" in call else None, code=code)

    await world.start(devices=4)

    whole = published(world)
    assert whole["gpu-0"]["attributes"]["uuid"] == {"string": world.node.uuids[0]}
    assert "productName" not in whole["gpu-0"]["attributes"]
    assert "productName" in whole["gpu-1"]["attributes"]


@pytest.mark.case("C67")
async def test_a_number_that_no_table_knows_is_published_as_a_number(make_world):
    world = await make_world("H100", gpus=1, settings=["gpu.0.brand=99"])

    await world.start(devices=2)

    assert published(world)["gpu-0"]["attributes"]["brand"] == {"string": "99"}


@pytest.mark.case("C67")
async def test_unified_memory_without_a_size_is_published_without_one(make_world):
    world = await make_world("P-uma1")

    await world.start(devices=2)

    [whole] = published(world).values()
    assert "memory" not in whole.get("capacity", {})
    await world.prepared(world.claim("job", whole["name"]))


@pytest.mark.case("C62")
async def test_a_pci_address_is_published_as_sysfs_spells_it(make_world):
    spelled = ["00000000:3B:00.0", "0000000F:01:00.0", "00010000:01:00.0"]
    settings = [f"gpu.{number}.pci={address}" for number, address in enumerate(spelled)]
    world = await make_world("H100", gpus=3, settings=settings)

    await world.start(devices=6)

    attributes = [published(world)[f"gpu-{number}"]["attributes"] for number in range(3)]
    assert [one["resource.kubernetes.io/pciBusID"]["string"] for one in attributes] == [
        "0000:3b:00.0",
        "000f:01:00.0",
        "10000:01:00.0",
    ]
    assert all("resource.kubernetes.io/pcieRoot" in one for one in attributes)


@pytest.mark.case("C62")
async def test_a_gpu_without_a_pci_address_is_published_without_one(make_world):
    world = await make_world("H100", gpus=1, settings=["gpu.0.pci="])

    await world.start(devices=2)

    attributes = published(world)["gpu-0"]["attributes"]
    assert not [name for name in attributes if "pci" in name]
    await world.prepared(world.claim("job", "gpu-0"))


@pytest.mark.case("C59")
async def test_memory_is_published_to_the_mebibyte(make_world):
    mebibytes = [16380, 81559, 97871, 46068]
    settings = [f"gpu.{number}.memory={memory}" for number, memory in enumerate(mebibytes)]
    world = await make_world("H100", gpus=4, settings=settings)

    await world.start(devices=8)

    capacities = [published(world)[f"gpu-{number}"]["capacity"] for number in range(4)]
    assert [one["memory"]["value"] for one in capacities] == [f"{memory}Mi" for memory in mebibytes]


async def test_a_fabric_is_published_as_its_clique(make_world):
    world = await make_world("P-nvl4")

    await world.start(devices=8)

    cliques = {device["attributes"]["fabricClique"]["string"] for device in published(world).values()}
    assert len(cliques) == 1
    assert cliques.pop().count(".") == 1


@pytest.mark.parametrize("profile", ["A100", "H100", "H200", "B200", "GB200", "L4", "RTX-PRO-6000", "P-mixed"])
async def test_every_board_is_published_and_serves(make_world, profile):
    world = await make_world(profile, gpus=2)

    await world.start(devices=4)

    assert all("memory" in device["capacity"] for device in published(world).values())
    await world.prepared(world.claim("job", "gpu-1"))


async def test_who_does_not_publish_holds_no_gpu_open(make_world):
    from dra_gpu_sim import checker

    world = await make_world(gpus=2)
    old = await world.start(devices=4)
    await world.until(lambda: old.process.pid in checker.sessions(world.node.root))

    new = await world.start("--pod-uid=new")

    await world.until(lambda: list(checker.sessions(world.node.root)) == [new.process.pid])
