"""Links inside a foreign root are followed as a process would that lives in it, and never lead out."""

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_gpu.cdi.host_directory import HostDirectory


@pytest.fixture
def root(tmp_path: Path) -> HostDirectory:
    (tmp_path / "root" / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "root" / "usr" / "lib" / "file").write_text("inside")
    (tmp_path / "file").write_text("outside")
    return HostDirectory(PurePosixPath("/run/nvidia/driver"), tmp_path / "root")


def resolve(root: HostDirectory, path: str) -> str:
    return str(root.resolve(PurePosixPath(path)))


def test_a_path_without_links_is_itself(root: HostDirectory) -> None:
    assert resolve(root, "usr/lib/file") == "usr/lib/file"


def test_an_absolute_path_starts_at_the_root(root: HostDirectory) -> None:
    assert resolve(root, "/usr/lib/file") == "usr/lib/file"


def test_a_relative_link_is_followed(root: HostDirectory) -> None:
    (root.process / "lib").symlink_to("usr/lib")

    assert resolve(root, "lib/file") == "usr/lib/file"


def test_an_absolute_link_starts_at_the_root(root: HostDirectory) -> None:
    (root.process / "lib").symlink_to("/usr/lib")

    assert resolve(root, "lib/file") == "usr/lib/file"


def test_a_link_to_this_process_own_absolute_path_does_not_lead_out(root: HostDirectory) -> None:
    (root.process / "lib").symlink_to(root.process.parent)

    with pytest.raises(FileNotFoundError):
        resolve(root, "lib/file")


def test_too_many_parents_stop_at_the_root(root: HostDirectory) -> None:
    (root.process / "lib").symlink_to("../../../../usr/lib")

    assert resolve(root, "lib/../../../usr/lib/file") == "usr/lib/file"


def test_a_circle_of_links_is_an_error(root: HostDirectory) -> None:
    (root.process / "a").symlink_to("b")
    (root.process / "b").symlink_to("a")

    with pytest.raises(OSError, match=r"/run/nvidia/driver/a") as circle:
        resolve(root, "a")

    assert circle.value.errno == errno.ELOOP


def test_a_missing_part_and_a_file_as_directory_are_errors(root: HostDirectory) -> None:
    with pytest.raises(FileNotFoundError):
        resolve(root, "usr/none")
    with pytest.raises(NotADirectoryError):
        resolve(root, "usr/lib/file/more")


def test_a_path_has_the_hosts_name_and_this_process_name(root: HostDirectory) -> None:
    assert root.on_host(PurePosixPath("usr/lib")) == PurePosixPath("/run/nvidia/driver/usr/lib")
    assert root.here(PurePosixPath("/usr/lib")) == root.process / "usr/lib"


def test_a_root_that_is_a_link_has_its_targets_name_on_the_host_too(tmp_path: Path) -> None:
    (tmp_path / "580").mkdir()
    (tmp_path / "current").symlink_to("580")

    assert HostDirectory.same(tmp_path / "current").real() == HostDirectory.same(tmp_path / "580")


def test_a_root_under_two_names_keeps_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "580").mkdir()
    (tmp_path / "current").symlink_to("580")

    real = HostDirectory(PurePosixPath("/run/nvidia/driver"), tmp_path / "current").real()

    assert real == HostDirectory(PurePosixPath("/run/nvidia/driver"), tmp_path / "580")


_NAMES = ["a", "b", "l0", "l1", "l2"]
_PATHS = st.lists(st.sampled_from([*_NAMES, ".."]), min_size=1, max_size=5).map("/".join)
_TARGETS = st.tuples(st.sampled_from(["", "/"]), _PATHS).map("".join)
_PLACES = st.sampled_from([".", "a", "a/b"])


def kernel_resolves(root: Path, path: str) -> str:
    """Ask openat2(2) with RESOLVE_IN_ROOT for the same."""
    o_path, resolve_in_root, openat2 = 0o10000000, 0x10, 437
    how = struct.pack("QQQ", o_path, 0, resolve_in_root)
    libc = ctypes.CDLL(None, use_errno=True)
    directory = os.open(root, os.O_RDONLY)
    try:
        found = libc.syscall(openat2, directory, path.encode(), how, len(how))
        if found < 0:
            raise OSError(ctypes.get_errno(), path)
        try:
            return os.path.relpath(Path(f"/proc/self/fd/{found}").readlink(), root)
        finally:
            os.close(found)
    finally:
        os.close(directory)


def outcome(resolution: Callable[[], str]) -> str:
    try:
        return resolution()
    except OSError as error:
        return errno.errorcode[error.errno]


@settings(deadline=None, max_examples=200)
@given(links=st.dictionaries(st.tuples(_PLACES, st.sampled_from(["l0", "l1", "l2"])), _TARGETS), path=_PATHS)
def test_links_lead_to_where_the_kernel_leads_a_process_with_that_root(
    tmp_path_factory: pytest.TempPathFactory, links: dict[tuple[str, str], str], path: str
) -> None:
    base = tmp_path_factory.mktemp("tree").resolve()
    (base / "a" / "b").mkdir(parents=True)
    for (place, name), target in links.items():
        (base / place / name).symlink_to(target)

    assert outcome(lambda: resolve(HostDirectory.same(base), path)) == outcome(lambda: kernel_resolves(base, path))
