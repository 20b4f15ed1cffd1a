"""Where GPUs sit and what joins them, from the boards to slices and a claim for a pair. Through the shipped process."""

from dra_gpu_sim.state import FABRIC_MANAGER_SHARED
from tests.component.node.test_gpus import published

NUMA = "resource.kubernetes.io/numaNode"
COMPLETED, IN_PROGRESS = 3, 2


def attribute(world, name, kind):
    """The values of an attribute on whole GPUs, by device."""
    return {device: found["attributes"].get(name, {}).get(kind) for device, found in sorted(published(world).items())}


def pair(world, name):
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    constraint = {"requests": ["gpus"], "matchAttribute": "gpu.nvidia.com/nvlinkGroup"}
    return world.cluster.add_claim(name, requests=[request], constraints=[constraint])


def devices(world, claim):
    [found] = [one for one in world.api.objects("resourceclaims") if one["metadata"]["uid"] == claim.uid]
    return {result["device"] for result in found["status"]["allocation"]["devices"]["results"]}


async def test_claims_for_a_pair_get_one_bridge_each_and_are_prepared(make_world):
    world = await make_world("A100-PCIe", gpus=None)
    await world.start(devices=8)

    first, second = pair(world, "first"), pair(world, "second")

    assert [devices(world, first), devices(world, second)] == [{"gpu-2", "gpu-3"}, {"gpu-0", "gpu-1"}]
    await world.prepared(first)
    await world.prepared(second)


async def test_a_gpu_that_registers_late_with_its_fabric_joins_the_others_without_a_restart(make_world):
    world = await make_world("GB200", gpus=None, settings=[f"gpu.2.fabric_state={IN_PROGRESS}"])
    await world.start("--rescan-period=0.1", devices=8)
    before = attribute(world, "nvlinkGroup", "string")
    assert len(set(before.values())) == 2
    assert attribute(world, "fabricClique", "string")["gpu-2"] is None

    with world.node.state() as state:
        state.gpus[2].fabric_state = COMPLETED

    await world.until(lambda: len(set(attribute(world, "nvlinkGroup", "string").values())) == 1, within=60)
    assert len(set(attribute(world, "fabricClique", "string").values())) == 1


async def test_a_link_that_goes_down_takes_the_gpu_out_of_its_group_and_no_bandwidth_from_shares(make_world):
    world = await make_world("H100", gpus=3)
    await world.start("--views=gpu,shared", "--rescan-period=0.1", devices=6)
    bandwidth = published(world, "shared")["gpu-2-shared"]["capacity"]["nvlinkBandwidth"]

    world.node.set_links(2, up=False)

    await world.until(lambda: len(set(attribute(world, "nvlinkGroup", "string").values())) == 2, within=60)
    assert published(world, "shared")["gpu-2-shared"]["capacity"]["nvlinkBandwidth"] == bandwidth


async def test_numa_nodes_are_published_as_lists_where_the_operator_says_so(make_world):
    world = await make_world("GB200", gpus=None)
    await world.start("--numa-lists", devices=8)

    assert attribute(world, NUMA, "ints") == {"gpu-0": [0], "gpu-1": [0], "gpu-2": [1], "gpu-3": [1]}
    assert set(attribute(world, NUMA, "int").values()) == {None}


async def test_partitions_of_a_fabric_manager_that_shares_its_switches_are_published(make_world):
    world = await make_world(settings=[f"node.fabric_manager={FABRIC_MANAGER_SHARED}"])
    await world.start(devices=16)

    assert list(attribute(world, "partition4", "int").values()) == [1] * 4 + [2] * 4
    assert list(attribute(world, "gpuModuleID", "int").values()) == list(range(1, 9))
