"""Fabric Manager's partitions, as the driver reads them through the library that a simulated Fabric Manager brings."""

import asyncio
import ctypes

import pytest

from dra_gpu.inventory import attributes
from dra_gpu.inventory.model import DriverVersions, FabricPartition, Gpu
from dra_gpu.vendors.base import VendorError
from dra_gpu.vendors.nvidia import fabric_manager
from dra_gpu.vendors.nvidia.fabric_manager import FabricManager
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu_sim.state import FABRIC_MANAGER_BARE_METAL, FABRIC_MANAGER_SHARED

SHARED = f"node.fabric_manager={FABRIC_MANAGER_SHARED}"
GENERIC_ERROR = 999


def gpus_of(node, load):
    load(node)
    return [Nvml.read(index) for index in range(Nvml.count())]


@pytest.fixture
def placed(make_node, load):
    """Return the GPUs of a new node with their partitions, as the vendor puts them together."""

    async def place(profile="H100", **options):
        node = make_node(profile, **options)
        return await FabricManager([node.driver_root]).with_partitions(gpus_of(node, load))

    return place


def ids(gpu):
    return {partition.size: partition.partition_id for partition in gpu.fabric_partitions}


async def test_a_gpu_is_in_one_partition_of_each_size(placed):
    gpus = await placed(settings=[SHARED])

    assert [sorted(ids(gpu)) for gpu in gpus] == [[1, 2, 4, 8]] * 8
    assert len({ids(gpu)[1] for gpu in gpus}) == 8
    assert [ids(gpu)[4] for gpu in gpus] == [1] * 4 + [2] * 4
    assert len({ids(gpu)[8] for gpu in gpus}) == 1


async def test_partitions_follow_the_module_and_not_the_order_of_gpus(placed):
    straight = await placed(gpus=8, settings=[SHARED])
    swapped = await placed(gpus=8, settings=[SHARED, "gpu.0.module_id=8", "gpu.7.module_id=1"])

    assert ids(swapped[0]) == ids(straight[7])
    assert ids(swapped[7]) == ids(straight[0])


async def test_before_hopper_a_gpu_is_told_by_its_uuid(placed):
    gpus = await placed("A100", settings=[SHARED])

    assert [sorted(ids(gpu)) for gpu in gpus] == [[1, 2, 4, 8]] * 8


async def test_only_partitions_whose_gpus_are_all_there_can_be_made(placed):
    gpus = await placed(gpus=6, settings=[SHARED])

    assert sorted(ids(gpus[0])) == [1, 2, 4]
    assert sorted(ids(gpus[5])) == [1]


@pytest.mark.parametrize("settings", [[], [f"node.fabric_manager={FABRIC_MANAGER_BARE_METAL}"]], ids=["none", "bare"])
async def test_without_shared_switches_there_are_no_partitions(placed, settings):
    assert [gpu.fabric_partitions for gpu in await placed(gpus=2, settings=settings)] == [(), ()]


async def test_the_last_answer_counts_while_fabric_manager_does_not_answer(make_node):
    node = make_node(settings=[SHARED])
    manager = FabricManager([node.driver_root])
    known = await manager.partitions()

    with node.state() as state:
        state.fabric_manager = 0
    assert await manager.partitions() == known

    (node.driver_root / fabric_manager.SOCKET).unlink()
    assert await manager.partitions() == known != ()


async def test_a_fabric_manager_that_fails_at_first_is_asked_again(make_node):
    node = make_node(settings=[SHARED])
    node.inject("fmGetSupportedFabricPartitions", code=GENERIC_ERROR, count=1)
    manager = FabricManager([node.driver_root])

    assert await manager.partitions() == ()
    assert len(await manager.partitions()) == 15


async def test_a_library_that_is_none_costs_nothing_but_the_partitions(make_node):
    node = make_node(settings=[SHARED])
    library = node.library.with_name(fabric_manager.LIBRARY)
    library.write_bytes(b"not a library")

    assert await FabricManager([node.driver_root]).partitions() == ()
    with pytest.raises(VendorError, match=r"libnvfm.so.1 cannot be loaded"):
        await asyncio.to_thread(fabric_manager.read, library, node.driver_root / fabric_manager.SOCKET)


def test_the_library_refuses_what_the_real_one_refuses(make_node):
    node = make_node(settings=[SHARED])
    library = ctypes.CDLL(str(node.library.with_name(fabric_manager.LIBRARY)))
    uninitialised, in_use, mismatch = -4, -7, -6

    assert library.fmDisconnect(None) == uninitialised
    assert library.fmLibInit() == 0
    assert library.fmLibInit() == in_use
    wrong = (ctypes.c_char * 268)()
    assert library.fmConnect(ctypes.byref(wrong), ctypes.byref(ctypes.c_void_p())) == mismatch
    assert library.fmLibShutdown() == 0


def test_attributes_are_those_of_nvidias_driver():
    partitions = tuple(FabricPartition(size, number) for size, number in ((1, 7), (2, 3), (4, 1), (8, 0), (16, 99)))
    gpu = Gpu(uuid="GPU-0", index=0, module_id=1, fabric_partitions=partitions)

    named = attributes.of_whole_gpu(gpu, DriverVersions(), "GPU-0")

    found = {name: named[name].int_ for name in named if name.startswith(("gpuModule", "partition"))}
    assert found == {"gpuModuleID": 1, "partition1": 7, "partition2": 3, "partition4": 1, "partition8": 0}
