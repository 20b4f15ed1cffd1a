"""Paths, mounts and what is built."""

from pathlib import Path

import pytest
from lab import recipe
from lab.errors import LabError
from lab.layout import Layout

from dra_gpu_sim.mounts import mount_points


def test_a_state_directory_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRA_GPU_LAB_DIR", "/" + "x" * 60)

    with pytest.raises(LabError, match="choose a shorter one"):
        Layout.from_environment()


def test_two_nodes_share_no_path_address_or_cgroup() -> None:
    layout = Layout(Path("/tmp/lab"))
    one, two = layout.node(1), layout.node(2)

    for name in ("dir", "kubelet_root", "cdi_dir", "containerd_socket", "address", "pod_subnet", "name"):
        assert getattr(one, name) != getattr(two, name)
    assert layout.node_cgroup(one) != layout.node_cgroup(two)


def test_two_labs_on_a_machine_share_no_address() -> None:
    one, two = Layout(Path("/tmp/lab")).node(1), Layout(Path("/tmp/another-lab")).node(1)

    assert one.address != two.address
    assert one.pod_subnet != two.pod_subnet


def test_mounts_below_a_directory_come_last_first_and_unescaped(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(
        "1 0 0:1 / /lab rw - tmpfs tmpfs rw\n"
        "2 1 0:2 / /lab/with\\040blank rw - tmpfs tmpfs rw\n"
        "3 0 0:3 / /labour rw - tmpfs tmpfs rw\n"
    )

    assert mount_points(Path("/lab"), mountinfo) == [Path("/lab/with blank"), Path("/lab")]


def test_the_version_stamp_is_the_pinned_module_version() -> None:
    kubelet = next(binary for binary in recipe.binaries() if binary.name == "kubelet")

    assert f"gitVersion={recipe.kubernetes_version()}" in " ".join(kubelet.flags)


def test_staging_modules_are_pinned_to_the_release_of_kubernetes() -> None:
    minor = recipe.kubernetes_version().removeprefix("v1.")
    text = (recipe.KUBERNETES_MODULE / "go.mod").read_text()

    assert f"k8s.io/api => k8s.io/api v0.{minor}" in text
    assert f"k8s.io/dynamic-resource-allocation => k8s.io/dynamic-resource-allocation v0.{minor}" in text
