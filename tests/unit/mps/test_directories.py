"""The directories of a shared GPU and the length of their paths."""

import subprocess
from pathlib import Path

import pytest

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps import settings
from dra_gpu.mps.directories import MAX_SOCKET_BYTES, GpuDirectories, directory_name
from dra_gpu.mps.service import MpsError

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
NAME = "s_" + "a" * 32


def test_a_directory_is_named_after_the_first_digits_of_the_uuid():
    assert directory_name(UUID, frozenset()) == "01234567"


def test_two_gpus_that_begin_the_same_have_two_directories():
    assert directory_name(UUID, frozenset({"01234567"})) == "0123456789abcdef0123456789abcdef"


def test_a_share_of_protocol_3_has_a_directory_of_its_own():
    directories = GpuDirectories(Path("/run/dra-gpu/mps/01234567"))

    path = directories.of_share(MpsProtocol.NAMESPACE, NAME)

    assert path == Path(f"/run/dra-gpu/mps/01234567/pipe/gpu/{NAME}")
    assert directories.of_share(MpsProtocol.CLASSIC, NAME) == directories.pipe


def test_a_socket_path_may_have_107_bytes_and_no_more():
    tail = f"/pipe/gpu/{NAME}/control"
    fits = GpuDirectories(Path("/" + "x" * (MAX_SOCKET_BYTES - len(tail) - 1)))
    too_long = GpuDirectories(Path(f"{fits.root}x"))

    assert len(str(fits.of_share(MpsProtocol.NAMESPACE, NAME) / "control")) == MAX_SOCKET_BYTES
    with pytest.raises(MpsError, match=r"has 108 bytes.*shorter --directory"):
        too_long.of_share(MpsProtocol.NAMESPACE, NAME)


def test_a_directory_too_deep_is_refused_at_the_start(capsys):
    with pytest.raises(SystemExit):
        settings.parse(["--directory", "/" + "x" * 60], {})

    assert "start the MPS service with a shorter --directory" in capsys.readouterr().err


def test_a_relative_directory_is_refused_at_the_start(capsys):
    with pytest.raises(SystemExit):
        settings.parse(["--directory", "mps"], {})

    assert "must be absolute" in capsys.readouterr().err


def test_the_variables_of_the_chart_are_heard_and_flags_win():
    environment = {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "MPS_DIRECTORY": "/run/a", "DRIVER_ROOT_CTR_PATH": "/d"}

    chosen = settings.parse(["--directory", "/run/b"], environment)

    assert (chosen.driver_root, chosen.directory, chosen.socket) == (
        Path("/d"),
        Path("/run/b"),
        Path("/run/b/mps.sock"),
    )


def test_removing_does_not_follow_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    directories = GpuDirectories(tmp_path / "01234567")
    directories.make(own_memory=False)
    (directories.shm / "link").symlink_to(outside)

    directories.remove()

    assert (outside / "kept").exists()
    assert not directories.root.exists()
    directories.remove()


def test_a_mount_inside_is_taken_away_with_nothing_of_it_removed(tmp_path):
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    directories = GpuDirectories(tmp_path / "01234567")
    directories.make(own_memory=False)
    for place in (directories.shm / "mounted", directories.shm / "deeper/mounted"):
        place.mkdir(parents=True)
        done = subprocess.run(["mount", "--bind", outside, place], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"no right to mount: {done.stderr.decode().strip()}")

    directories.remove()

    assert (outside / "kept").exists()
    assert not directories.root.exists()
