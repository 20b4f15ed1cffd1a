"""The lab's part of the cgroup tree, on directories that look like cgroup v1 and v2."""

from pathlib import Path

import pytest
from lab.cgroups import Cgroups
from lab.errors import LabError


def a_v1_tree(root: Path) -> Path:
    """Make hierarchies `cpuset`, `memory` and `pids`; return a mountinfo file that lists them."""
    lines = []
    for number, name in enumerate(("cpuset", "memory", "pids"), start=20):
        (root / name).mkdir(parents=True)
        lines.append(f"{number} 1 0:{number} / {root / name} rw - cgroup cgroup rw,{name}")
    (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (root / "cpuset" / "cpuset.mems").write_text("0\n")
    lines.append("30 1 0:30 / /somewhere/else rw - tmpfs tmpfs rw")
    mountinfo = root.parent / "mountinfo"
    mountinfo.write_text("\n".join(lines) + "\n")
    return mountinfo


def a_v2_tree(root: Path) -> None:
    """Make a unified hierarchy that hands nothing down yet."""
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    (root / "cgroup.subtree_control").write_text("\n")
    (root / "cgroup.procs").write_text("")


def test_every_mounted_v1_hierarchy_is_found(tmp_path: Path) -> None:
    mountinfo = a_v1_tree(tmp_path / "cgroup")

    found = Cgroups.detect(tmp_path / "cgroup", mountinfo)

    assert not found.unified
    assert [mount.name for mount in found.mounts] == ["cpuset", "memory", "pids"]


def test_a_unified_hierarchy_is_recognised_by_its_controllers_file(tmp_path: Path) -> None:
    a_v2_tree(tmp_path / "cgroup")

    found = Cgroups.detect(tmp_path / "cgroup", Path("/dev/null"))

    assert found == Cgroups((tmp_path / "cgroup",), unified=True)


def test_a_machine_without_cgroups_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()

    with pytest.raises(LabError, match="no cgroup hierarchy is mounted"):
        Cgroups.detect(tmp_path / "cgroup", Path("/dev/null"))


def test_a_v1_group_is_made_in_every_hierarchy(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(tmp_path / "cgroup", a_v1_tree(tmp_path / "cgroup"))

    cgroups.make("lab/node-1")

    assert all((tmp_path / "cgroup" / name / "lab" / "node-1").is_dir() for name in ("cpuset", "memory", "pids"))


def test_a_v2_group_hands_all_controllers_down_to_the_level_below_the_lab(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    a_v2_tree(root)
    (root / "lab").mkdir()
    (root / "lab" / "cgroup.controllers").write_text("cpu memory pids\n")
    (root / "lab" / "cgroup.subtree_control").write_text("\n")

    Cgroups.detect(root).make("lab/node-1")

    assert (root / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (root / "lab" / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_processes_of_all_levels_and_hierarchies_are_found(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(tmp_path / "cgroup", a_v1_tree(tmp_path / "cgroup"))
    cgroups.make("lab/node-1")
    (tmp_path / "cgroup" / "pids" / "lab" / "cgroup.procs").write_text("11\n")
    (tmp_path / "cgroup" / "memory" / "lab" / "node-1" / "cgroup.procs").write_text("11\n12\n")

    assert cgroups.processes("lab") == {11, 12}


def test_removing_a_group_takes_everything_below_it_and_nothing_beside_it(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(tmp_path / "cgroup", a_v1_tree(tmp_path / "cgroup"))
    for name in ("memory", "pids"):
        (tmp_path / "cgroup" / name / "lab" / "node-1" / "pod").mkdir(parents=True)
        (tmp_path / "cgroup" / name / "other").mkdir()

    cgroups.remove("lab")

    assert not cgroups.exists("lab")
    assert cgroups.exists("other")
