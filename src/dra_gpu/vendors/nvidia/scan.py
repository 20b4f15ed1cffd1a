"""One look at all NVIDIA GPUs of a node: every GPU in a thread of its own, so that none hides the others."""

import asyncio
from dataclasses import replace
from pathlib import Path

from dra_gpu.inventory.model import DriverVersions, Gpu, Scan, SickGpu
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.vendors.base import VendorError
from dra_gpu.vendors.cgroups import PodCgroups
from dra_gpu.vendors.nvidia import sharing, sysfs
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.watchdog import Watchdog

# NVML's first initialisation takes seconds per GPU without the persistence daemon.
_INITIALISE = 60.0
# A healthy GPU answers all queries in milliseconds; a resetting one takes seconds.
_READ = 15.0
_LIBRARY = "NVML"


class Scanner:
    """Scans, and remembers what it saw, so that a GPU that falls silent can still be named."""

    def __init__(self, nvml: Nvml, watchdog: Watchdog, sysfs_root: Path, pod_cgroups: PodCgroups) -> None:
        self._nvml = nvml
        self._pod_cgroups = pod_cgroups
        self._watchdog = watchdog
        self._sysfs_root = sysfs_root
        self._seen: dict[int, Gpu] = {}
        self._opened = False
        self._versions = DriverVersions()

    def sharing(self, gpu: Gpu) -> SharingAbility:
        """Return what a GPU can do for shares, under the driver of the last look."""
        return sharing.ability(gpu, self._versions, cgroup_v2=self._pod_cgroups.available)

    async def scan(self) -> Scan:
        """Return every GPU that answers, and what is wrong with the others.

        Raises:
            VendorError: NVML itself cannot be used.
        """
        if not self._opened:
            await self._watchdog.call(_LIBRARY, "nvmlInit_v2", self._nvml.open, _INITIALISE)
            self._opened = True
        try:
            versions = await self._watchdog.call(_LIBRARY, "versions", self._nvml.versions, _READ)
            count = await self._watchdog.call(_LIBRARY, "nvmlDeviceGetCount_v2", self._nvml.count, _READ)
            found = await asyncio.gather(*(self._read(index) for index in range(count)))
        finally:
            # A call that hangs may still be inside the library: shutting it down then would hang as well.
            if not self._watchdog.stuck:
                self._opened = False
                await self._watchdog.call(_LIBRARY, "nvmlShutdown", self._nvml.close, _READ)
        self._versions = versions
        gpus = tuple(
            replace(gpu, isolation=sharing.isolation(gpu, self.sharing(gpu)))
            for gpu in _without_twins([gpu for gpu in found if isinstance(gpu, Gpu)])
        )
        self._seen.update({gpu.index: gpu for gpu in gpus})
        return Scan(versions, gpus, tuple(gpu for gpu in found if isinstance(gpu, SickGpu)))

    async def _read(self, index: int) -> Gpu | SickGpu:
        try:
            gpu = await self._watchdog.call(f"GPU {index}", "reading its facts", lambda: self._nvml.read(index), _READ)
        except VendorError as error:
            before = self._seen.get(index)
            where = (before.pci_address if before else None) or f"index {index}"
            return SickGpu(where=where, reason=str(error), uuid=before.uuid if before else None)
        if gpu.pci_address is None:
            return gpu
        return replace(
            gpu,
            pcie_root=sysfs.pcie_root(self._sysfs_root, gpu.pci_address),
            numa_node=sysfs.numa_node(self._sysfs_root, gpu.pci_address),
        )


def _without_twins(gpus: list[Gpu]) -> tuple[Gpu, ...]:
    """Keep the first of two GPUs with one UUID or one address: a library that says so is wrong about one of them."""
    kept: list[Gpu] = []
    for gpu in gpus:
        known = {other.uuid for other in kept} | {other.pci_address for other in kept if other.pci_address}
        if gpu.uuid not in known and gpu.pci_address not in known:
            kept.append(gpu)
    return tuple(kept)
