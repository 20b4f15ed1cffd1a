"""Which files of an NVIDIA driver installation a container gets, and where installations keep them.

A driver's libraries carry its version as suffix (`libcuda.so.580.65.06`). All of one version belong together, and new
releases bring new ones (libnvidia-gpucomp with 535, libnvidia-sandboxutils with 560), so every library of the version
is taken, and only those for drawing on a screen are told apart.
Source: NVIDIA driver README, appendix "Installed Components", r535 to r580; directories: Debian, Ubuntu, Fedora,
SUSE and Arch packages, the GPU Operator's driver container, GKE's and Bottlerocket's prefixes, NixOS.
"""

import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

_MACHINES = ("x86_64", "aarch64")

_GRAPHICS = (
    "libEGL_nvidia",
    "libGLX_nvidia",
    "libGLESv1_CM_nvidia",
    "libGLESv2_nvidia",
    "libnvidia-egl",
    "libnvidia-gl",
    "libnvidia-gtk",
    "libnvidia-tls",
    "libnvidia-vulkan",
    "libnvidia-wayland",
    "libvdpau_nvidia",
)

#: Libraries that a driver brings under a version of their own.
_UNVERSIONED = re.compile(r"libnvidia-nvvm70\.so\.\d+")

_VERSION = re.compile(r"(?P<stem>libcuda|libnvidia-ml)\.so\.(?P<version>\d+\.\d+(?:\.\d+)?)")

CUDA = "libcuda"
NVML = "libnvidia-ml"

#: Names under which programs load libraries, whether the driver root has a link of that name or not. `libcuda.so`
#: belongs to the toolkit's stubs, but many programs open it.
LOADED_AS: Mapping[str, tuple[str, ...]] = {CUDA: ("libcuda.so", "libcuda.so.1"), NVML: ("libnvidia-ml.so.1",)}

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)

PROGRAM_DIRECTORIES = tuple(
    PurePosixPath(path) for path in ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "opt/bin")
)

FIRMWARE_DIRECTORIES = tuple(PurePosixPath(path) for path in ("lib/firmware", "usr/lib/firmware"))

#: Where the driver's daemons listen, relative to the driver root.
SOCKETS = tuple(PurePosixPath(path) for path in ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket"))


def _library_directories() -> tuple[PurePosixPath, ...]:
    """Return the candidates, those of this machine's architecture first, and plain `lib` (32 bit on Fedora) last."""
    native = platform.machine()
    machines = sorted(_MACHINES, key=lambda machine: machine != native)
    multiarch = [f"{machine}-linux-gnu" for machine in machines]
    paths = [
        f"usr/lib/{multiarch[0]}",
        f"usr/lib/{multiarch[0]}/nvidia/current",
        "usr/lib64",
        "lib64",
        f"lib/{multiarch[0]}",
        "usr/lib",
        "lib",
        "usr/local/nvidia/lib64",
        "run/opengl-driver/lib",
        f"usr/lib/{multiarch[1]}",
        f"lib/{multiarch[1]}",
    ]
    return tuple(PurePosixPath(path) for path in paths)


LIBRARY_DIRECTORIES = _library_directories()


def loader_directories() -> tuple[PurePosixPath, ...]:
    """Return the directories in which the dynamic loader of a container looks without being told.

    Debian's and Ubuntu's look in the first, Fedora's, SUSE's and their relatives' in the second.
    Source: ld.so(8), and the default `slibdir` of the distributions' glibc.
    """
    return PurePosixPath(f"/usr/lib/{platform.machine()}-linux-gnu"), PurePosixPath("/usr/lib64")


def versions(names: Iterable[str]) -> frozenset[str]:
    """Return the driver versions of which both libcuda and libnvidia-ml are among the file names."""
    found: dict[str, set[str]] = {CUDA: set(), NVML: set()}
    for name in names:
        if match := _VERSION.fullmatch(name):
            found[match["stem"]].add(match["version"])
    return frozenset(found[CUDA] & found[NVML])


def newest(candidates: Iterable[str]) -> str:
    """Return the highest of some versions, compared number by number."""
    return max(candidates, key=lambda version: [int(part) for part in version.split(".")])


def is_driver_library(name: str, version: str, *, graphics: bool) -> bool:
    """Tell whether a file name is a library of this version of the driver that a container gets."""
    if not name.startswith("lib"):
        return False
    if not (name.endswith(f".so.{version}") or _UNVERSIONED.fullmatch(name)):
        return False
    return graphics or not name.startswith(_GRAPHICS)


def stem(name: str) -> str:
    """Return a library's name without `.so` and what follows: `libcuda` of `libcuda.so.1`."""
    return name.partition(".so")[0]
