"""One look at all NVIDIA GPUs of a node: every GPU in a thread of its own, so that none hides the others."""

import asyncio
from dataclasses import replace
from pathlib import Path

from dra_gpu.inventory.model import DriverVersions, Gpu, Scan, SickGpu
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.cgroups import PodCgroups
from dra_gpu.vendors.nvidia import sharing, sysfs
from dra_gpu.vendors.nvidia.memory import Failed, Memory
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.presence import Presence
from dra_gpu.vendors.nvidia.session import Session
from dra_gpu.vendors.watchdog import Watchdog

# A healthy GPU answers all queries in milliseconds; a resetting one takes seconds.
READ_SECONDS = 15.0
_LIBRARY = "NVML"
# No node has so many; each costs a thread for as long as it is being read.
_MOST = 128


class Scanner:
    """Scans, and remembers what it saw, so that a GPU that falls silent can still be named."""

    def __init__(
        self,
        nvml: Nvml,
        watchdog: Watchdog,
        sysfs_root: Path,
        presence: Presence,
        pod_cgroups: PodCgroups,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._nvml = nvml
        self._presence = presence
        self._read_seconds = read_seconds
        self._pod_cgroups = pod_cgroups
        self._watchdog = watchdog
        self._sysfs_root = sysfs_root
        self._memory = Memory()
        self._session = Session(nvml, watchdog)
        self._versions = DriverVersions()

    def sharing(self, gpu: Gpu, *, partition: bool = False) -> SharingAbility:
        """Return what a GPU, or a partition of it, can do for shares, under the driver of the last look."""
        if partition:
            return sharing.ability_of_partition(gpu)
        return sharing.ability(gpu, self._versions, cgroup_v2=self._pod_cgroups.available)

    async def scan(self) -> Scan:
        """Return every GPU that answers, and what is wrong with the others.

        Raises:
            VendorError: NVML itself cannot be used.
        """
        async with self._session.opened():
            versions = await self._watchdog.call(_LIBRARY, "versions", self._nvml.versions, self._read_seconds)
            count = await self._watchdog.call(_LIBRARY, "nvmlDeviceGetCount_v2", self._nvml.count, self._read_seconds)
            if not 0 <= count <= _MOST:
                raise VendorError(
                    FailureKind.TRANSIENT,
                    f"NVML: nvmlDeviceGetCount_v2 answered {count}, more than any node has; reload the driver",
                )
            found = await asyncio.gather(*(self._read(index) for index in range(count)))
        healthy, twins = _without_twins([gpu for gpu in found if isinstance(gpu, Gpu)])
        self._versions = versions
        gpus = tuple(replace(gpu, isolation=sharing.isolation(gpu, self.sharing(gpu))) for gpu in healthy)
        failed = [one for one in found if isinstance(one, Failed)]
        return Scan(versions, gpus, (*self._memory.sick(gpus, failed, self._presence.bound), *twins))

    async def _read(self, index: int) -> Gpu | Failed:
        try:
            gpu = await self._watchdog.call(
                f"GPU {index}", "reading its facts", lambda: self._nvml.read(index), self._read_seconds
            )
        except Exception as error:  # noqa: BLE001 - whatever a GPU's answers break costs that GPU alone
            return Failed(index, str(error))
        gpu = self._memory.completed(gpu)
        if gpu.pci_address is None:
            return gpu
        node = sysfs.numa_node(self._sysfs_root, gpu.pci_address)
        return replace(
            gpu,
            pcie_root=sysfs.pcie_root(self._sysfs_root, gpu.pci_address),
            numa_node=node,
            numa_nodes=() if node is None else sysfs.nearest_nodes(self._sysfs_root, node),
        )


def _without_twins(gpus: list[Gpu]) -> tuple[tuple[Gpu, ...], tuple[SickGpu, ...]]:
    """Keep the first of two GPUs with one UUID, address or device node, and tell of the other.

    A library that says so is wrong about one of them, and a container must never get the GPU of another one.
    """
    owners: dict[tuple[str, object], Gpu] = {}
    kept: list[Gpu] = []
    twins: list[SickGpu] = []
    for gpu in gpus:
        facts = (("UUID", gpu.uuid), ("PCI address", gpu.pci_address), ("minor number", gpu.minor))
        marks = [mark for mark in facts if mark[1] is not None]
        same = next((mark for mark in marks if mark in owners), None)
        if same is None:
            kept.append(gpu)
            owners.update(dict.fromkeys(marks, gpu))
            continue
        other = owners[same]
        reason = f"NVML gives it the {same[0]} {same[1]} of GPU {other.index} ({other.uuid}); reload the driver"
        twins.append(SickGpu(where=f"index {gpu.index}", reason=reason, uuid=gpu.uuid))
    return tuple(kept), tuple(twins)
