"""What an operator adds to every container: GPUDirect Storage, GDRCopy, InfiniBand."""

import json
from pathlib import Path, PurePosixPath

import pytest

from dra_gpu.cdi.extra_edits import ExtraEditsError, MissingExtraError, load_extra_edits
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import ContainerEdits, Mount


def written(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "extra.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def node_edits(*nodes: dict[str, object]) -> dict[str, object]:
    return {"containerEdits": {"deviceNodes": list(nodes)}}


@pytest.fixture
def dev(tmp_path: Path) -> HostDirectory:
    directory = tmp_path / "dev"
    (directory / "infiniband" / "by-path").mkdir(parents=True)
    for name in ("nvidia-fs1", "nvidia-fs0", "infiniband/uverbs0"):
        (directory / name).symlink_to("/dev/null")
    (directory / "nvidia-fs.log").write_text("")
    return HostDirectory(PurePosixPath("/dev"), directory)


def paths(edits: ContainerEdits) -> list[str]:
    return [node.path for node in edits.device_nodes]


def test_a_pattern_gives_the_nodes_that_exist_in_order(tmp_path: Path, dev: HostDirectory) -> None:
    extra = load_extra_edits(written(tmp_path, node_edits({"path": "/dev/nvidia-fs*"}, {"path": "/dev/infiniband/*"})))

    assert paths(extra.on_node(dev, None)) == ["/dev/nvidia-fs0", "/dev/nvidia-fs1", "/dev/infiniband/uverbs0"]


def test_a_node_that_comes_later_is_seen(tmp_path: Path, dev: HostDirectory) -> None:
    extra = load_extra_edits(written(tmp_path, node_edits({"path": "/dev/gdrdrv"})))
    assert paths(extra.on_node(dev, None)) == []

    (dev.process / "gdrdrv").symlink_to("/dev/null")

    assert paths(extra.on_node(dev, None)) == ["/dev/gdrdrv"]


def test_a_required_node_that_is_missing_is_refused_by_name(tmp_path: Path, dev: HostDirectory) -> None:
    extra = load_extra_edits(
        written(tmp_path, node_edits({"path": "/dev/gdrdrv", "required": True}, {"path": "/dev/x*", "required": True}))
    )

    with pytest.raises(MissingExtraError, match=r"/dev/gdrdrv, /dev/x\* required"):
        extra.on_node(dev, None)


def test_mounts_that_are_not_there_are_left_out_unless_required(tmp_path: Path, dev: HostDirectory) -> None:
    (tmp_path / "host" / "etc").mkdir(parents=True)
    (tmp_path / "host" / "etc" / "cufile.json").write_text("{}")
    host = HostDirectory(PurePosixPath("/"), tmp_path / "host")
    mounts = [
        {"hostPath": "/etc/cufile.json", "containerPath": "/etc/cufile.json"},
        {"hostPath": "/etc/none", "containerPath": "/etc/none", "options": ["rw"]},
    ]
    extra = load_extra_edits(written(tmp_path, {"containerEdits": {"mounts": mounts}}))

    assert extra.on_node(dev, host).mounts == (
        Mount("/etc/cufile.json", "/etc/cufile.json", ("ro", "nosuid", "nodev", "rbind", "rprivate")),
    )


def test_a_list_of_entries_is_joined_in_order(tmp_path: Path, dev: HostDirectory) -> None:
    entries = [{"containerEdits": {"env": ["A=1"]}}, {"containerEdits": {"env": ["B=2"]}}]

    assert load_extra_edits(written(tmp_path, entries)).on_node(dev, None).env == ("A=1", "B=2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "extra.json: Input data was truncated"),
        ({"containerEdits": {"devicenodes": []}}, "unknown field `devicenodes` - at `$.containerEdits`"),
        ([{"containerEdits": {"env": [1]}}], "Expected `str`, got `int` - at `$[0].containerEdits.env[0]`"),
        ({}, "missing required field `containerEdits`"),
        (node_edits({"path": "/etc/passwd"}), "[0].containerEdits.deviceNodes[0].path: '/etc/passwd' is not"),
        (node_edits({"path": "/dev/../etc/x"}), "is not a path below /dev"),
        (node_edits({"path": "/dev/x", "permissions": "rx"}), "deviceNodes[0].permissions: 'rx'"),
        (
            {"containerEdits": {"mounts": [{"hostPath": "etc", "containerPath": "/etc"}]}},
            "mounts[0].hostPath: 'etc' is not an absolute path",
        ),
        ({"containerEdits": {"env": ["A"]}}, "env[0]: 'A' is not NAME=value"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_field(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ExtraEditsError) as refusal:
        load_extra_edits(written(tmp_path, content))

    assert "extra.json" in str(refusal.value)
    assert message in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExtraEditsError, match=r"none\.json: No such file or directory; check the path"):
        load_extra_edits(tmp_path / "none.json")
