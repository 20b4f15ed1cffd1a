"""The directory of specification files that the container runtime reads."""

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from dra_gpu.cdi.spec import ContainerEdits, Device, DeviceNode, Spec
from dra_gpu.cdi.store import SpecStore, SpecStoreError
from dra_gpu.cdi.validation import EmptyDeviceError

UID = "0a1b2c3d-0000-4000-8000-00000000000a"
VENDOR = "k8s.gpu.nvidia.com"


def spec(name: str = f"{UID}-gpu-0", env: str = "A=1") -> Spec:
    return Spec("0.0.0", f"{VENDOR}/claim", (Device(name, ContainerEdits(env=(env,))),))


def left_over(directory: Path, vendor: str = VENDOR) -> Path:
    """Leave what a writer that was killed in the middle leaves."""
    directory.mkdir(exist_ok=True)
    path = directory / f".{vendor}-claim_{UID}.0123456789abcdef.tmp"
    path.write_text('{"cdiVers')
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


@pytest.fixture
def store(directory: Path) -> SpecStore:
    return SpecStore(directory, VENDOR)


def test_a_written_claim_reads_back_with_the_lowest_sufficient_version(store: SpecStore) -> None:
    store.write(UID, spec())

    assert store.read(UID) == Spec("0.5.0", spec().kind, spec().devices)


def test_the_file_is_named_after_vendor_and_claim_and_only_root_reads_it(store: SpecStore, directory: Path) -> None:
    path = store.write(UID, spec())

    assert path == directory / f"{VENDOR}-claim_{UID}.json"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_device_number_of_zero_is_written(store: SpecStore) -> None:
    node = DeviceNode("/dev/nvidia0", type="c", major=195, minor=0, permissions="rw")

    path = store.write(UID, Spec("", f"{VENDOR}/claim", (Device("a", ContainerEdits(device_nodes=(node,))),)))

    assert json.loads(path.read_bytes())["devices"][0]["containerEdits"]["deviceNodes"][0]["minor"] == 0


@pytest.mark.case("C41")
def test_a_directory_and_a_link_to_it_are_one_place(tmp_path: Path) -> None:
    (tmp_path / "run" / "cdi").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("../run")

    first = SpecStore(tmp_path / "run" / "cdi", VENDOR).write(UID, spec())
    second = SpecStore(tmp_path / "var" / "run" / "cdi", VENDOR).write(UID, spec(env="A=2"))

    assert first == second
    assert len(list((tmp_path / "run" / "cdi").iterdir())) == 1


def test_writing_again_replaces_the_content(store: SpecStore) -> None:
    store.write(UID, spec())

    store.write(UID, spec(env="A=2"))

    read = store.read(UID)
    assert read is not None
    assert read.devices[0].container_edits.env == ("A=2",)


def test_the_same_content_is_not_written_again(store: SpecStore) -> None:
    before = store.write(UID, spec()).stat().st_ino

    assert store.write(UID, spec()).stat().st_ino == before


def test_a_file_that_somebody_damaged_is_written_anew(store: SpecStore) -> None:
    store.write(UID, spec()).write_text("{")

    store.write(UID, spec())

    assert store.read(UID) is not None


def test_a_claim_without_a_file_reads_as_none_and_removes_as_success(store: SpecStore) -> None:
    assert store.read(UID) is None
    store.remove(UID)


def test_a_removed_claim_has_no_file(store: SpecStore) -> None:
    store.write(UID, spec())

    store.remove(UID)

    assert store.read(UID) is None
    assert store.claim_uids() == frozenset()


def test_only_files_of_this_driver_are_listed(store: SpecStore, directory: Path) -> None:
    store.write(UID, spec())
    for foreign in ("nvidia.yaml", f"k8s.gpu.amd.com-claim_{UID}.json", f"{VENDOR}-claim_{UID}.json.bak"):
        (directory / foreign).write_text("{}")

    assert store.claim_uids() == {UID}


@pytest.mark.parametrize("uid", ["", "../evil", "a/b", "a.b", "a" * 65, "ü"])
def test_a_uid_that_is_no_file_name_is_refused(store: SpecStore, uid: str) -> None:
    with pytest.raises(ValueError, match="claim UID"):
        store.write(uid, spec())


def test_a_vendor_that_is_no_file_name_is_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="CDI vendor"):
        SpecStore(directory, "../x")


@pytest.mark.case("C38")
def test_a_specification_with_an_empty_device_leaves_no_file(store: SpecStore, directory: Path) -> None:
    with pytest.raises(EmptyDeviceError):
        store.write(UID, Spec("", f"{VENDOR}/claim", (Device("gpu-0", ContainerEdits()),)))

    assert not directory.exists()


def test_a_damaged_file_is_an_error_that_names_it(store: SpecStore) -> None:
    path = store.write(UID, spec())
    path.write_bytes(b'{"cdiVersion": "\xff')

    with pytest.raises(SpecStoreError, match=str(path)):
        store.read(UID)


def test_a_full_disk_is_named_with_its_remedy_and_leaves_nothing(
    store: SpecStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", full)

    with pytest.raises(SpecStoreError, match=r"cannot write .*No space left on device; free space there"):
        store.write(UID, spec())

    assert list(directory.iterdir()) == []


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")

    with pytest.raises(SpecStoreError, match="a part of the path is a file"):
        SpecStore(tmp_path / "cdi", VENDOR).write(UID, spec())


@pytest.mark.case("C47")
def test_what_a_killed_writer_left_is_cleaned_and_was_never_a_specification(store: SpecStore, directory: Path) -> None:
    path = left_over(directory)

    assert store.claim_uids() == frozenset()
    assert store.clean_temporaries() == 1
    assert not path.exists()


def test_the_temporary_file_of_a_living_writer_stays(store: SpecStore, directory: Path) -> None:
    path = left_over(directory)
    with path.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)

        assert store.clean_temporaries() == 0

    assert path.exists()


def test_temporary_files_of_other_drivers_stay(store: SpecStore, directory: Path) -> None:
    path = left_over(directory, vendor="k8s.gpu.amd.com")

    assert store.clean_temporaries() == 0
    assert path.exists()


def test_a_write_survives_a_cleaner_that_takes_its_temporary_file(
    store: SpecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    taken: list[Path] = []

    def cleaned_once(self: Path, target: Path) -> Path:
        if not taken:
            taken.append(self)
            self.unlink()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", cleaned_once)

    store.write(UID, spec())

    assert store.read(UID) is not None
    assert len(taken) == 1
