"""What the service was asked for, on disk."""

import errno
import os
from pathlib import Path

import pytest

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.service import Limits
from dra_gpu.mps.state import GpuState, Ledger, ShareState, StateError, StateFile

GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"
SHARED = GpuState(
    directory="01234567",
    protocol=MpsProtocol.NAMESPACE,
    former_mode=3,
    shares={"s_a": ShareState(Limits(compute_percent=20)), "s_b": ShareState(ending=True)},
    started=True,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.json"


def no_space(_path: Path, _content: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_was_put_is_there_for_the_next_process(path):
    Ledger(StateFile(path, "boot")).put(GPU, SHARED)

    assert Ledger(StateFile(path, "boot")).gpus == {GPU: SHARED}


def test_what_was_taken_out_is_gone(path):
    ledger = Ledger(StateFile(path, "boot"))
    ledger.put(GPU, SHARED)

    ledger.put(GPU, None)

    assert Ledger(StateFile(path, "boot")).gpus == {}


def test_a_share_that_is_being_given_up_is_not_live():
    assert list(SHARED.live) == ["s_a"]
    assert list(SHARED.with_share("s_a", None).shares) == ["s_b"]


def test_the_state_of_another_boot_counts_for_nothing(path):
    Ledger(StateFile(path, "boot")).put(GPU, SHARED)

    assert Ledger(StateFile(path, "next boot")).gpus == {}


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 100, b"[]", b'{"bootId": 7}', b"\xff"])
def test_a_damaged_file_is_kept_aside_and_said(path, content):
    path.write_bytes(content)
    file = StateFile(path, "boot")

    assert Ledger(file).gpus == {}
    assert "was damaged" in file.damaged
    assert path.with_suffix(".damaged").read_bytes() == content


def test_a_file_that_cannot_be_read_is_left_alone(path):
    path.mkdir()

    with pytest.raises(StateError, match="cannot be read"):
        Ledger(StateFile(path, "boot"))


def test_what_cannot_be_written_has_not_changed(path, monkeypatch):
    ledger = Ledger(StateFile(path, "boot"))
    ledger.put(GPU, SHARED)

    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(StateError, match="free space"):
        ledger.put(GPU, None)

    assert ledger.gpus == {GPU: SHARED}
    assert Ledger(StateFile(path, "boot")).gpus == {GPU: SHARED}


def test_a_field_of_a_later_release_is_passed_over(path):
    Ledger(StateFile(path, "boot")).put(GPU, SHARED)
    path.write_bytes(path.read_bytes().replace(b'"formerMode"', b'"later":1,"formerMode"'))

    assert Ledger(StateFile(path, "boot")).gpus == {GPU: SHARED}


def test_what_is_given_up_counts_at_once_and_is_on_disk_when_there_is_room_again(path, monkeypatch):
    ledger = Ledger(StateFile(path, "boot"))
    ledger.put(GPU, SHARED)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", no_space)

        ledger.let_go(GPU, None)

    assert ledger.gpus == {}
    assert Ledger(StateFile(path, "boot")).gpus == {GPU: SHARED}
    ledger.flush()
    assert Ledger(StateFile(path, "boot")).gpus == {}
