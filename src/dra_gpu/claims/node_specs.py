"""CDI files of claims, made from the driver installation of the moment.

Files are written and read on a small pool of threads, so that neither a slow disk nor a look into the driver
installation stops the event loop.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from dra_gpu.cdi.spec import ContainerEdits, Device, Spec, minimum_version
from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.claims.ports import SpecStore
from dra_gpu.claims.steps import CLAIM_VARIABLE, FOREIGN_VARIABLE, CdiDevice, WriteCdiSpec, cdi_kind
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import MigInstance
from dra_gpu.vendors.base import ShareEdits, Vendor

_THREADS = 4  # writes of small files to tmpfs: more threads only wait for the interpreter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Behind:
    """What stands behind the devices of a file at the moment, by their CDI names.

    Attributes:
        shares: of those that are shared on MPS, what containers need to know.
        instances: of those that are partitions, the instance.
    """

    shares: Mapping[str, ShareEdits] = field(default_factory=dict)
    instances: Mapping[str, MigInstance] = field(default_factory=dict)

    @property
    def mark(self) -> Hashable:
        """Equal as long as all of it is the same."""
        return tuple(self.shares.items()), tuple(self.instances.items())


class NodeSpecs:
    """The CDI files.

    Args:
        vendor: says what a device adds to a container.
        store: where the files are.
        published: returns the device behind an entry of a file; raises VendorError where its GPU is gone.
    """

    def __init__(self, vendor: Vendor, store: SpecStore, published: Callable[[CdiDevice], PublishedDevice]) -> None:
        self._vendor = vendor
        self._store = store
        self._published = published
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cdi")
        self._verified: dict[str, tuple[Hashable, ...]] = {}

    def close(self) -> None:
        """Wait for running file work and end the threads."""
        self._threads.shutdown()

    async def write(self, step: WriteCdiSpec, behind: Behind) -> None:
        """Write the claim's CDI file.

        Raises:
            VendorError: a GPU is gone, or the driver installation is incomplete.
            SpecStoreError: the file cannot be written.
        """
        await self._in_thread(lambda: self._write(step, behind))

    async def intact(self, step: WriteCdiSpec, behind: Behind) -> bool:
        """Tell whether the claim's CDI file has the content it would be written with now.

        Making that anew takes a walk through the driver installation. As long as neither the installation nor the file,
        nor the numbers of the GPUs' device nodes, have changed since they were seen to agree, they still do; that takes
        a handful of system calls.

        Raises:
            VendorError: as for `write`.
        """
        known = self._verified.get(step.claim_uid)
        if known is not None and None not in known and known == self._marks(step, behind):
            return True
        return await self._in_thread(lambda: self._is_intact(step, behind))

    async def remove(self, claim_uid: str) -> None:
        """Remove the claim's CDI file.

        Raises:
            SpecStoreError: it stays.
        """
        self._verified.pop(claim_uid, None)
        await self._in_thread(lambda: self._store.remove(claim_uid))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _write(self, step: WriteCdiSpec, behind: Behind) -> None:
        installation, numbers = self._vendor.installation(), self._numbers(step)
        self._store.write(step.claim_uid, self._spec(step, behind))
        self._verified[step.claim_uid] = (installation, numbers, behind.mark, self._store.mark(step.claim_uid))

    def _is_intact(self, step: WriteCdiSpec, behind: Behind) -> bool:
        marks = self._marks(step, behind)
        try:
            found = self._store.read(step.claim_uid)
        except SpecStoreError:
            return False  # whatever stands there is replaced; if it cannot be, the write says why
        wanted = self._spec(step, behind)
        intact = found == msgspec.structs.replace(wanted, cdi_version=minimum_version(wanted))
        if intact:
            self._verified[step.claim_uid] = marks
        return intact

    def _marks(self, step: WriteCdiSpec, behind: Behind) -> tuple[Hashable, ...]:
        return self._vendor.installation(), self._numbers(step), behind.mark, self._store.mark(step.claim_uid)

    def _numbers(self, step: WriteCdiSpec) -> Hashable:
        """Return what the device nodes of the GPUs are called now: after a driver reload it may be another GPU's."""
        return tuple(self._published(device).gpu.minor for device in step.devices)

    def _spec(self, step: WriteCdiSpec, behind: Behind) -> Spec:
        common = self._vendor.common_edits().merged(ContainerEdits(env=(f"{CLAIM_VARIABLE}={step.claim}",)))
        devices = tuple(self._device(one, behind) for one in step.devices)
        return Spec("", cdi_kind(self._vendor.driver_name), devices, common)

    def _device(self, device: CdiDevice, behind: Behind) -> Device:
        published = self._published(device)
        instance = behind.instances.get(device.cdi_name)
        instances = {} if instance is None else {published.name: instance}
        wanted = self._vendor.device_edits([published], instances)
        if device.foreign:
            wanted = wanted.merged(ContainerEdits(env=(f"{FOREIGN_VARIABLE}=1",)))
        share = behind.shares.get(device.cdi_name)
        if share is not None:
            wanted = wanted.merged(self._vendor.share_edits(published.gpu, share))
        return Device(device.cdi_name, wanted)
