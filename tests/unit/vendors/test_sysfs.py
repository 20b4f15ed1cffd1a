from pathlib import Path

import pytest

from dra_gpu.vendors.nvidia import sysfs

ADDRESS = "0000:3b:00.0"


class Sysfs:
    """A sysfs of a few files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(self, path: str, numa_node: int = 0) -> str:
        """Add a PCI device at a path below `devices`, and return its address."""
        address = path.rpartition("/")[2]
        folder = self.root / "devices" / path
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{numa_node}\n")
        links = self.root / "bus/pci/devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / address).symlink_to(f"../../../devices/{path}")
        return address

    def nodes(self, online: str, distances: dict[int, str], sockets: dict[int, int]) -> None:
        """Add NUMA nodes; a node without a socket has no processors."""
        folder = self.root / "devices/system/node"
        folder.mkdir(parents=True)
        (folder / "online").write_text(f"{online}\n")
        for node, row in distances.items():
            (folder / f"node{node}").mkdir()
            (folder / f"node{node}/distance").write_text(f"{row}\n")
            (folder / f"node{node}/cpulist").write_text(f"{node * 8}-{node * 8 + 7}\n" if node in sockets else "\n")
        for node, socket in sockets.items():
            topology = self.root / f"devices/system/cpu/cpu{node * 8}/topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{socket}\n")


@pytest.fixture
def machine(tmp_path):
    return Sysfs(tmp_path)


@pytest.mark.parametrize(
    ("path", "root"),
    [
        (f"pci0000:3a/0000:3a:00.0/{ADDRESS}", "pci0000:3a"),
        (f"pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:01.0/{ADDRESS}", "pci0000:37"),
        ("pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00"),
        ("pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0", "pci0000:64"),
        ("platform/bus@0/141a0000.pcie/pci0005:00/0005:00:00.0/0005:01:00.0", "pci0005:00"),
    ],
    ids=["one bridge", "switches behind switches", "wide domain", "domain within a domain", "platform device"],
)
def test_the_pcie_root_is_the_first_root_complex_of_the_path(machine, path, root):
    address = machine.device(path)

    assert sysfs.pcie_root(machine.root, address) == root


def test_gpu_and_network_card_behind_different_switches_of_one_root_match(machine):
    gpu = machine.device("pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0")
    card = machine.device("pci0000:37/0000:37:03.0/0000:3c:00.0")

    assert sysfs.pcie_root(machine.root, gpu) == sysfs.pcie_root(machine.root, card)


def test_the_numa_node_is_what_the_kernel_says(machine):
    machine.device(f"pci0000:3a/0000:3a:00.0/{ADDRESS}", numa_node=1)

    assert sysfs.numa_node(machine.root, ADDRESS) == 1


@pytest.mark.case("C53")
def test_minus_one_means_no_numa_node(machine):
    machine.device(f"pci0000:3a/0000:3a:00.0/{ADDRESS}", numa_node=-1)

    assert sysfs.numa_node(machine.root, ADDRESS) is None


def test_a_device_that_sysfs_does_not_know_has_neither(machine):
    assert sysfs.pcie_root(machine.root, "0000:ff:00.0") is None
    assert sysfs.numa_node(machine.root, "0000:ff:00.0") is None


def test_a_socket_of_one_node_is_nearest_to_itself_alone(machine):
    machine.nodes("0-1", {0: "10 21", 1: "21 10"}, {0: 0, 1: 1})

    assert sysfs.nearest_nodes(machine.root, 0) == (0,)


def test_the_nodes_of_one_socket_follow_the_node_of_the_device(machine):
    rows = {0: "10 12 32 32", 1: "12 10 32 32", 2: "32 32 10 12", 3: "32 32 12 10"}
    machine.nodes("0-3", rows, {0: 0, 1: 0, 2: 1, 3: 1})

    assert sysfs.nearest_nodes(machine.root, 3) == (3, 2)


def test_only_the_nearest_nodes_of_a_socket_count(machine):
    rows = {0: "10 11 12 12", 1: "11 10 12 12", 2: "12 12 10 11", 3: "12 12 11 10"}
    machine.nodes("0-3", rows, {0: 0, 1: 0, 2: 0, 3: 0})

    assert sysfs.nearest_nodes(machine.root, 0) == (0, 1)


def test_the_memory_of_a_coherent_gpu_is_next_to_the_processors_of_its_socket(machine):
    rows = {0: "10 40 80 120", 1: "40 10 120 80", 2: "80 120 10 255", 10: "120 80 255 10"}
    machine.nodes("0-2,10", rows, {0: 0, 1: 1})

    assert sysfs.nearest_nodes(machine.root, 2) == (2, 0)
    assert sysfs.nearest_nodes(machine.root, 10) == (10, 1)


@pytest.mark.parametrize("distance", ["", "10", "ten 21"])
def test_unreadable_distances_leave_the_node_of_the_device(machine, distance):
    machine.nodes("0-1", {0: distance, 1: "21 10"}, {0: 0, 1: 1})

    assert sysfs.nearest_nodes(machine.root, 0) == (0,)


def test_a_machine_without_numa_leaves_the_node_of_the_device(machine):
    assert sysfs.nearest_nodes(machine.root, 0) == (0,)
