"""What a container with an NVIDIA GPU gets, and that it never gets half of it."""

import platform
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from dra_gpu.cdi.extra_edits import ExtraDeviceNode, ExtraEdits
from dra_gpu.cdi.spec import ContainerEdits, DeviceNode
from dra_gpu.inventory.model import MigInstance, MigPlacement, View
from dra_gpu.vendors.base import FailureKind, NotReadyError, VendorError
from dra_gpu.vendors.nvidia.capabilities import Capabilities
from dra_gpu.vendors.nvidia.driver_root import DriverRoot
from dra_gpu.vendors.nvidia.edits import NvidiaEdits
from tests.unit.vendors.nvidia_cdi.driver_trees import UBUNTU, VERSION, install, make_nodes, on_host, published

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return install(tmp_path / "root")


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    return make_nodes(tmp_path / "dev", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1")


@pytest.fixture
def edits(root: Path, dev: Path) -> NvidiaEdits:
    return NvidiaEdits(DriverRoot(on_host(root, "/run/nvidia/driver")), on_host(dev, "/dev"))


@pytest.fixture
def hooked(root: Path, dev: Path) -> NvidiaEdits:
    return NvidiaEdits(
        DriverRoot(on_host(root, "/run/nvidia/driver")),
        on_host(dev, "/dev"),
        hook_program=PurePosixPath("/usr/bin/nvidia-cdi-hook"),
    )


def node_paths(edits: ContainerEdits) -> list[str]:
    return [node.path for node in edits.device_nodes]


def mounts(edits: ContainerEdits) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def test_every_container_gets_the_control_nodes_that_exist(edits: NvidiaEdits, dev: Path) -> None:
    assert node_paths(edits.common_edits()) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]

    make_nodes(dev, "nvidia-modeset")

    assert node_paths(edits.common_edits())[-1] == "/dev/nvidia-modeset"


def test_a_container_may_use_nodes_but_not_make_them(edits: NvidiaEdits) -> None:
    nodes = edits.common_edits().device_nodes + edits.device_edits([published(0)]).device_nodes

    assert {(node.type, node.permissions) for node in nodes} == {("c", "rw")}


def test_everything_of_the_driver_is_mounted_read_only(edits: NvidiaEdits) -> None:
    assert {mount.options for mount in edits.common_edits().mounts} == {READ_ONLY}


def test_programs_and_firmware_are_mounted_where_programs_look_for_them(edits: NvidiaEdits) -> None:
    found = mounts(edits.common_edits())

    assert found["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    firmware = f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    assert found[firmware] == f"/run/nvidia/driver{firmware}"


def test_with_the_toolkit_libraries_are_mounted_once_and_hooks_do_the_rest(hooked: NvidiaEdits) -> None:
    common = hooked.common_edits()

    assert mounts(common)[f"/{UBUNTU}/libcuda.so.{VERSION}"] == f"/run/nvidia/driver/{UBUNTU}/libcuda.so.{VERSION}"
    assert f"/{UBUNTU}/libcuda.so.1" not in mounts(common)
    assert [hook.args[1] for hook in common.hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert f"NVIDIA_CTK_LIBCUDA_DIR=/{UBUNTU}" in common.env


def test_without_the_toolkit_libraries_lie_under_every_name_where_loaders_look_by_themselves(
    edits: NvidiaEdits,
) -> None:
    common = edits.common_edits()

    for directory in (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64"):
        for name in (f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so"):
            assert mounts(common)[f"{directory}/{name}"] == f"/run/nvidia/driver/{UBUNTU}/libcuda.so.{VERSION}"
    assert common.hooks == ()
    assert common.env == ("NVIDIA_VISIBLE_DEVICES=void",)


def test_sockets_of_daemons_are_mounted_without_the_right_to_execute(edits: NvidiaEdits, root: Path) -> None:
    (root / "run" / "nvidia-persistenced").mkdir(parents=True)
    (root / "run" / "nvidia-persistenced" / "socket").write_text("")

    (mount,) = (mount for mount in edits.common_edits().mounts if mount.container_path.startswith("/run"))

    assert mount.options == (*READ_ONLY, "noexec")


@pytest.mark.parametrize("view", [View.GPU, View.MONITOR])
def test_a_whole_gpu_and_a_look_at_it_are_its_own_node(edits: NvidiaEdits, view: View) -> None:
    assert node_paths(edits.device_edits([published(1, view)])) == ["/dev/nvidia1"]


def test_two_views_of_one_gpu_give_its_node_once(edits: NvidiaEdits) -> None:
    assert node_paths(edits.device_edits([published(0), published(0, View.MONITOR)])) == ["/dev/nvidia0"]


@pytest.mark.case("C16")
def test_each_device_has_only_its_own_node(edits: NvidiaEdits) -> None:
    left, right = published(0), published(1)

    assert node_paths(edits.device_edits([left])) == ["/dev/nvidia0"]
    assert node_paths(edits.device_edits([right])) == ["/dev/nvidia1"]
    assert node_paths(edits.device_edits([left, right])) == ["/dev/nvidia0", "/dev/nvidia1"]


@pytest.mark.case("C46")
def test_no_environment_names_a_gpu_so_that_two_claims_in_a_container_agree(edits: NvidiaEdits) -> None:
    one, other = (edits.common_edits().merged(edits.device_edits([published(index)])) for index in (0, 1))

    assert one.env == other.env == ("NVIDIA_VISIBLE_DEVICES=void",)


def test_drm_nodes_of_the_gpus_pci_address_come_with_it_when_they_exist(edits: NvidiaEdits, dev: Path) -> None:
    (dev / "dri" / "by-path").mkdir(parents=True)
    for name, link in (("card1", "card"), ("renderD128", "render")):
        (dev / "dri" / name).symlink_to("/dev/null")
        (dev / "dri" / "by-path" / f"pci-0000:01:00.0-{link}").symlink_to(f"../{name}")
    make_nodes(dev / "dri", "card2")

    found = node_paths(edits.device_edits([published(0)]))

    assert found == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]


def test_nodes_kept_elsewhere_say_where_the_host_has_them(root: Path, dev: Path) -> None:
    edits = NvidiaEdits(DriverRoot(on_host(root, "/r")), on_host(dev, "/run/nvidia/driver/dev"))

    (node,) = edits.device_edits([published(0)]).device_nodes

    assert (node.path, node.host_path) == ("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0")


@pytest.mark.case("C37")
def test_on_a_fresh_node_every_missing_node_is_named_and_once_made_the_same_call_succeeds(
    edits: NvidiaEdits, dev: Path
) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (dev / name).unlink()

    with pytest.raises(NotReadyError, match=r"/dev/nvidiactl .*; /dev/nvidia-uvm .*nvidia-modprobe"):
        edits.common_edits()
    with pytest.raises(NotReadyError, match=r"/dev/nvidia0 cannot be found"):
        edits.device_edits([published(0)])

    make_nodes(dev, "nvidiactl", "nvidia-uvm", "nvidia0")
    assert node_paths(edits.common_edits())[:2] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert node_paths(edits.device_edits([published(0)])) == ["/dev/nvidia0"]


@pytest.mark.case("C37")
def test_all_missing_gpu_nodes_are_named_at_once(edits: NvidiaEdits) -> None:
    with pytest.raises(NotReadyError, match=r"/dev/nvidia5 .*; /dev/nvidia6 "):
        edits.device_edits([published(5), published(6)])


def test_a_file_in_the_place_of_a_node_is_not_a_node(edits: NvidiaEdits, dev: Path) -> None:
    (dev / "nvidia0").unlink()
    (dev / "nvidia0").write_text("")

    with pytest.raises(NotReadyError, match="/dev/nvidia0 is not a device node"):
        edits.device_edits([published(0)])


def test_a_gpu_without_a_node_of_its_own_is_refused(edits: NvidiaEdits) -> None:
    device = published(0)
    integrated = type(device)(device.name, device.view, type(device.gpu)(uuid="GPU-tegra", index=0), device.wire)

    with pytest.raises(VendorError, match="GPU-tegra has no device node") as refusal:
        edits.device_edits([integrated])

    assert refusal.value.kind is FailureKind.UNSUPPORTED


def test_a_view_of_a_later_release_is_refused_by_its_name(edits: NvidiaEdits) -> None:
    with pytest.raises(VendorError, match="cannot give the view 'vfio'"):
        edits.device_edits([published(0, View.VFIO)])


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """What a driver tells of GPU 2 with a partition: GPU instance 7 has the number 84, its compute instance 85."""
    files = {
        "devices": "Character devices:\n195 nvidia\n237 nvidia-caps\n 10 misc\n\nBlock devices:\n  8 sd\n",
        "driver/nvidia/capabilities/gpu2/mig/gi7/access": "DeviceFileMinor: 84\nDeviceFileMode: 292\n",
        "driver/nvidia/capabilities/gpu2/mig/gi7/ci0/access": "DeviceFileMinor: 85\nDeviceFileMode: 292\n",
        "driver/nvidia-caps/mig-minors": "config 1\nmonitor 2\ngpu2/gi7/access 84\ngpu2/gi7/ci0/access 85\n",
    }
    for name, text in files.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "proc"


@pytest.fixture
def partition(root: Path, dev: Path, proc: Path) -> Callable[..., ContainerEdits]:
    """What a container gets of the partition, which has its own name in the given mapping."""
    make_nodes(dev, "nvidia2")
    host = on_host(dev, "/dev")
    edits = NvidiaEdits(DriverRoot(on_host(root, "/r")), host, capabilities=Capabilities(proc, host))
    device = published(2, View.MIG)

    def given(compute_instance: int | None = 0, name: str = device.name) -> ContainerEdits:
        instance = MigInstance(MigPlacement(0, 4, 1), 7, compute_instance, "MIG-1")
        return edits.device_edits([device], {name: instance})

    return given


@pytest.mark.case("C44")
def test_a_partition_comes_with_its_two_capabilities_and_its_gpus_node_and_nothing_else(partition) -> None:
    parent, *capabilities = partition().device_nodes

    assert parent.path == "/dev/nvidia2"
    assert capabilities == [
        DeviceNode("/dev/nvidia-caps/nvidia-cap84", type="c", major=237, minor=84, permissions="rw"),
        DeviceNode("/dev/nvidia-caps/nvidia-cap85", type="c", major=237, minor=85, permissions="rw"),
    ]


@pytest.mark.case("C44")
def test_numbers_of_a_partition_that_proc_does_not_show_are_those_that_the_driver_lists(partition, proc: Path) -> None:
    shutil.rmtree(proc / "driver/nvidia/capabilities")

    assert [node.minor for node in partition().device_nodes[1:]] == [84, 85]


def test_a_capability_node_that_the_host_has_is_the_one_that_the_container_gets(partition, dev: Path) -> None:
    (dev / "nvidia-caps").mkdir()
    (dev / "nvidia-caps" / "nvidia-cap84").symlink_to("/dev/null")

    assert (partition().device_nodes[1].major, partition().device_nodes[1].minor) == (1, 3)


def test_a_partition_whose_numbers_nobody_tells_is_not_ready(partition, proc: Path) -> None:
    (proc / "devices").write_text("Character devices:\n195 nvidia\n")
    with pytest.raises(NotReadyError, match="does not list nvidia-caps"):
        partition()

    shutil.rmtree(proc / "driver")
    with pytest.raises(NotReadyError, match="gi7/access cannot be read"):
        partition()


def test_a_partition_without_its_instance_is_not_ready(partition) -> None:
    for absent in ({"compute_instance": None}, {"name": "another"}):
        with pytest.raises(NotReadyError, match=r"MIG instance on GPU GPU-00000002-.* is not there"):
            partition(**absent)


def test_the_operators_additions_come_last_and_missing_ones_hold_the_claim_back(root: Path, dev: Path) -> None:
    extra = ExtraEdits(device_nodes=(ExtraDeviceNode("/dev/gdrdrv", required=True),))
    edits = NvidiaEdits(DriverRoot(on_host(root, "/r")), on_host(dev, "/dev"), extra=extra)
    with pytest.raises(NotReadyError, match="/dev/gdrdrv required"):
        edits.common_edits()

    make_nodes(dev, "gdrdrv")

    assert node_paths(edits.common_edits())[-1] == "/dev/gdrdrv"
