import pytest

from dra_gpu.vendors.nvidia import sysfs

ADDRESS = "0000:3b:00.0"


@pytest.fixture
def sysfs_root(tmp_path):
    device = tmp_path / "devices/pci0000:3a/0000:3a:00.0" / ADDRESS
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / ADDRESS).symlink_to(f"../../../devices/pci0000:3a/0000:3a:00.0/{ADDRESS}")
    return tmp_path


def test_the_pcie_root_is_the_first_part_of_the_path_under_devices(sysfs_root):
    assert sysfs.pcie_root(sysfs_root, ADDRESS) == "pci0000:3a"


def test_the_numa_node_is_what_the_kernel_says(sysfs_root):
    assert sysfs.numa_node(sysfs_root, ADDRESS) == 1


@pytest.mark.case("C53")
def test_minus_one_means_no_numa_node(sysfs_root):
    (sysfs_root / "bus/pci/devices" / ADDRESS / "numa_node").write_text("-1\n")

    assert sysfs.numa_node(sysfs_root, ADDRESS) is None


def test_a_device_that_sysfs_does_not_know_has_neither(sysfs_root):
    assert sysfs.pcie_root(sysfs_root, "0000:ff:00.0") is None
    assert sysfs.numa_node(sysfs_root, "0000:ff:00.0") is None
