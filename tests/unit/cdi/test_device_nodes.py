"""Device nodes are described from what is on the node now."""

import os
from pathlib import Path, PurePosixPath

import pytest

from dra_gpu.cdi.device_nodes import NoDeviceNodeError, read_device_node
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import DeviceNode

NULL = Path("/dev/null")


def test_a_node_in_dev_has_its_numbers_and_no_host_path() -> None:
    numbers = NULL.stat().st_rdev

    node = read_device_node(HostDirectory.same(Path("/dev")), PurePosixPath("null"))

    assert node == DeviceNode("/dev/null", type="c", major=os.major(numbers), minor=os.minor(numbers), permissions="rw")


def test_a_node_kept_elsewhere_says_where_the_host_has_it(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").symlink_to(NULL)

    node = read_device_node(HostDirectory(PurePosixPath("/run/nvidia/driver/dev"), tmp_path), PurePosixPath("nvidia0"))

    assert (node.path, node.host_path) == ("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0")


def test_a_missing_node_is_named_as_the_host_names_it(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceNodeError, match="/host/dev/nvidia0 cannot be found"):
        read_device_node(HostDirectory(PurePosixPath("/host/dev"), tmp_path), PurePosixPath("nvidia0"))


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_not_a_device_node_is_not_taken_for_one(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "nvidia0"
    path.mkdir() if kind == "directory" else path.write_text("")

    with pytest.raises(NoDeviceNodeError, match="is not a device node"):
        read_device_node(HostDirectory.same(tmp_path), PurePosixPath("nvidia0"))
