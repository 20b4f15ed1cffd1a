"""The two device nodes that let a container use a partition: its GPU instance's and its compute instance's.

The kernel driver gives every instance a number (minor) and tells it in `capabilities/gpu<G>/mig/gi<I>/[ci<C>/]access`
below /proc/driver/nvidia while the instance exists, and for all that could exist in `nvidia-caps/mig-minors`. The major
number is given out dynamically. NVIDIA's tools make the nodes when an instance is made, in the /dev that they see; a
runtime makes them in the container from their numbers alone. The nodes `nvidia-cap1` (mig/config) and `nvidia-cap2`
(mig/monitor) let their holder cut or watch every GPU; no container gets them.
Source: MIG User Guide r580, "Device Nodes and Capabilities"; NVIDIA driver README, "nvidia-caps".
"""

import re
from pathlib import Path, PurePosixPath

from dra_gpu.cdi.device_nodes import PERMISSIONS, NoDeviceNodeError, read_device_node
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import DeviceNode
from dra_gpu.vendors.base import NotReadyError

_NODES = PurePosixPath("nvidia-caps")
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_MAJOR = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE)


class Capabilities:
    """Finds the nodes of instances.

    Args:
        proc: where procfs is mounted.
        dev: the directory of device nodes.
    """

    def __init__(self, proc: Path, dev: HostDirectory) -> None:
        self._proc = proc
        self._dev = dev

    def nodes(self, gpu_minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, DeviceNode]:
        """Describe the two nodes of a partition.

        Raises:
            NotReadyError: the driver does not tell their numbers.
        """
        instance = f"gi{gpu_instance}"
        return (
            self._node(gpu_minor, f"{instance}/access"),
            self._node(gpu_minor, f"{instance}/ci{compute_instance}/access"),
        )

    def places(self, gpu_minor: int, gpu_instance: int) -> tuple[Path, ...]:
        """Return where the nodes of a GPU instance and of what it is cut into would be, as this process sees them."""
        directory = self._directory(gpu_minor) / f"gi{gpu_instance}"
        minors = [_minor(file) for file in (directory / "access", *sorted(directory.glob("ci*/access")))]
        return tuple(self._dev.here(_name(minor)) for minor in minors if minor is not None)

    def _node(self, gpu_minor: int, access: str) -> DeviceNode:
        minor = _minor(self._directory(gpu_minor) / access)
        if minor is None:
            minor = self._listed_minor(f"gpu{gpu_minor}/{access}")
        if minor is None:
            raise NotReadyError(
                f"{self._directory(gpu_minor) / access} cannot be read, nor does "
                f"{self._proc}/driver/nvidia-caps/mig-minors list it: is the instance gone, or /proc/driver hidden?"
            )
        try:
            return read_device_node(self._dev, _name(minor))
        except NoDeviceNodeError:
            return self._node_by_number(minor)

    def _node_by_number(self, minor: int) -> DeviceNode:
        found = _MAJOR.search(_read(self._proc / "devices"))
        if found is None:
            raise NotReadyError(
                f"{self._dev.on_host(_name(minor))} does not exist, and {self._proc}/devices does not list "
                "nvidia-caps: is the kernel module nvidia loaded?"
            )
        path = str(PurePosixPath("/dev") / _name(minor))
        return DeviceNode(path=path, type="c", major=int(found[1]), minor=minor, permissions=PERMISSIONS)

    def _listed_minor(self, name: str) -> int | None:
        listed = _read(self._proc / "driver/nvidia-caps/mig-minors").splitlines()
        words = next((line.split() for line in listed if line.startswith(f"{name} ")), [])
        return int(words[1]) if words[1:] and words[1].isdecimal() else None

    def _directory(self, gpu_minor: int) -> Path:
        return self._proc / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig"


def _name(minor: int) -> PurePosixPath:
    return _NODES / f"nvidia-cap{minor}"


def _minor(access: Path) -> int | None:
    found = _MINOR.search(_read(access))
    return int(found[1]) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
