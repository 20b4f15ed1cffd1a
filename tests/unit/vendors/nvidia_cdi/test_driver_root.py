"""The driver installation is found wherever it is, and only when it is complete."""

import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path, PurePosixPath

import pytest

from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.vendors.base import NotReadyError
from dra_gpu.vendors.nvidia.driver_root import DriverFiles, DriverRoot, find_nvml, find_program
from tests.unit.vendors.nvidia_cdi.driver_trees import UBUNTU, VERSION, install, on_host, settle, uninstall

HOST = "/run/nvidia/driver"


def files(root: Path, *, graphics: bool = False) -> DriverFiles:
    return DriverRoot(on_host(root, HOST), graphics=graphics).files()


def host_paths(found: DriverFiles) -> dict[str, str]:
    return {library.file.container.name: str(library.file.host) for library in found.libraries}


def container_paths(found: DriverFiles) -> set[str]:
    return {str(library.file.container) for library in found.libraries}


def test_version_libraries_programs_and_firmware_are_found(tmp_path: Path) -> None:
    found = files(install(tmp_path))

    assert found.version == VERSION
    assert host_paths(found)[f"libcuda.so.{VERSION}"] == f"{HOST}/{UBUNTU}/libcuda.so.{VERSION}"
    assert [str(program.host) for program in found.programs] == [
        f"{HOST}/usr/bin/nvidia-smi",
        f"{HOST}/usr/bin/nvidia-cuda-mps-control",
    ]
    assert [str(image.container) for image in found.firmware] == [f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"]


def test_libraries_know_the_names_they_are_loaded_by(tmp_path: Path) -> None:
    loaded_as = {
        library.file.container.name.partition(".")[0]: library.loaded_as
        for library in files(install(tmp_path)).libraries
    }

    assert loaded_as["libcuda"] == ("libcuda.so", "libcuda.so.1")
    assert loaded_as["libnvidia-nvvm"] == ("libnvidia-nvvm.so.4",)
    assert loaded_as["libnvidia-gpucomp"] == ()


def test_libraries_for_drawing_come_only_when_asked_for(tmp_path: Path) -> None:
    install(tmp_path)
    drawing = {f"libEGL_nvidia.so.{VERSION}", f"libnvidia-glcore.so.{VERSION}"}

    assert drawing.isdisjoint(host_paths(files(tmp_path)))
    assert drawing <= host_paths(files(tmp_path, graphics=True)).keys()


def test_libraries_of_other_software_and_of_other_versions_are_left_alone(tmp_path: Path) -> None:
    install(tmp_path)
    for other in ("libc.so.6", "libcuda.so.570.1.2", "libfoo.so.580.65.061"):
        (tmp_path / UBUNTU / other).write_text("")

    assert all(name.endswith(f".so.{VERSION}") for name in host_paths(files(tmp_path)))


def merged_usr(root: Path) -> None:
    install(root, libraries="usr/lib", firmware="usr/lib/firmware")
    (root / "lib").symlink_to("usr/lib")


def absolute_link_to_elsewhere(root: Path) -> None:
    install(root, libraries="opt/y")
    (root / "usr" / "lib").mkdir(parents=True)
    (root / "usr" / "lib64").symlink_to("/opt/y")


def lib64(root: Path) -> None:
    install(root, libraries="lib64", programs="bin")


def usr_lib_only(root: Path) -> None:
    install(root, libraries="usr/lib")


def debian_alternatives(root: Path) -> None:
    real = "usr/lib/x86_64-linux-gnu/nvidia/tesla-535"
    install(root, libraries=real)
    (root / "etc" / "alternatives").mkdir(parents=True)
    (root / "etc" / "alternatives" / "cuda").symlink_to(f"/{real}/libcuda.so.1")
    (root / UBUNTU / "libcuda.so.1").symlink_to("/etc/alternatives/cuda")


@pytest.mark.case("C40")
@pytest.mark.parametrize(
    ("lay_out", "directory"),
    [
        (merged_usr, "usr/lib"),
        (absolute_link_to_elsewhere, "opt/y"),
        (lib64, "lib64"),
        (usr_lib_only, "usr/lib"),
        (debian_alternatives, "usr/lib/x86_64-linux-gnu/nvidia/tesla-535"),
    ],
)
def test_unusual_roots_are_found_by_their_real_host_paths(
    tmp_path: Path, lay_out: Callable[[Path], None], directory: str
) -> None:
    root = tmp_path / "driver-root"
    root.mkdir()
    lay_out(root)

    found = files(root)

    assert host_paths(found)[f"libcuda.so.{VERSION}"] == f"{HOST}/{directory}/libcuda.so.{VERSION}"
    assert (root / directory / f"libcuda.so.{VERSION}").exists()
    assert "driver-root" not in str(found)
    assert len(found.programs) == 2
    assert len(found.firmware) == 1
    assert find_nvml(root) == (root / directory / f"libnvidia-ml.so.{VERSION}").resolve()


@pytest.mark.case("C40")
def test_a_root_that_is_a_link_gives_real_paths(tmp_path: Path) -> None:
    install(tmp_path / "580")
    (tmp_path / "current").symlink_to("580")

    found = DriverRoot(HostDirectory.same(tmp_path / "current")).files()

    assert host_paths(found)[f"libcuda.so.{VERSION}"] == str(tmp_path / "580" / UBUNTU / f"libcuda.so.{VERSION}")


@pytest.mark.case("C40")
def test_a_container_looks_for_libraries_under_the_directory_as_the_root_names_it(tmp_path: Path) -> None:
    absolute_link_to_elsewhere(tmp_path)

    assert f"/usr/lib64/libcuda.so.{VERSION}" in container_paths(files(tmp_path))


@pytest.mark.case("C40")
def test_when_nothing_is_found_the_message_lists_every_directory_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError) as refusal:
        files(tmp_path)

    message = str(refusal.value)
    for directory in ("usr/lib64", UBUNTU, "usr/lib/aarch64-linux-gnu", "lib64", "usr/lib", "lib"):
        assert f"{HOST}/{directory}" in message
    assert "Install the NVIDIA driver" in message


@pytest.mark.case("C37")
@pytest.mark.parametrize("missing", ["libcuda", "libnvidia-ml"])
def test_half_an_installation_is_not_ready_and_is_not_remembered(tmp_path: Path, missing: str) -> None:
    install(tmp_path, names={"libcuda", "libnvidia-ml"} - {missing})
    settle(tmp_path)
    root = DriverRoot(on_host(tmp_path, HOST))
    with pytest.raises(NotReadyError):
        root.files()

    (tmp_path / UBUNTU / f"{missing}.so.{VERSION}").write_text("")
    settle(tmp_path)

    assert root.files().version == VERSION


def test_libcuda_and_nvml_of_two_versions_are_half_an_installation(tmp_path: Path) -> None:
    install(tmp_path, version="580.1.1", names=["libcuda"])
    install(tmp_path, version="580.9.1", names=["libnvidia-ml"])

    with pytest.raises(NotReadyError, match="of one version"):
        files(tmp_path)


def test_of_two_versions_the_one_that_programs_load_counts(tmp_path: Path) -> None:
    install(tmp_path, version="580.9.1")
    for name in ("libcuda", "libnvidia-ml"):
        (tmp_path / UBUNTU / f"{name}.so.580.10.1").write_text("")

    assert files(tmp_path).version == "580.9.1"

    (tmp_path / UBUNTU / "libcuda.so.1").unlink()
    assert files(tmp_path).version == "580.10.1"


@pytest.mark.case("C38")
def test_a_root_swapped_under_the_plugin_is_seen(tmp_path: Path) -> None:
    install(tmp_path / "new", version="580.9")
    install(tmp_path / "root", version="580.1")
    settle(tmp_path)
    root = DriverRoot(on_host(tmp_path / "root", HOST))
    assert root.files().version == "580.1"

    (tmp_path / "root").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "root")

    assert root.files().version == "580.9"
    assert all(
        (tmp_path / "root" / PurePosixPath(path).relative_to(HOST)).exists()
        for path in host_paths(root.files()).values()
    )


@pytest.mark.case("C38")
def test_an_emptied_root_is_not_ready_until_it_is_filled_again(tmp_path: Path) -> None:
    install(tmp_path)
    settle(tmp_path)
    root = DriverRoot(on_host(tmp_path, HOST))
    assert root.files().version == VERSION

    uninstall(tmp_path)
    with pytest.raises(NotReadyError, match=f"driver root {HOST} is not ready"):
        root.files()

    install(tmp_path, version="580.9.1")
    assert root.files().version == "580.9.1"


def test_an_unchanged_installation_is_remembered(tmp_path: Path) -> None:
    install(tmp_path)
    settle(tmp_path)
    root = DriverRoot(on_host(tmp_path, HOST))

    assert root.files() is root.files()


def test_an_installation_that_changed_a_moment_ago_is_looked_at_again(tmp_path: Path) -> None:
    install(tmp_path)
    changed = max(path.stat().st_mtime_ns for path in (tmp_path, tmp_path / UBUNTU, tmp_path / "usr/bin"))
    root = DriverRoot(on_host(tmp_path, HOST), now_ns=lambda: changed + 1)

    assert root.files() is not root.files()


@pytest.mark.parametrize("place", [f"{UBUNTU}/libnvidia-new.so.{VERSION}", "usr/bin/nvidia-debugdump"])
def test_a_file_that_comes_later_is_seen_within_a_second(tmp_path: Path, place: str) -> None:
    install(tmp_path)
    settle(tmp_path)
    clock = Clock()
    root = DriverRoot(on_host(tmp_path, HOST), now_ns=clock)
    before = root.files()

    (tmp_path / place).write_text("")
    clock.ahead_ns = 1_000_000_000

    assert place in str(root.files())
    assert place not in str(before)


def test_a_library_that_comes_later_is_seen_at_once(tmp_path: Path) -> None:
    install(tmp_path)
    settle(tmp_path)
    root = DriverRoot(on_host(tmp_path, HOST))
    root.files()

    (tmp_path / UBUNTU / f"libnvidia-new.so.{VERSION}").write_text("")

    assert "libnvidia-new" in str(root.files())


class Clock:
    """The clock of file time stamps, as far ahead as a test likes."""

    ahead_ns = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead_ns


def test_sockets_of_the_drivers_daemons_are_found_when_they_exist(tmp_path: Path) -> None:
    install(tmp_path)
    root = DriverRoot(on_host(tmp_path, HOST))
    assert root.sockets() == ()

    (tmp_path / "run" / "nvidia-persistenced").mkdir(parents=True)
    (tmp_path / "run" / "nvidia-persistenced" / "socket").write_text("")

    (socket,) = root.sockets()
    assert str(socket.host) == f"{HOST}/run/nvidia-persistenced/socket"
    assert str(socket.container) == "/run/nvidia-persistenced/socket"


def test_nvml_is_found_without_libcuda_and_without_its_link(tmp_path: Path) -> None:
    install(tmp_path, names=["libnvidia-ml"])
    assert find_nvml(tmp_path) == tmp_path / UBUNTU / f"libnvidia-ml.so.{VERSION}"

    (tmp_path / UBUNTU / f"libcuda.so.{VERSION}").write_text("")
    (tmp_path / UBUNTU / "libnvidia-ml.so.1").unlink()
    assert find_nvml(tmp_path) == tmp_path / UBUNTU / f"libnvidia-ml.so.{VERSION}"


def test_without_nvml_the_message_lists_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"no libnvidia-ml\.so\.1 in any of .*/usr/lib64"):
        find_nvml(tmp_path)


def test_a_program_is_found_by_its_real_path_in_this_process(tmp_path: Path) -> None:
    lib64(tmp_path)

    assert find_program(tmp_path, "nvidia-smi") == tmp_path / "bin" / "nvidia-smi"


def test_a_missing_program_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"nvidia-debugdump.*/usr/bin"):
        find_program(install(tmp_path), "nvidia-debugdump")


def test_a_directory_that_changes_while_it_is_looked_at_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
    late = tmp_path / UBUNTU / f"libnvidia-late.so.{VERSION}"
    glob = Path.glob

    def arriving(self: Path, pattern: str) -> Iterator[Path]:
        """Let a library arrive after the libraries were listed, while firmware is looked for."""
        late.touch()
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", arriving)

    assert late.name in host_paths(files(tmp_path))


def test_a_directory_that_never_rests_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    glob = Path.glob
    arrivals = count()

    def arriving(self: Path, pattern: str) -> Iterator[Path]:
        number = next(arrivals)
        (tmp_path / UBUNTU / f"other{number}").touch()
        os.utime(tmp_path / UBUNTU, (number, number))
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", arriving)

    with pytest.raises(NotReadyError, match="is being changed"):
        files(tmp_path)
