"""NVIDIA's device nodes: which ones a container needs, and what to do when the node does not have them yet.

The kernel driver does not make them all by itself: on a fresh node the first user of the GPUs, `nvidia-modprobe` or
nvidia-persistenced does.
Source: NVIDIA driver README, chapters "nvidia-modprobe" and "nvidia-persistenced"; open-gpu-kernel-modules,
nv-frontend (major 195: minor of a GPU, 254 modeset, 255 control).
"""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from dra_gpu.cdi.device_nodes import NoDeviceNodeError, read_device_node
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import DeviceNode
from dra_gpu.vendors.base import NotReadyError

#: CUDA cannot start without these.
CONTROL = (PurePosixPath("nvidiactl"), PurePosixPath("nvidia-uvm"))
#: Profilers use the first, display and some capture libraries the second.
OPTIONAL_CONTROL = (PurePosixPath("nvidia-uvm-tools"), PurePosixPath("nvidia-modeset"))

_DRI_LINKS = ("card", "render")


def gpu_node(minor: int) -> PurePosixPath:
    """Return the name of a GPU's node, relative to the directory of device nodes."""
    return PurePosixPath(f"nvidia{minor}")


def required_nodes(dev: HostDirectory, names: Iterable[PurePosixPath]) -> tuple[DeviceNode, ...]:
    """Describe nodes that a container must get.

    Raises:
        NotReadyError: one is missing, or is not a character device; names each of them and what makes them.
    """
    nodes: list[DeviceNode] = []
    missing: list[str] = []
    for name in names:
        try:
            node = read_device_node(dev, name)
        except NoDeviceNodeError as error:
            missing.append(str(error))
            continue
        if node.type == "c":
            nodes.append(node)
        else:
            missing.append(f"{dev.on_host(name)} is not a character device")
    if missing:
        raise NotReadyError(
            f"NVIDIA device nodes are not ready: {'; '.join(missing)}. They are made by `nvidia-modprobe -c 0 -u -m` "
            "(`-c N` for GPU N) or by starting nvidia-persistenced on the node; see also whether the kernel modules "
            "nvidia and nvidia_uvm are loaded"
        )
    return tuple(nodes)


def optional_nodes(dev: HostDirectory, names: Iterable[PurePosixPath]) -> tuple[DeviceNode, ...]:
    """Describe those of the nodes that exist."""
    return tuple(_existing(dev, names))


def dri_nodes(dev: HostDirectory, pci_address: str) -> tuple[DeviceNode, ...]:
    """Describe the DRM nodes of a GPU that exist, found by its PCI address in sysfs' form.

    Source: systemd, rules.d/60-drm.rules: udev links `dri/by-path/pci-<address>-card` to `../card<n>`.
    """
    links = (PurePosixPath("dri/by-path") / f"pci-{pci_address}-{kind}" for kind in _DRI_LINKS)
    return tuple(_existing(dev, _targets(dev, links)))


def _existing(dev: HostDirectory, names: Iterable[PurePosixPath]) -> Iterator[DeviceNode]:
    for name in names:
        try:
            yield read_device_node(dev, name)
        except NoDeviceNodeError:
            continue


def _targets(dev: HostDirectory, links: Iterable[PurePosixPath]) -> Iterator[PurePosixPath]:
    for link in links:
        try:
            yield PurePosixPath("dri") / dev.here(link).readlink().name
        except OSError:
            continue
