"""What the driver asks of a vendor. The claims engine knows vendors by this Protocol alone.

Every method that reaches the vendor's library or tools has a deadline of its own and raises `VendorError`; a GPU that
does not answer costs its own claim, nothing else.
"""

import enum
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.cdi.spec import ContainerEdits
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, Scan
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from dra_gpu.vendors.health import HealthEvent, HealthProbe
from dra_gpu.vendors.usage import GpuUsage


class FailureKind(enum.Enum):
    """What a caller can do about a failed vendor call."""

    TRANSIENT = "transient"  # the same call may succeed in a moment
    UNSUPPORTED = "unsupported"  # this GPU or driver never can
    LOST = "lost"  # the GPU is gone until it is reset or returns
    UNRESPONSIVE = "unresponsive"  # the call did not return by its deadline
    REFUSED = "refused"  # rights, or a state that somebody must change
    IN_USE = "in use"  # somebody holds the GPU or partition open; it may be let go in a moment


class VendorError(Exception):
    """A vendor's library or tool did not do what was asked.

    The message names the GPU, what the vendor answered, and the remedy; it ends up in a pod's events.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class NotReadyError(VendorError):
    """Something of the driver installation is not there yet (driver root, device nodes); it may come."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureKind.TRANSIENT, message)


class CgroupGoneError(VendorError):
    """There is no such cgroup (any more): its pod has ended, and there is nothing to limit."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureKind.UNSUPPORTED, message)


class CgroupUnlimitedError(VendorError):
    """The driver limits no memory in a cgroup that is there, such as one without the controller that it works by."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureKind.UNSUPPORTED, message)


@dataclass(frozen=True, slots=True)
class ShareEdits:
    """A share of a GPU on MPS, as far as its containers need to know it.

    Attributes:
        pipe_directory: what they connect through, on the host; mounted into each container.
        shm_directory: what they mount at /dev/shm, on the host.
        protocol: with CLASSIC the limits have to stand in the container's environment.
        compute_percent: percent of the GPU's SMs for each process; None for no limit.
        memory_bytes: device memory for each process, in whole MiB; None for no limit.
        low_priority: its processes run below normal priority.
        partition: UUID of the MIG device that it is a share of; None for a share of the whole GPU.
    """

    pipe_directory: str
    shm_directory: str
    protocol: MpsProtocol
    compute_percent: int | None = None
    memory_bytes: int | None = None
    low_priority: bool = False
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The device memory that a cgroup uses of a GPU.

    Attributes:
        memory_bytes: what the driver counts against its limit.
        processes: ids of its processes on that GPU, the largest first.
    """

    memory_bytes: int
    processes: tuple[int, ...] = ()


class Vendor(Protocol):
    """One vendor's GPUs on this node."""

    @property
    def driver_name(self) -> str:
        """Name of the DRA driver, such as `gpu.nvidia.com`."""

    async def scan(self) -> Scan:
        """Look at every GPU. A GPU that cannot be read is in `sick`; the others are not disturbed.

        Raises:
            VendorError: the library itself cannot be used; the message says what is missing.
        """

    async def set_time_slice(self, gpu: Gpu, interval: TimeSliceInterval) -> None:
        """Set how long a process runs before another gets the GPU.

        Raises:
            VendorError: the GPU cannot (UNSUPPORTED), or the tool failed.
        """

    async def time_slice(self, gpu: Gpu) -> TimeSliceInterval | None:
        """Read the present time slice; None where it cannot be read.

        Raises:
            VendorError: the tool failed.
        """

    def sharing(self, gpu: Gpu, *, partition: bool = False) -> SharingAbility:
        """Tell what this GPU, or a partition of it, and driver can do for shares; no call to the GPU."""

    async def memory_limit(self, gpu: Gpu, cgroup: str) -> int | None:
        """Return the limit on a cgroup's device memory in bytes; None where there is none.

        Raises:
            CgroupGoneError: there is no such cgroup.
            VendorError: the driver cannot, or did not answer.
        """

    async def set_memory_limit(self, gpu: Gpu, cgroup: str, limit: int | None) -> None:
        """Limit the device memory of a cgroup, in bytes; None takes the limit away.

        Raises:
            CgroupGoneError: there is no such cgroup.
            VendorError: the driver cannot (UNSUPPORTED), or did not answer.
        """

    async def memory_use(self, gpu: Gpu, cgroup: str) -> MemoryUse:
        """Return the device memory that a cgroup uses, as its limit counts it.

        Raises:
            CgroupGoneError: there is no such cgroup.
            VendorError: the driver cannot, or did not answer.
        """

    def pod_cgroup(self, pod_uid: str) -> str | None:
        """Return the path of a pod's cgroup; None on cgroup v1, or where it is not there. A few system calls."""

    async def set_mig_mode(self, gpu: Gpu, *, enabled: bool) -> None:
        """Put a GPU into MIG mode, or out of it; one that is there already is left alone, and one call is enough.

        Raises:
            VendorError: IN_USE with the pid and command of whoever holds the GPU open; REFUSED where the change waits
                for a reset (it is then not asked for), or where GPU instances are left that nobody told us of;
                UNSUPPORTED where the GPU cannot be partitioned.
        """

    async def mig_mode(self, gpu: Gpu) -> bool:
        """Tell whether a GPU is in MIG mode now, whatever is pending.

        Raises:
            VendorError: it cannot be read.
        """

    async def create_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance:
        """Have a GPU instance at exactly that place, with one compute instance that spans it; repeating is harmless.

        A GPU instance without its compute instance is completed. When that fails, one that was made by this call is
        destroyed again.

        Raises:
            VendorError: IN_USE where others lie there; or NVML failed.
        """

    async def destroy_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> None:
        """Destroy the instance at that place with its compute instances; one that is not there is as good.

        Raises:
            VendorError: IN_USE while a process uses it, with pid and command; or NVML failed.
        """

    async def mig_instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance | None:
        """Return the instance that lies at exactly that place; None when there is none.

        Raises:
            VendorError: it cannot be read.
        """

    async def usage(self, wanted: Mapping[str, tuple[Gpu, Sequence[str]]]) -> Mapping[str, GpuUsage | VendorError]:
        """Look at what is used of several GPUs, opening the library once.

        Args:
            wanted: by UUID, the GPU and the cgroups of which the memory is asked.

        Returns:
            By UUID what is used, or why that GPU does not tell.

        Raises:
            VendorError: the library itself cannot be used.
        """

    async def watch_health(
        self,
        gpus: Sequence[Gpu],
        report: Callable[[HealthEvent], None],
        ready: Callable[[Sequence[str]], None],
    ) -> None:
        """Report what happens to GPUs, until cancelled. One watch at a time.

        Nothing that happens before `ready` is reported. A GPU that is lost is reported once; the others are watched on,
        and it is again as soon as it answers.

        Args:
            gpus: the GPUs of this moment; call again when others come or go.
            report: called on the loop with each event.
            ready: called on the loop with the UUIDs of those that are watched by events, whenever they change; whoever
                is not among them is to be looked at.

        Raises:
            VendorError: the watch as a whole has ended; call again after a while.
        """

    async def probe_health(self, gpus: Sequence[Gpu]) -> tuple[HealthProbe, ...]:
        """Look at GPUs and return one probe for each, in their order.

        Each has a deadline of its own, and what is wrong with one stands in its probe alone. A library that cannot be
        used at all is what is wrong with every one.
        """

    async def reset_gpu(self, gpu: Gpu) -> None:
        """Reset a GPU that nobody uses; whatever else asks this vendor's library waits meanwhile.

        Its partitions, time slice and limits are gone afterwards. The caller keeps claims away from it.

        Raises:
            VendorError: IN_USE with the pid and command of whoever has the GPU open; LOST when it did not come back;
                UNSUPPORTED where it cannot be reset by itself; or the tool failed.
        """

    def presence(self) -> Hashable:
        """Return a mark of the GPUs that are there: equal as long as none comes or goes. A few system calls."""

    def pod_of(self, pid: int) -> str | None:
        """Return the UID of the pod that a process runs in; None where that cannot be told. A few system calls."""

    def environments(self, pods: Collection[str]) -> Mapping[int, Mapping[str, str]]:
        """Return what each process of some pods was started with, by its id. Reads all processes of the node."""

    def command(self, pid: int) -> str:
        """Return how a process was started, shortened; empty where it has ended. A system call or two."""

    def installation(self) -> Hashable:
        """Return a mark of the driver installation: equal as long as it is the same one. Costs a few system calls."""

    def common_edits(self) -> ContainerEdits:
        """What every container with a device of this vendor gets: control nodes, libraries, programs, hooks.

        Raises:
            NotReadyError: the driver root or control nodes are incomplete; lists every place that was tried.
        """

    def device_edits(
        self, devices: Sequence[PublishedDevice], instances: Mapping[str, MigInstance] | None = None
    ) -> ContainerEdits:
        """What the given devices add on top of `common_edits`, for one container that gets them together.

        Args:
            devices: what the container gets.
            instances: by device name, the instance behind each partition.

        Raises:
            NotReadyError: a device node is missing; names each.
        """

    def share_edits(self, gpu: Gpu, share: ShareEdits) -> ContainerEdits:
        """Return what a container of a share gets on top of `device_edits`: how it reaches MPS, and within what."""
