"""Small driver roots and directories of device nodes, as the distributions and the GPU Operator lay them out."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from dra_gpu.api import resource_v1
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu, View

VERSION = "580.65.06"
UBUNTU = "usr/lib/x86_64-linux-gnu"

#: library -> the number in the name by which programs load it
SONAMES = {
    "libcuda": "1",
    "libnvidia-ml": "1",
    "libnvidia-ptxjitcompiler": "1",
    "libnvidia-nvvm": "4",
    "libcudadebugger": "1",
    "libEGL_nvidia": "0",
}
#: loaded by their full names
WITHOUT_SONAME = ("libnvidia-gpucomp", "libnvidia-glcore")

#: Character devices that every machine has and anybody may look at: stand-ins with numbers of their own.
STAND_INS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


def install(
    root: Path,
    *,
    version: str = VERSION,
    libraries: str = UBUNTU,
    programs: str = "usr/bin",
    firmware: str = "lib/firmware",
    names: Iterable[str] = (*SONAMES, *WITHOUT_SONAME),
) -> Path:
    """Lay a driver of `version` into `root`."""
    directory = root / libraries
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / f"{name}.so.{version}").write_text(f"{name} {version}")
        if name in SONAMES:
            (directory / f"{name}.so.{SONAMES[name]}").symlink_to(f"{name}.so.{version}")
    (root / programs).mkdir(parents=True, exist_ok=True)
    for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
        (root / programs / name).write_text("#!/bin/sh\n")
        (root / programs / name).chmod(0o755)
    images = root / firmware / "nvidia" / version
    images.mkdir(parents=True, exist_ok=True)
    (images / "gsp_ga10x.bin").write_text("")
    return root


def uninstall(root: Path) -> None:
    """Empty a root, keeping the directory itself."""
    for entry in root.iterdir():
        shutil.rmtree(entry)


def settle(root: Path) -> None:
    """Make everything look as if it had last changed long ago."""
    for directory, _, _ in os.walk(root):
        os.utime(directory, (1_000_000_000, 1_000_000_000))


def on_host(root: Path, host: str) -> HostDirectory:
    """Show `root` as this process' name of the host's directory `host`."""
    return HostDirectory(PurePosixPath(host), root)


def make_nodes(dev: Path, *names: str) -> Path:
    """Make device nodes, each with numbers of its own, in a directory of device nodes."""
    dev.mkdir(exist_ok=True)
    taken = sum(1 for _ in dev.iterdir())
    for position, name in enumerate(names):
        (dev / name).symlink_to(STAND_INS[(taken + position) % len(STAND_INS)])
    return dev


def published(index: int, view: View = View.GPU, *, minor: int | None = None) -> PublishedDevice:
    """Return a published view of GPU number `index`."""
    gpu = Gpu(
        uuid=f"GPU-0000000{index}-0000-0000-0000-000000000000",
        index=index,
        minor=index if minor is None else minor,
        pci_address=f"0000:{index + 1:02x}:00.0",
    )
    suffix = "" if view is View.GPU else f"-{view.value}"
    name = f"gpu-{gpu.minor}{suffix}"
    return PublishedDevice(name=name, view=view, gpu=gpu, wire=resource_v1.Device(name=name))
