"""Where GPUs sit and what joins them, as the driver reads it from simulated boards of every shape."""

from itertools import combinations
from pathlib import Path

import pynvml
import pytest

from dra_gpu.inventory import topology
from dra_gpu.vendors.nvidia import sysfs
from dra_gpu.vendors.nvidia.nvml import Nvml

MB = 10**6
IN_PROGRESS = 2


@pytest.fixture
def read(make_node, load):
    """Make a node and read its GPUs as the driver does; `change` happens to the node before that."""

    def read_node(profile, gpus=None, change=lambda _node: None, **options):
        node = make_node(profile, gpus=gpus, **options)
        change(node)
        load(node)
        return [Nvml.read(index) for index in range(Nvml.count())]

    return read_node


def matching(gpus):
    """The pairs that `matchAttribute: gpu.nvidia.com/nvlinkGroup` accepts."""
    groups = topology.nvlink_groups(gpus)
    return {(a.index, b.index) for a, b in combinations(gpus, 2) if groups[a.uuid] == groups[b.uuid]}


def reached(gpus):
    """The pairs that reach each other over NVLink by NVML's own account."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus]
    return {
        (a, b)
        for a, b in combinations(range(len(gpus)), 2)
        if pynvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        == pynvml.NVML_P2P_STATUS_OK
    }


def pairs(*groups):
    return {pair for group in groups for pair in combinations(group, 2)}


@pytest.mark.parametrize(
    ("profile", "gpus", "expected"),
    [
        ("A100-PCIe", 4, pairs([0, 1], [2, 3])),
        ("A100-PCIe", 3, pairs([0, 1])),
        ("V100", 8, pairs(range(4), range(4, 8))),
        ("V100", 4, pairs(range(4))),
        ("V100", 6, pairs(range(4), [4, 5])),
        ("A100", 8, pairs(range(8))),
        ("H100", 8, pairs(range(8))),
        ("GB200", 4, pairs(range(4))),
        ("L4", 2, set()),
        ("RTX-PRO-6000", 4, set()),
    ],
)
def test_the_pairs_that_match_are_those_that_a_board_joins(read, profile, gpus, expected):
    found = read(profile, gpus)

    assert matching(found) == expected
    assert matching(found) <= reached(found)


def test_a_gpu_with_one_link_down_stays_in_the_group_with_less_bandwidth(read):
    found = read("H100", 8, lambda node: node.set_links(3, 5, up=False))

    assert matching(found) == pairs(range(8))
    assert {gpu.nvlink_bandwidth for gpu in found if gpu.index != 3} == {18 * 26_562 * MB}
    assert found[3].nvlink_bandwidth == 17 * 26_562 * MB


def test_a_gpu_with_all_links_down_matches_nobody_and_has_no_bandwidth(read):
    found = read("H100", 4, settings=["gpu.3.links_down=all"])

    assert matching(found) == pairs(range(3))
    assert topology.nvlink_groups(found)[found[3].uuid] == found[3].uuid
    assert found[3].nvlink_bandwidth is None


@pytest.mark.parametrize(("profile", "joined"), [("A100", {(1, 2)}), ("H100", {(0, 1), (0, 2), (1, 2)})])
def test_mig_mode_takes_an_amperes_links_and_leaves_those_of_later_boards(read, profile, joined):
    assert matching(read(profile, 3, settings=["gpu.0.mig_current=1", "gpu.0.mig_pending=1"])) == joined


def test_a_bridge_of_which_some_links_are_down_still_joins_its_pair(read):
    found = read("A100-PCIe", 4, lambda node: node.set_links(0, *range(11), up=False))

    assert matching(found) == pairs([0, 1], [2, 3])


def test_a_gpu_that_is_still_registering_with_its_fabric_matches_nobody_and_tells_no_clique(read):
    found = read("GB200", 4, settings=[f"gpu.1.fabric_state={IN_PROGRESS}"])

    assert matching(found) == pairs([0, 2, 3])
    assert [gpu.fabric is None for gpu in found] == [False, True, False, False]
    assert [gpu.fabric_registered for gpu in found] == [True, False, True, True]


def test_a_registration_that_failed_is_none(read):
    found = read("H100", 2, settings=["gpu.0.fabric_status=999"])

    assert matching(found) == set()


def test_two_cliques_of_one_fabric_do_not_match_across_them(read):
    found = read("GB200", 4, settings=["gpu.2.fabric_clique=2", "gpu.3.fabric_clique=2"])

    assert matching(found) == pairs([0, 1], [2, 3])


def test_a_board_whose_fabric_ends_at_the_node_has_registered_and_tells_no_clique(read):
    found = read("H100", 2)

    assert [(gpu.fabric_registered, gpu.fabric) for gpu in found] == [(True, None)] * 2


@pytest.mark.parametrize(
    ("profile", "generation"), [("V100", 2), ("A100-PCIe", 3), ("A100", 3), ("H100", 4), ("B200", 5), ("L4", None)]
)
def test_links_tell_their_generation_and_not_nvmls_number_for_it(read, profile, generation):
    gpu, _ = read(profile, 2)

    assert {link.version for link in gpu.nvlinks if link.active} == ({generation} if generation else set())


def test_every_gpu_tells_the_number_of_its_module(read):
    assert [gpu.module_id for gpu in read("H100", 8)] == list(range(1, 9))


def nearest(node, index):
    address = node.sysfs_root / "bus/pci/devices"
    device = sorted(address.iterdir())[index].name
    return sysfs.nearest_nodes(node.sysfs_root, sysfs.numa_node(node.sysfs_root, device))


def test_the_gpus_of_a_server_with_two_sockets_are_near_one_node_each(make_node):
    node = make_node("H100")

    assert [nearest(node, index) for index in range(8)] == [(0,)] * 4 + [(1,)] * 4


def test_the_memory_of_a_coherent_gpu_lies_next_to_the_processors_of_its_socket(make_node):
    node = make_node("GB200")

    assert sysfs.nearest_nodes(Path(node.sysfs_root), 2) == (2, 0)
    assert sysfs.nearest_nodes(Path(node.sysfs_root), 26) == (26, 1)
