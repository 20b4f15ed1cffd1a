"""The node as steps see it: one vendor's GPUs and the CDI files of claims.

CDI files are written and read on a small pool of threads owned by this object, so that neither a slow disk nor a look
into the driver installation stops the event loop.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.api.resource_v1 import Device as WireDevice
from dra_gpu.cdi.spec import ContainerEdits, Device, Spec, minimum_version
from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.claims.ports import SpecStore
from dra_gpu.claims.steps import CLAIM_VARIABLE, CdiDevice, WriteCdiSpec, cdi_kind
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.base import FailureKind, Vendor, VendorError

_THREADS = 4  # writes of small files to tmpfs: more threads only wait for the interpreter

T = TypeVar("T")


class NodeMachine:
    """Carries out steps on this node.

    Args:
        vendor: the GPUs.
        specs: the CDI files.
        inventory: returns what the node offers at the moment of the call.
    """

    def __init__(self, vendor: Vendor, specs: SpecStore, inventory: Callable[[], Inventory]) -> None:
        self._vendor = vendor
        self._specs = specs
        self._inventory = inventory
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cdi")
        self._verified: dict[str, tuple[Hashable, Hashable]] = {}

    def close(self) -> None:
        """Wait for running file work and end the threads."""
        self._threads.shutdown()

    def has_gpu(self, gpu: str) -> bool:
        """Tell whether the GPU of that UUID is in this node and works."""
        return next(self._inventory().of_gpu(gpu), None) is not None

    async def time_slice(self, gpu: str) -> TimeSliceInterval | None:
        """Return the present time slice of a GPU; None where it cannot be read.

        Raises:
            VendorError: the GPU is gone, or the vendor's tool failed.
        """
        return await self._vendor.time_slice(self._gpu(gpu))

    async def set_time_slice(self, gpu: str, interval: TimeSliceInterval) -> None:
        """Set the time slice of a GPU.

        Raises:
            VendorError: the GPU is gone or cannot, or the vendor's tool failed.
        """
        await self._vendor.set_time_slice(self._gpu(gpu), interval)

    async def write_spec(self, step: WriteCdiSpec) -> None:
        """Write the claim's CDI file.

        Raises:
            VendorError: a GPU is gone, or the driver installation is incomplete.
            SpecStoreError: the file cannot be written.
        """
        await self._in_thread(lambda: self._write(step))

    async def spec_intact(self, step: WriteCdiSpec) -> bool:
        """Tell whether the claim's CDI file has the content it would be written with now.

        Making that anew takes a walk through the driver installation. As long as neither the installation nor the file
        has changed since they were seen to agree, they still do; that takes a handful of system calls.

        Raises:
            VendorError: as for `write_spec`.
        """
        known = self._verified.get(step.claim_uid)
        if known is not None and None not in known and known == self._marks(step.claim_uid):
            return True
        return await self._in_thread(lambda: self._is_intact(step))

    async def remove_spec(self, claim_uid: str) -> None:
        """Remove the claim's CDI file.

        Raises:
            SpecStoreError: it stays.
        """
        self._verified.pop(claim_uid, None)
        await self._in_thread(lambda: self._specs.remove(claim_uid))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _write(self, step: WriteCdiSpec) -> None:
        installation = self._vendor.installation()
        self._specs.write(step.claim_uid, self._spec(step))
        self._verified[step.claim_uid] = (installation, self._specs.mark(step.claim_uid))

    def _is_intact(self, step: WriteCdiSpec) -> bool:
        marks = self._marks(step.claim_uid)
        try:
            found = self._specs.read(step.claim_uid)
        except SpecStoreError:
            return False  # whatever stands there is replaced; if it cannot be, the write says why
        wanted = self._spec(step)
        intact = found == msgspec.structs.replace(wanted, cdi_version=minimum_version(wanted))
        if intact:
            self._verified[step.claim_uid] = marks
        return intact

    def _marks(self, claim_uid: str) -> tuple[Hashable, Hashable]:
        return self._vendor.installation(), self._specs.mark(claim_uid)

    def _spec(self, step: WriteCdiSpec) -> Spec:
        common = self._vendor.common_edits().merged(ContainerEdits(env=(f"{CLAIM_VARIABLE}={step.claim}",)))
        devices = tuple(
            Device(device.cdi_name, self._vendor.device_edits([self._published(device)])) for device in step.devices
        )
        return Spec("", cdi_kind(self._vendor.driver_name), devices, common)

    def _gpu(self, gpu: str) -> Gpu:
        found = next(self._inventory().of_gpu(gpu), None)
        if found is None:
            raise _gone(gpu)
        return found.gpu

    def _published(self, device: CdiDevice) -> PublishedDevice:
        """Return the device by its GPU: a view may not be published any more while claims still hold it."""
        found = self._inventory().devices.get(device.device)
        if found is not None and found.gpu.uuid == device.gpu:
            return found
        return PublishedDevice(device.device, device.view, self._gpu(device.gpu), WireDevice(name=device.device))


def _gone(gpu: str) -> VendorError:
    return VendorError(
        FailureKind.LOST,
        f"GPU {gpu} is not among the working GPUs of this node: it was removed, or needs a reset (see its events)",
    )
