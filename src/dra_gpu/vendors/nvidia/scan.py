"""One look at all NVIDIA GPUs of a node: every GPU in a thread of its own, so that none hides the others."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dra_gpu.inventory.model import DriverVersions, Gpu, Scan, SickGpu
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.cgroups import PodCgroups
from dra_gpu.vendors.nvidia import sharing, sysfs
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.watchdog import Watchdog

# NVML's first initialisation takes seconds per GPU without the persistence daemon.
_INITIALISE = 60.0
# A healthy GPU answers all queries in milliseconds; a resetting one takes seconds.
READ_SECONDS = 15.0
# What was seen is told only after it.
_SHUT_DOWN = 5.0
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
        pod_cgroups: PodCgroups,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._nvml = nvml
        self._read_seconds = read_seconds
        self._pod_cgroups = pod_cgroups
        self._watchdog = watchdog
        self._sysfs_root = sysfs_root
        self._seen: dict[int, Gpu] = {}
        self._opened = False
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
        if not self._opened:
            await self._watchdog.call(_LIBRARY, "nvmlInit_v2", self._nvml.open, _INITIALISE)
            self._opened = True
        try:
            versions = await self._watchdog.call(_LIBRARY, "versions", self._nvml.versions, self._read_seconds)
            count = await self._watchdog.call(_LIBRARY, "nvmlDeviceGetCount_v2", self._nvml.count, self._read_seconds)
            if not 0 <= count <= _MOST:
                raise VendorError(
                    FailureKind.TRANSIENT,
                    f"NVML: nvmlDeviceGetCount_v2 answered {count}, more than any node has; reload the driver",
                )
            found = await asyncio.gather(*(self._read(index) for index in range(count)))
        finally:
            # A call that hangs may still be inside the library: shutting it down then would hang as well.
            if not self._watchdog.stuck:
                self._opened = False
                with suppress(VendorError):  # what was seen is true all the same; the next look says that it hangs
                    await self._watchdog.call(_LIBRARY, "nvmlShutdown", self._nvml.close, _SHUT_DOWN)
        healthy, twins = _without_twins([gpu for gpu in found if isinstance(gpu, Gpu)])
        self._versions = versions
        gpus = tuple(replace(gpu, isolation=sharing.isolation(gpu, self.sharing(gpu))) for gpu in healthy)
        self._seen.update({gpu.index: gpu for gpu in gpus})
        return Scan(versions, gpus, (*(gpu for gpu in found if isinstance(gpu, SickGpu)), *twins))

    async def _read(self, index: int) -> Gpu | SickGpu:
        try:
            gpu = await self._watchdog.call(
                f"GPU {index}", "reading its facts", lambda: self._nvml.read(index), self._read_seconds
            )
        except Exception as error:  # noqa: BLE001 - whatever a GPU's answers break costs that GPU alone
            before = self._seen.get(index)
            where = (before.pci_address if before else None) or f"index {index}"
            return SickGpu(where=where, reason=str(error), uuid=before.uuid if before else None)
        gpu = self._with_links(self._with_bandwidth(self._with_partitions(gpu)))
        if gpu.pci_address is None:
            return gpu
        node = sysfs.numa_node(self._sysfs_root, gpu.pci_address)
        return replace(
            gpu,
            pcie_root=sysfs.pcie_root(self._sysfs_root, gpu.pci_address),
            numa_node=node,
            numa_nodes=() if node is None else sysfs.nearest_nodes(self._sysfs_root, node),
        )

    def _with_bandwidth(self, gpu: Gpu) -> Gpu:
        """Return a GPU with the most NVLink bandwidth it has told since the start.

        Links come up late, and a link that goes down now and then is a matter of health: what shares were given of the
        bandwidth does not move with it.
        """
        before = self._seen.get(gpu.index)
        known = before.nvlink_bandwidth if before is not None and before.uuid == gpu.uuid else None
        most = max((one for one in (known, gpu.nvlink_bandwidth) if one is not None), default=None)
        return replace(gpu, nvlink_bandwidth=most)

    def _with_partitions(self, gpu: Gpu) -> Gpu:
        """Return a GPU that did not tell its partitions this time with those of the last: it has not lost them.

        What it offers is the same in every mode; what it has is not.
        """
        before = self._seen.get(gpu.index)
        told = gpu.mig_profiles or not gpu.mig_capable
        if told or before is None or before.uuid != gpu.uuid:
            return gpu
        instances = before.mig_instances if before.mig_enabled == gpu.mig_enabled else ()
        return replace(gpu, mig_profiles=before.mig_profiles, mig_instances=instances)

    def _with_links(self, gpu: Gpu) -> Gpu:
        """Return a GPU that is in MIG mode for a while with the links that it had before.

        Partitions have no NVLink (MIG User Guide r580), whether the links rest or not. Where they lead to matters to
        who wants the GPU as a whole, and must not change with every claim of a partition.
        """
        before = self._seen.get(gpu.index)
        if not (gpu.mig_live and gpu.mig_enabled) or before is None or before.uuid != gpu.uuid:
            return gpu
        if sum(link.active for link in gpu.nvlinks) < sum(link.active for link in before.nvlinks):
            gpu = replace(gpu, nvlinks=before.nvlinks)
        if before.fabric_registered and not gpu.fabric_registered:
            gpu = replace(gpu, fabric=before.fabric, fabric_registered=True)
        return gpu


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
