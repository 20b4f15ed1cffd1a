"""The files around the GPUs: device nodes, /proc, sysfs, the driver root."""

import os
import stat
import subprocess

import pytest

from dra_gpu_sim.node import SimulatedNode


def test_device_nodes_are_character_devices_with_nvidias_numbers(node):
    control = (node.dev_root / "nvidiactl").stat()
    if not stat.S_ISCHR(control.st_mode):
        assert os.geteuid() != 0 or stat.S_ISREG(control.st_mode)
        return
    assert (os.major(control.st_rdev), os.minor(control.st_rdev)) == (195, 255)
    gpu = (node.dev_root / "nvidia1").stat()
    assert (os.major(gpu.st_rdev), os.minor(gpu.st_rdev), stat.S_IMODE(gpu.st_mode)) == (195, 1, 0o666)


def test_nodes_may_be_regular_files(make_node, load):
    node = make_node("L4", gpus=1, devices=False)
    assert (node.dev_root / "nvidia0").is_file()
    assert load(node).nvmlDeviceGetCount() == 1


@pytest.mark.parametrize(
    "name",
    ["nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/nvidia-cap1", "dri/card0", "dri/renderD128"],
)
def test_every_node_that_a_container_needs_exists(node, name):
    assert (node.dev_root / name).exists()


def test_the_majors_of_the_nodes_are_those_in_proc_devices(node):
    pairs = [line.split() for line in (node.proc_root / "devices").read_text().splitlines()]
    majors = {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}
    if stat.S_ISCHR((node.dev_root / "nvidia-uvm").stat().st_mode):
        assert os.major((node.dev_root / "nvidia-uvm").stat().st_rdev) == majors["nvidia-uvm"]
        assert os.major((node.dev_root / "nvidia-caps/nvidia-cap1").stat().st_rdev) == majors["nvidia-caps"]


def test_a_gpu_leads_from_its_address_to_its_root_complex_numa_node_and_driver(node):
    device = node.sysfs_root / "bus/pci/devices/0000:1b:00.0"
    assert str(device.readlink()).startswith("../../../devices/pci0000:15/")
    assert (device / "numa_node").read_text() == "0\n"
    assert (device / "vendor").read_text() == "0x10de\n"
    assert (device / "driver").resolve().name == "nvidia"
    assert (device / "iommu_group/devices/0000:1b:00.0").resolve() == device.resolve()


def test_proc_names_each_gpu_by_its_address(node):
    text = (node.proc_root / "driver/nvidia/gpus/0000:29:00.0/information").read_text()
    assert f"GPU UUID: \t {node.uuids[1]}\n" in text
    assert "Device Minor: \t 1\n" in text


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"])
def test_libraries_lie_under_their_full_name_with_the_soname_as_a_link(node, soname):
    link = node.library.parent / soname
    assert str(link.readlink()) == f"{soname.removesuffix('.1')}.615.71.02"
    dynamic = subprocess.check_output(["readelf", "-d", link], text=True)
    assert f"Library soname: [{soname}]" in dynamic


def test_binaries_and_firmware_are_in_the_driver_root(node):
    binaries = {path.name for path in (node.driver_root / "usr/bin").iterdir() if os.access(path, os.X_OK)}
    assert binaries >= {"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"}
    assert binaries >= {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}
    assert list((node.driver_root / "lib/firmware/nvidia/615.71.02").glob("gsp_*.bin"))


@pytest.mark.parametrize("version", ["", "560", "6.19.14.31400000", "535.288.01-rc1+x"])
def test_odd_driver_versions_make_a_node_that_works(make_node, load, version):
    node = make_node("L4", gpus=1, driver_version=version)
    assert load(node).nvmlSystemGetDriverVersion() == version


def test_a_setting_that_does_not_exist_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="SimGpu has no field 'colour'"):
        SimulatedNode.create(tmp_path / "node", "L4", settings=["gpu.0.colour=red"])
    assert not (tmp_path / "node").exists()


def test_the_same_seed_gives_the_same_uuids(tmp_path):
    nodes = [SimulatedNode.create(tmp_path / name, "L4", gpus=2, seed="rack1/node3") for name in ("a", "b")]
    assert nodes[0].uuids == nodes[1].uuids
    assert SimulatedNode.create(tmp_path / "c", "L4", gpus=2).uuids != nodes[0].uuids


def test_sixty_four_gpus_are_possible_and_one_more_is_not(make_node, load, tmp_path):
    assert load(make_node("H100", gpus=64)).nvmlDeviceGetCount() == 64
    with pytest.raises(ValueError, match="holds 0 to 64 GPUs, not 65"):
        SimulatedNode.create(tmp_path / "more", "H100", gpus=65)
