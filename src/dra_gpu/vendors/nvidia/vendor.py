"""NVIDIA's GPUs behind the Protocol of vendors: NVML to look, nvidia-smi to set, the driver root for containers."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.cdi.extra_edits import ExtraEdits
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import ContainerEdits
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu, Scan
from dra_gpu.vendors.nvidia.driver_root import DriverRoot, find_nvml, find_program
from dra_gpu.vendors.nvidia.edits import NvidiaEdits
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.scan import Scanner
from dra_gpu.vendors.nvidia.smi import Smi
from dra_gpu.vendors.watchdog import Watchdog

DRIVER_NAME = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class NvidiaHost:
    """Where this node keeps what belongs to its GPUs.

    Attributes:
        driver_root: the driver installation.
        dev_root: directory of device nodes.
        sysfs_root: where sysfs is mounted.
        host_root: the host's root, searched for the container toolkit; None when this process does not see it.
        hook_program: the toolkit's program by its path on the host, where it is in an unusual place.
    """

    driver_root: HostDirectory
    dev_root: HostDirectory
    sysfs_root: Path
    host_root: HostDirectory | None = None
    hook_program: PurePosixPath | None = None


class NvidiaVendor:
    """The NVIDIA GPUs of this node."""

    driver_name = DRIVER_NAME

    def __init__(self, host: NvidiaHost, extra: ExtraEdits | None = None) -> None:
        """Remember the places; nothing is loaded or looked at yet."""
        root = host.driver_root.process
        self._scanner = Scanner(Nvml(lambda: find_nvml(root)), Watchdog(), host.sysfs_root)
        self._smi = Smi(lambda: find_program(root, "nvidia-smi"), lambda: find_nvml(root).parent)
        self._edits = NvidiaEdits(
            DriverRoot(host.driver_root),
            host.dev_root,
            host=host.host_root,
            hook_program=host.hook_program,
            extra=extra,
        )

    async def scan(self) -> Scan:
        """See `vendors.base.Vendor.scan`."""
        return await self._scanner.scan()

    async def set_time_slice(self, gpu: Gpu, interval: TimeSliceInterval) -> None:
        """See `vendors.base.Vendor.set_time_slice`."""
        await self._smi.set_time_slice(gpu.uuid, interval)

    async def time_slice(self, gpu: Gpu) -> TimeSliceInterval | None:
        """See `vendors.base.Vendor.time_slice`."""
        return await self._smi.time_slice(gpu.uuid)

    def installation(self) -> Hashable:
        """See `vendors.base.Vendor.installation`."""
        return self._edits.installation()

    def common_edits(self) -> ContainerEdits:
        """See `vendors.base.Vendor.common_edits`."""
        return self._edits.common_edits()

    def device_edits(self, devices: Sequence[PublishedDevice]) -> ContainerEdits:
        """See `vendors.base.Vendor.device_edits`."""
        return self._edits.device_edits(devices)
