"""Device nodes of the host as they stand in a specification: numbers from the node that is there now."""

import os
import stat
from pathlib import PurePosixPath

from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import DeviceNode

_CONTAINER_DEV = PurePosixPath("/dev")

#: Read and write; a container has no business making device nodes itself (`m`).
PERMISSIONS = "rw"


class NoDeviceNodeError(Exception):
    """There is no device node at that place.

    Attributes:
        path: the place, as the host names it.
        reason: what is there instead.
    """

    def __init__(self, path: PurePosixPath, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


def read_device_node(dev: HostDirectory, name: PurePosixPath, permissions: str = PERMISSIONS) -> DeviceNode:
    """Describe the device node `name` of the directory `dev`; a container finds it as `/dev/<name>`.

    `host_path` is set when the host keeps its nodes elsewhere than `/dev`.

    Raises:
        NoDeviceNodeError: nothing is there, or something that is not a device node.
    """
    on_host = dev.on_host(name)
    try:
        found = dev.here(name).stat()
    except OSError as error:
        raise NoDeviceNodeError(on_host, f"cannot be found ({error.strerror})") from error
    if stat.S_ISCHR(found.st_mode):
        kind = "c"
    elif stat.S_ISBLK(found.st_mode):
        kind = "b"
    else:
        raise NoDeviceNodeError(on_host, "is not a device node")
    path = _CONTAINER_DEV / name
    return DeviceNode(
        path=str(path),
        host_path="" if on_host == path else str(on_host),
        type=kind,
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        permissions=permissions,
    )
