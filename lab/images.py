"""Makes the two container images of the lab as OCI archives that `ctr images import` takes; no registry is involved.

`PAUSE` holds a pod's namespaces. `BUSYBOX` is a static busybox with its applets linked into /bin. Source of the
layout: OCI image specification 1.1 (image-layout.md, manifest.md, config.md); containerd names an imported image by
`io.containerd.image.name`.
"""

import hashlib
import io
import json
import platform
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
    """What is in an image: files by path (content, all executable), symbolic links by path, the command it runs."""

    name: str
    files: dict[str, bytes]
    links: dict[str, str]
    command: tuple[str, ...]


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
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    manifests = []
    for image in images:
        layer = _layer(image)
        machine = platform.machine()
        config = {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Cmd": list(image.command), "Env": ["PATH=/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(_json(config), "application/vnd.oci.image.config.v1+json"),
            "layers": [blob(layer, "application/vnd.oci.image.layer.v1.tar")],
        }
        reference = blob(_json(manifest), "application/vnd.oci.image.manifest.v1+json")
        manifests.append(reference | {"annotations": {"io.containerd.image.name": image.name}})

    with tarfile.open(target, "w") as archive:
        _add_file(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), 0o644)
        _add_file(archive, "index.json", _json({"schemaVersion": 2, "manifests": manifests}), 0o644)
        for digest, content in sorted(blobs.items()):
            _add_file(archive, f"blobs/sha256/{digest}", content, 0o644)


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in _DIRECTORIES:
            entry = tarfile.TarInfo(directory)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if directory == "tmp" else 0o755
            archive.addfile(entry)
        for path, content in sorted(image.files.items()):
            _add_file(archive, path, content, 0o755)
        for path, destination in sorted(image.links.items()):
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.SYMTYPE
            entry.linkname = destination
            archive.addfile(entry)
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
