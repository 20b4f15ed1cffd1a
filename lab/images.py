"""Makes container images as OCI archives that `ctr images import` takes; no registry is involved.

`PAUSE` holds a pod's namespaces. `BUSYBOX` is a static busybox with its applets linked into /bin. The driver's own
image comes from `driver_image`. Source of the layout: OCI image specification 1.1 (image-layout.md, manifest.md,
config.md); containerd names an imported image by `io.containerd.image.name`.
"""

import hashlib
import io
import json
import platform
import stat
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import packages

PAUSE = "dra-gpu.dev/lab/pause:1"
BUSYBOX = "dra-gpu.dev/lab/busybox:1"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIRECTORIES = ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/bin", "usr/lib", "var")


@dataclass(frozen=True)
class Image:
    """What is in an image.

    Attributes:
        name: with its tag.
        files: by path, their content; all are executable.
        links: symbolic links by path.
        command: what it runs, unless a pod says otherwise.
        below: layers under these files, as tar files.
        entrypoint: what a pod's arguments are appended to.
        user: who runs it, as `uid:gid`; "" is root.
    """

    name: str
    files: dict[str, bytes]
    links: dict[str, str]
    command: tuple[str, ...]
    below: tuple[Path, ...] = ()
    entrypoint: tuple[str, ...] = ()
    user: str = ""


def pause_image(work: Path) -> Image:
    """Compile the sandbox program statically in `work` and return its image."""
    program = work / "pause"
    source = Path(__file__).parent / "image" / "pause.c"
    subprocess.run([packages.require("gcc"), "-Os", "-static", "-s", "-o", program, source], check=True)
    return Image(PAUSE, {"pause": program.read_bytes()}, {}, ("/pause",))


def busybox_image() -> Image:
    """Return the image of Debian's static busybox with all its applets."""
    busybox = packages.require("busybox")
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    links = {f"bin/{applet}": "busybox" for applet in listed if applet != "busybox"}
    files = {
        "bin/busybox": busybox.read_bytes(),
        "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n",
        "etc/group": b"root:x:0:\n",
    }
    return Image(BUSYBOX, files, links, ("/bin/sh",))


def write_archive(images: Sequence[Image], target: Path) -> None:
    """Write an OCI archive with `images` to `target`; equal images give equal bytes."""
    blobs: dict[str, bytes | Path] = {}

    def blob(content: bytes | Path, media_type: str) -> dict[str, object]:
        digest, size = _digest(content)
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}

    manifests = []
    for image in images:
        contents: list[bytes | Path] = [*image.below, _layer(image)]
        layers = [blob(layer, "application/vnd.oci.image.layer.v1.tar") for layer in contents]
        machine = platform.machine()
        execution: dict[str, object] = {"Cmd": list(image.command), "Env": ["PATH=/usr/bin:/bin"]}
        if image.entrypoint:
            execution["Entrypoint"] = list(image.entrypoint)
        if image.user:
            execution["User"] = image.user
        config = {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": execution,
            # Layers are not compressed: the digest of a blob is that of its content.
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(_json(config), "application/vnd.oci.image.config.v1+json"),
            "layers": layers,
        }
        reference = blob(_json(manifest), "application/vnd.oci.image.manifest.v1+json")
        manifests.append(reference | {"annotations": {"io.containerd.image.name": image.name}})

    with tarfile.open(target, "w") as archive:
        add_file(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), 0o644)
        add_file(archive, "index.json", _json({"schemaVersion": 2, "manifests": manifests}), 0o644)
        for digest, content in sorted(blobs.items()):
            add_file(archive, f"blobs/sha256/{digest}", content, 0o644)


def layer_of(tree: Path, target: Path) -> None:
    """Write the files, links and directories below `tree` as a layer; equal trees give equal bytes."""
    with tarfile.open(target, "w") as archive:
        for path in sorted(tree.rglob("*")):
            name = str(path.relative_to(tree))
            if path.is_symlink():
                add_link(archive, name, str(path.readlink()))
            elif path.is_dir():
                add_directory(archive, name, 0o755)
            else:
                add_file(archive, name, path, 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def _digest(content: bytes | Path) -> tuple[str, int]:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest(), len(content)
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), content.stat().st_size


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in _DIRECTORIES:
            add_directory(archive, directory, 0o1777 if directory == "tmp" else 0o755)
        for path, content in sorted(image.files.items()):
            add_file(archive, path, content, 0o755)
        for path, destination in sorted(image.links.items()):
            add_link(archive, path, destination)
    return buffer.getvalue()


def add_directory(archive: tarfile.TarFile, path: str, mode: int) -> None:
    """Add a directory of root's."""
    entry = tarfile.TarInfo(path)
    entry.type = tarfile.DIRTYPE
    entry.mode = mode
    archive.addfile(entry)


def add_link(archive: tarfile.TarFile, path: str, destination: str) -> None:
    """Add a symbolic link."""
    entry = tarfile.TarInfo(path)
    entry.type = tarfile.SYMTYPE
    entry.linkname = destination
    archive.addfile(entry)


def add_file(archive: tarfile.TarFile, path: str, content: bytes | Path, mode: int) -> None:
    """Add a file of root's without a time, with content from memory or from a file."""
    entry = tarfile.TarInfo(path)
    entry.mode = mode
    if isinstance(content, bytes):
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
        return
    with content.open("rb") as file:
        entry.size = content.stat().st_size
        archive.addfile(entry, file)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
