"""Which GPUs the kernel driver has, and since when, as sysfs tells: a few system calls, none to the GPU.

NVML lists the GPUs that are there when it is opened for the first time, so that whoever keeps it open has to be told
when others come. A directory or link of sysfs has an inode number that is not used again in a boot: it differs when the
module was loaded anew, when a device was bound anew, and when it left the bus and came back.
Source: Linux, fs/kernfs/dir.c (`__kernfs_new_node` numbers nodes cyclically) and drivers/base/dd.c
(`driver_sysfs_add` makes the link from driver to device at each binding).
"""

import os
import re
from collections.abc import Hashable
from pathlib import Path

_DRIVER = "bus/pci/drivers/nvidia"
_MODULE = "module/nvidia"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NODE = re.compile(r"nvidia\d+")


class Presence:
    """The GPUs that the kernel driver has.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: the directory of device nodes.
        boot_id: of this boot; inode numbers of another one mean nothing.
    """

    def __init__(self, sysfs_root: Path, dev_root: Path, boot_id: str = "") -> None:
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        self._boot_id = boot_id

    def mark(self) -> Hashable:
        """Return a mark of all GPUs: equal as long as the driver has the same ones, and they the same device nodes."""
        driver, module = self._sysfs_root / _DRIVER, _inode(self._sysfs_root / _MODULE)
        bound = {name: _inode(driver / name) for name in _names(driver) if _ADDRESS.fullmatch(name)}
        nodes = {name: _inode(self._dev_root / name) for name in _names(self._dev_root) if _NODE.fullmatch(name)}
        return module, frozenset(bound.items()), frozenset(nodes.items())

    def bound(self, address: str) -> bool:
        """Tell whether the driver has the device at an address."""
        return _inode(self._sysfs_root / _DRIVER / address) is not None

    def reset_mark(self, address: str | None) -> str:
        """Return what differs when the driver was reloaded or a GPU bound anew; empty where sysfs does not tell.

        A reset of a GPU that stays bound leaves no trace here.
        """
        module = _inode(self._sysfs_root / _MODULE)
        binding = None if address is None else _inode(self._sysfs_root / _DRIVER / address)
        if module is None and binding is None:
            return ""
        return "/".join("" if part is None else str(part) for part in (self._boot_id or None, module, binding))


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names alone
    except OSError:
        return []
