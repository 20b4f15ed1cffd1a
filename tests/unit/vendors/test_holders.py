"""Who holds a device node open, by a procfs of made-up processes."""

import os
from pathlib import Path

import pytest

from dra_gpu.vendors.nvidia.holders import described, holders


class Processes:
    """A procfs with processes that have things open."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, pid: int, *opened: str | Path, command: bytes = b"", name: bytes = b"") -> None:
        (self.root / str(pid) / "fd").mkdir(parents=True)
        for number, target in enumerate(opened):
            (self.root / str(pid) / "fd" / str(number)).symlink_to(target)
        (self.root / str(pid) / "cmdline").write_bytes(command)
        (self.root / str(pid) / "comm").write_bytes(name)


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    made = Processes(tmp_path / "proc")
    (made.root / "driver").mkdir(parents=True)
    return made


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device node needs root")
def test_whoever_has_the_device_open_is_found_by_its_number_under_whatever_path(processes, tmp_path):
    """A container has a node of its own for the same device."""
    elsewhere = tmp_path / "nvidia0"
    os.mknod(elsewhere, 0o020666, Path("/dev/null").stat().st_rdev)
    processes.add(10, "/dev/zero", elsewhere)
    processes.add(11, "/dev/zero", "socket:[4711]")

    assert holders(processes.root, [Path("/dev/null")]) == {10}


def test_a_file_that_stands_for_a_device_is_that_very_file(processes, tmp_path):
    node, other = tmp_path / "nvidia0", tmp_path / "nvidia1"
    node.touch()
    other.touch()
    processes.add(10, node)
    processes.add(11, other)

    assert holders(processes.root, [node]) == {10}


def test_this_very_process_is_never_the_holder(processes):
    processes.add(os.getpid(), "/dev/null")

    assert holders(processes.root, [Path("/dev/null")]) == frozenset()
    assert described(processes.root, [os.getpid()]) == ""


def test_what_cannot_be_read_or_does_not_exist_is_held_by_nobody(processes, tmp_path):
    processes.add(10)
    (processes.root / "12").mkdir()

    assert holders(processes.root, [tmp_path / "gone"]) == frozenset()
    assert holders(processes.root, []) == frozenset()
    assert holders(tmp_path / "no-procfs", [Path("/dev/null")]) == frozenset()


def test_a_process_is_named_by_its_command_or_else_its_name_or_its_number(processes):
    processes.add(10, command=b"dcgm-exporter\0-f\0/etc/dcgm.csv\0")
    processes.add(11, name=b"kworker/0:1\n")
    processes.add(12, command=b"\x1b[31mevil\0" + b"x" * 500)

    assert described(processes.root, [10]) == "pid 10 (dcgm-exporter -f /etc/dcgm.csv)"
    assert described(processes.root, [13, 11]) == "pid 11 (kworker/0:1), pid 13"
    assert described(processes.root, [12]) == f"pid 12 ({'[31mevil ' + 'x' * 71})"


def test_of_many_holders_five_are_named(processes):
    assert described(processes.root, range(100, 108)) == ("pid 100, pid 101, pid 102, pid 103, pid 104 and 3 more")
