"""What is published of GPUs that can be partitioned, for tests."""

from dra_gpu.inventory import naming, views
from dra_gpu.inventory.model import DriverVersions, Fabric, FabricPartition, NvLink, Scan, View
from dra_gpu.inventory.options import DEFAULT_VIEWS, ViewOptions
from tests.unit.inventory import boards

VERSIONS = DriverVersions("580.65.06", "13.0")
EVERY = (*DEFAULT_VIEWS, View.SHARED_MIG)


def layout(*gpus, options=None, ours=()):
    """Return what a node with these GPUs publishes."""
    return views.build(Scan(VERSIONS, tuple(gpus)), naming.assign({}, gpus), options, ours)


def names(built, view):
    """Return the names of the devices of a view, in their order."""
    return [device.name for device in built.inventory.devices.values() if device.view is view]


def everything(board):
    """Return the options by which all that a board can is published."""
    profiles = tuple(row["name"] for row in boards.rows(board))
    return ViewOptions(EVERY, mig_profiles=profiles, shared_mig_profiles=profiles, numa_lists=True)


def talkative(board, **facts):
    """Return a GPU that tells everything."""
    return boards.partitionable(
        board,
        brand="NVIDIA",
        architecture="Hopper",
        addressing_mode="HMM",
        pcie_root="pci0000:10",
        serial="1320000000000",
        numa_node=0,
        numa_nodes=(0, 1),
        confidential_compute=False,
        fabric=Fabric("c", 1),
        nvlinks=(NvLink(0, active=True, version=4),),
        fabric_registered=True,
        module_id=3,
        fabric_partitions=tuple(FabricPartition(size, number) for number, size in enumerate((1, 2, 4, 8))),
        nvlink_bandwidth=450_000_000_000,
        isolation="namespace",
        **facts,
    )
