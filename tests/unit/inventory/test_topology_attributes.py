"""What a scheduler sees of where a GPU sits: NVLink, fabric, NUMA nodes, module."""

import pytest

from dra_gpu.inventory import naming, views
from dra_gpu.inventory.model import Fabric, NvLink, Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.unit.inventory.builders import gpu, switched

NUMA = "resource.kubernetes.io/numaNode"


def published(*gpus, **options):
    scan = Scan(gpus=tuple(gpus))
    chosen = ViewOptions((View.GPU, View.SHARED, View.MONITOR), **options)
    return views.build(scan, naming.assign({}, scan.gpus), chosen).inventory.devices


def attributes(one, **options):
    return published(one, **options)["gpu-0"].wire.attributes


def test_the_numa_node_is_a_number_unless_lists_are_asked_for():
    assert attributes(gpu(0, numa_node=1, numa_nodes=(1, 0)))[NUMA].int_ == 1


def test_in_its_list_form_the_node_of_the_gpu_comes_first():
    devices = published(gpu(0, numa_node=1, numa_nodes=(1, 0)), numa_lists=True)

    assert {tuple(device.wire.attributes[NUMA].ints) for device in devices.values()} == {(1, 0)}


@pytest.mark.parametrize("lists", [False, True])
def test_a_gpu_without_numa_node_has_no_attribute_that_others_could_match(lists):
    assert NUMA not in attributes(gpu(0), numa_lists=lists)


def test_the_nvlink_generation_is_that_of_the_active_links():
    links = (NvLink(link=0, active=True, version=4), NvLink(link=1, active=True), NvLink(link=2, active=False))

    assert attributes(gpu(0, nvlinks=links))["nvlinkVersion"].int_ == 4


@pytest.mark.parametrize(
    "links", [(), (NvLink(link=0, active=False, version=4),), (NvLink(link=0, active=True),)], ids=["none", "down", "?"]
)
def test_without_a_known_generation_there_is_no_nvlink_version(links):
    assert "nvlinkVersion" not in attributes(gpu(0, nvlinks=links))


def test_the_clique_is_told_only_of_gpus_that_have_registered_with_a_fabric():
    member = switched(0, fabric_registered=True, fabric=Fabric("b8d8c8a4-0001", 7))

    assert attributes(member)["fabricClique"].string == "b8d8c8a4-0001.7"
    assert "fabricClique" not in attributes(switched(0, fabric_registered=False))


def test_links_that_are_down_cost_bandwidth_and_not_the_group():
    whole, degraded = switched(0, nvlink_bandwidth=450_000_000_000), switched(1, nvlink_bandwidth=425_000_000_000)

    devices = published(whole, degraded)

    groups = {devices[name].wire.attributes["nvlinkGroup"].string for name in ("gpu-0", "gpu-1")}
    bandwidths = [devices[f"gpu-{n}-shared"].wire.capacity["nvlinkBandwidth"].value for n in (0, 1)]
    assert groups == {whole.uuid}
    assert bandwidths == ["450000000000", "425000000000"]
