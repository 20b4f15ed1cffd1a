"""NVIDIA's GPUs behind the Protocol of vendors: NVML to look, nvidia-smi to set, the driver root for containers."""

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.cdi.extra_edits import ExtraEdits
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import ContainerEdits
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, Scan
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.vendors.base import FailureKind, MemoryUse, ShareEdits, VendorError
from dra_gpu.vendors.cgroups import PodCgroups, pod_of_process
from dra_gpu.vendors.health import HealthEvent, HealthProbe
from dra_gpu.vendors.nvidia import memory_limits, nodes
from dra_gpu.vendors.nvidia.capabilities import Capabilities
from dra_gpu.vendors.nvidia.driver_root import DriverRoot, find_nvml, find_program
from dra_gpu.vendors.nvidia.edits import NvidiaEdits
from dra_gpu.vendors.nvidia.event_watch import EventWatch
from dra_gpu.vendors.nvidia.fabric_manager import FabricManager
from dra_gpu.vendors.nvidia.gate import Gate, StillInUseError
from dra_gpu.vendors.nvidia.mig import Partitioning
from dra_gpu.vendors.nvidia.neighbours import Neighbours
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.presence import Presence
from dra_gpu.vendors.nvidia.probes import Probes
from dra_gpu.vendors.nvidia.resetting import Resetting
from dra_gpu.vendors.nvidia.scan import READ_SECONDS, Scanner
from dra_gpu.vendors.nvidia.session import Session
from dra_gpu.vendors.nvidia.share_edits import share_edits
from dra_gpu.vendors.nvidia.smi import Smi
from dra_gpu.vendors.nvidia.usage import Usage
from dra_gpu.vendors.processes import command, environments
from dra_gpu.vendors.usage import GpuUsage
from dra_gpu.vendors.watchdog import Watchdog

DRIVER_NAME = "gpu.nvidia.com"
# A healthy GPU answers in milliseconds; opening NVML without the persistence daemon takes seconds.
_CALL_SECONDS = 15.0
# Changing the MIG mode takes seconds, and so does an instance when several GPUs are partitioned at once.
_MIG_SECONDS = 60.0
# The event watch leaves NVML within half a second; any other call ends sooner or hangs.
_REOPEN_SECONDS = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NvidiaHost:
    """Where this node keeps what belongs to its GPUs.

    Attributes:
        driver_root: the driver installation.
        dev_root: directory of device nodes.
        sysfs_root: where sysfs is mounted.
        host_root: the host's root, searched for the container toolkit; None when this process does not see it.
        hook_program: the toolkit's program by its path on the host, where it is in an unusual place.
        proc_root: a procfs that shows the processes of the host.
        driver_proc_root: a procfs in which the driver shows the numbers of MIG instances.
        cgroup_root: where the unified cgroup hierarchy is mounted.
        gpu_timeout: seconds after which a GPU that has not told its facts is left out.
        boot_id: of this boot; what sysfs tells of GPUs means nothing in another one.
        lock_dir: where instances of the driver on this node ask each other for the GPUs; None without others.
    """

    driver_root: HostDirectory
    dev_root: HostDirectory
    sysfs_root: Path
    host_root: HostDirectory | None = None
    hook_program: PurePosixPath | None = None
    proc_root: Path = Path("/proc")
    driver_proc_root: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    gpu_timeout: float = READ_SECONDS
    boot_id: str = ""
    lock_dir: Path | None = None


class NvidiaVendor:
    """The NVIDIA GPUs of this node."""

    driver_name = DRIVER_NAME

    def __init__(self, host: NvidiaHost, extra: ExtraEdits | None = None) -> None:
        """Remember the places; nothing is loaded or looked at yet."""
        root = host.driver_root.process
        self._proc_root = host.proc_root
        self._usage = Usage()
        self._pod_cgroups = PodCgroups(host.cgroup_root)
        self._presence = Presence(host.sysfs_root, host.dev_root.process, host.boot_id)
        self._nvml = Nvml(lambda: find_nvml(root), self._presence.mark)
        self._gate = Gate()
        self._watchdog = Watchdog()
        self._usage_session = Session(self._nvml, self._watchdog)
        self._probes = Probes(self._nvml, self._watchdog, self._presence)
        self._neighbours = Neighbours(host.lock_dir)
        self._event_watch = EventWatch(self._nvml, self._gate, self._watchdog, self._neighbours)
        self._scanner = Scanner(
            self._nvml, self._watchdog, host.sysfs_root, self._presence, self._pod_cgroups, host.gpu_timeout
        )
        self._fabric_manager = FabricManager([root, *([host.host_root.process] if host.host_root else [])])
        self._smi = Smi(lambda: find_program(root, "nvidia-smi"), lambda: find_nvml(root).parent)
        capabilities = Capabilities(host.driver_proc_root, host.dev_root)

        def node_of(gpu: Gpu) -> Path | None:
            return None if gpu.minor is None else host.dev_root.here(nodes.gpu_node(gpu.minor))

        self._resetting = Resetting(
            self._nvml, self._gate, self._watchdog, self._smi, processes=host.proc_root, node_of=node_of
        )
        self._partitioning = Partitioning(
            host.proc_root,
            node_of,
            lambda gpu, instance: () if gpu.minor is None else capabilities.places(gpu.minor, instance),
        )
        self._edits = NvidiaEdits(
            DriverRoot(host.driver_root),
            host.dev_root,
            host=host.host_root,
            hook_program=host.hook_program,
            capabilities=capabilities,
            extra=extra,
        )

    async def scan(self) -> Scan:
        """See `vendors.base.Vendor.scan`."""
        if self._nvml.is_stale:
            with suppress(StillInUseError):  # a call that hangs; the next look tries again
                async with self._gate.closed(_REOPEN_SECONDS):
                    pass
        async with self._gate.use():
            seen = await self._scanner.scan()
        lost = tuple(one.last for one in seen.sick if one.last is not None)
        told = await self._fabric_manager.with_partitions((*seen.gpus, *lost))
        last = {gpu.uuid: gpu for gpu in told[len(seen.gpus) :]}
        sick = tuple(replace(one, last=last.get(one.uuid or "")) for one in seen.sick)
        return replace(seen, gpus=told[: len(seen.gpus)], sick=sick)

    async def set_time_slice(self, gpu: Gpu, interval: TimeSliceInterval) -> None:
        """See `vendors.base.Vendor.set_time_slice`."""
        await self._smi.set_time_slice(gpu.uuid, interval)

    async def time_slice(self, gpu: Gpu) -> TimeSliceInterval | None:
        """See `vendors.base.Vendor.time_slice`."""
        return await self._smi.time_slice(gpu.uuid)

    def sharing(self, gpu: Gpu, *, partition: bool = False) -> SharingAbility:
        """See `vendors.base.Vendor.sharing`."""
        return self._scanner.sharing(gpu, partition=partition)

    def share_edits(self, gpu: Gpu, share: ShareEdits) -> ContainerEdits:
        """See `vendors.base.Vendor.share_edits`."""
        return share_edits(gpu, share)

    def pod_cgroup(self, pod_uid: str) -> str | None:
        """See `vendors.base.Vendor.pod_cgroup`."""
        return self._pod_cgroups.of_pod(pod_uid)

    async def set_memory_limit(self, gpu: Gpu, cgroup: str, limit: int | None) -> None:
        """See `vendors.base.Vendor.set_memory_limit`."""
        await self._with_nvml(gpu, "setting a memory limit", lambda: memory_limits.set_limit(gpu, cgroup, limit))

    async def memory_limit(self, gpu: Gpu, cgroup: str) -> int | None:
        """See `vendors.base.Vendor.memory_limit`."""
        return await self._with_nvml(gpu, "reading a memory limit", lambda: memory_limits.limit(gpu, cgroup))

    async def memory_use(self, gpu: Gpu, cgroup: str) -> MemoryUse:
        """See `vendors.base.Vendor.memory_use`."""

        def look() -> MemoryUse:
            used, processes = memory_limits.use(gpu, cgroup)
            by_size = sorted(processes, key=lambda one: one.memory_bytes or 0, reverse=True)
            return MemoryUse(used, tuple(one.pid for one in by_size if self._is_in(one.pid, cgroup)))

        return await self._with_nvml(gpu, "reading the memory that a pod uses", look)

    async def set_mig_mode(self, gpu: Gpu, *, enabled: bool) -> None:
        """See `vendors.base.Vendor.set_mig_mode`. Who only waits for events, here or beside, is no reason to refuse."""
        try:
            await self._set_mig_mode(gpu, enabled=enabled)
        except VendorError as error:
            if error.kind is not FailureKind.IN_USE or not self._neighbours.watched:
                raise
            with self._neighbours.asked():
                await self._neighbours.left()
                await self._set_mig_mode(gpu, enabled=enabled)

    async def _set_mig_mode(self, gpu: Gpu, *, enabled: bool) -> None:
        await self._with_nvml(
            gpu, "setting its MIG mode", lambda: self._partitioning.set_mode(gpu, enabled=enabled), _MIG_SECONDS
        )

    async def mig_mode(self, gpu: Gpu) -> bool:
        """See `vendors.base.Vendor.mig_mode`."""
        return await self._with_nvml(gpu, "reading its MIG mode", lambda: self._partitioning.mode(gpu))

    async def create_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance:
        """See `vendors.base.Vendor.create_mig_instance`."""
        return await self._with_nvml(
            gpu, "creating a MIG instance", lambda: self._partitioning.create(gpu, placement), _MIG_SECONDS
        )

    async def destroy_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> None:
        """See `vendors.base.Vendor.destroy_mig_instance`."""
        await self._with_nvml(
            gpu, "destroying a MIG instance", lambda: self._partitioning.destroy(gpu, placement), _MIG_SECONDS
        )

    async def mig_instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance | None:
        """See `vendors.base.Vendor.mig_instance`."""
        return await self._with_nvml(
            gpu, "reading its MIG instances", lambda: self._partitioning.instance(gpu, placement)
        )

    async def usage(self, wanted: Mapping[str, tuple[Gpu, Sequence[str]]]) -> Mapping[str, GpuUsage | VendorError]:
        """See `vendors.base.Vendor.usage`."""
        async with self._gate.use():
            return await self._usage_of_all(wanted)

    async def _usage_of_all(
        self, wanted: Mapping[str, tuple[Gpu, Sequence[str]]]
    ) -> Mapping[str, GpuUsage | VendorError]:
        async with self._usage_session.opened():
            found = await asyncio.gather(*(self._usage_of(gpu, cgroups) for gpu, cgroups in wanted.values()))
        return dict(zip(wanted, found, strict=True))

    async def _usage_of(self, gpu: Gpu, cgroups: Sequence[str]) -> GpuUsage | VendorError:
        try:
            return await self._watchdog.call(
                f"GPU {gpu.index}", "reading what is used of it", lambda: self._usage.of(gpu, cgroups), _CALL_SECONDS
            )
        except VendorError as error:
            return error

    async def watch_health(
        self,
        gpus: Sequence[Gpu],
        report: Callable[[HealthEvent], None],
        ready: Callable[[Sequence[str]], None],
    ) -> None:
        """See `vendors.base.Vendor.watch_health`."""
        await self._event_watch.run(gpus, report, ready)

    async def probe_health(self, gpus: Sequence[Gpu]) -> tuple[HealthProbe, ...]:
        """See `vendors.base.Vendor.probe_health`."""
        async with self._gate.use():
            return await self._probes.of(gpus)

    def presence(self) -> Hashable:
        """See `vendors.base.Vendor.presence`."""
        return self._presence.mark()

    def pod_of(self, pid: int) -> str | None:
        """See `vendors.base.Vendor.pod_of`."""
        return pod_of_process(self._proc_root, pid)

    def environments(self, pods: Collection[str]) -> Mapping[int, Mapping[str, str]]:
        """See `vendors.base.Vendor.environments`."""
        return environments(self._proc_root, pods)

    def command(self, pid: int) -> str:
        """See `vendors.base.Vendor.command`."""
        return command(self._proc_root, pid)

    def _is_in(self, pid: int, cgroup: str) -> bool:
        pod = self.pod_of(pid)
        return pod is not None and self._pod_cgroups.of_pod(pod) == cgroup

    async def _with_nvml(self, gpu: Gpu, what: str, call: Callable[[], T], seconds: float = _CALL_SECONDS) -> T:
        def opened() -> T:
            self._nvml.open()
            try:
                return call()
            finally:
                self._nvml.close()

        async with self._gate.use():
            return await self._watchdog.call(f"GPU {gpu.index}", what, opened, seconds)

    async def reset_gpu(self, gpu: Gpu) -> None:
        """See `vendors.base.Vendor.reset_gpu`."""
        await self._resetting.reset(gpu)

    def installation(self) -> Hashable:
        """See `vendors.base.Vendor.installation`."""
        return self._edits.installation()

    def common_edits(self) -> ContainerEdits:
        """See `vendors.base.Vendor.common_edits`."""
        return self._edits.common_edits()

    def device_edits(
        self, devices: Sequence[PublishedDevice], instances: Mapping[str, MigInstance] | None = None
    ) -> ContainerEdits:
        """See `vendors.base.Vendor.device_edits`."""
        return self._edits.device_edits(devices, instances)
