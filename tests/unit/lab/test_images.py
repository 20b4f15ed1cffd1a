"""The OCI archives that containerd imports."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from lab.images import Image, write_archive

IMAGE = Image("example.com/one:1", {"bin/tool": b"\x7fELF"}, {"bin/sh": "tool"}, ("/bin/tool",))


def member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as file:
        extracted = file.extractfile(name)
        assert extracted is not None
        return extracted.read()


def blob(archive: Path, digest: str) -> Any:
    return json.loads(member(archive, f"blobs/sha256/{digest.removeprefix('sha256:')}"))


def test_the_index_names_each_image_for_containerd(tmp_path: Path) -> None:
    write_archive([IMAGE], tmp_path / "images.tar")

    index = json.loads(member(tmp_path / "images.tar", "index.json"))
    assert index["manifests"][0]["annotations"] == {"io.containerd.image.name": "example.com/one:1"}


def test_every_digest_and_size_is_that_of_its_content(tmp_path: Path) -> None:
    write_archive([IMAGE], tmp_path / "images.tar")

    with tarfile.open(tmp_path / "images.tar") as file:
        blobs = {entry.name.rpartition("/")[2]: entry for entry in file if entry.name.startswith("blobs/")}
        for digest, entry in blobs.items():
            extracted = file.extractfile(entry)
            assert extracted is not None
            assert hashlib.sha256(extracted.read()).hexdigest() == digest
    manifest = blob(
        tmp_path / "images.tar", json.loads(member(tmp_path / "images.tar", "index.json"))["manifests"][0]["digest"]
    )
    layer = manifest["layers"][0]
    assert blobs[layer["digest"].removeprefix("sha256:")].size == layer["size"]


def test_the_layer_has_programs_links_and_the_directories_a_runtime_mounts_on(tmp_path: Path) -> None:
    write_archive([IMAGE], tmp_path / "images.tar")
    index = json.loads(member(tmp_path / "images.tar", "index.json"))
    manifest = blob(tmp_path / "images.tar", index["manifests"][0]["digest"])
    digest = manifest["layers"][0]["digest"].removeprefix("sha256:")
    (tmp_path / "layer.tar").write_bytes(member(tmp_path / "images.tar", f"blobs/sha256/{digest}"))

    with tarfile.open(tmp_path / "layer.tar") as layer:
        names = layer.getnames()
        assert layer.getmember("bin/tool").mode == 0o755
        assert layer.getmember("bin/sh").linkname == "tool"
    assert {"dev", "proc", "sys", "tmp", "etc"} <= set(names)


def test_equal_images_give_equal_bytes(tmp_path: Path) -> None:
    write_archive([IMAGE], tmp_path / "a.tar")
    write_archive([IMAGE], tmp_path / "b.tar")

    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
