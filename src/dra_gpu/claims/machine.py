"""The node as steps see it: one vendor's GPUs, their shares on MPS, and the CDI files of claims.

CDI files are written and read on a small pool of threads owned by this object, so that neither a slow disk nor a look
into the driver installation stops the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.api.resource_v1 import Device as WireDevice
from dra_gpu.cdi.spec import ContainerEdits, Device, Spec, minimum_version
from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.claims.ports import SpecStore
from dra_gpu.claims.shares import MemoryBudget, MpsShare
from dra_gpu.claims.steps import CLAIM_VARIABLE, CdiDevice, WriteCdiSpec, cdi_kind
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import Gpu
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.mps.service import MpsError, MpsErrorKind, MpsService, Share
from dra_gpu.vendors.base import FailureKind, ShareEdits, Vendor, VendorError

_THREADS = 4  # writes of small files to tmpfs: more threads only wait for the interpreter

T = TypeVar("T")
Budgets = Callable[[str, str], Awaitable[Sequence[MemoryBudget]]]
Edits = Mapping[str, ShareEdits]


class NodeMachine:
    """Carries out steps on this node.

    Args:
        vendor: the GPUs.
        specs: the CDI files.
        inventory: returns what the node offers at the moment of the call.
        budgets: returns the memory limits of a claim's pods on a GPU, from the journal.
        mps: the MPS service; None where sharing by MPS is not enabled.
    """

    def __init__(
        self,
        vendor: Vendor,
        specs: SpecStore,
        inventory: Callable[[], Inventory],
        *,
        budgets: Budgets,
        mps: MpsService | None = None,
    ) -> None:
        self._vendor = vendor
        self._specs = specs
        self._inventory = inventory
        self._budgets = budgets
        self._mps = mps
        self._shares: dict[tuple[str, str], Share] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cdi")
        self._verified: dict[str, tuple[Hashable, ...]] = {}

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

    @property
    def serves_mps(self) -> bool:
        """Whether there is an MPS service to ask."""
        return self._mps is not None

    def sharing(self, gpu: Gpu) -> SharingAbility:
        """Tell what a GPU and its driver can do for shares."""
        return self._vendor.sharing(gpu)

    def pod_cgroup(self, pod: str) -> str | None:
        """Return the cgroup of the pod of that UID; None where it was not found."""
        return self._vendor.pod_cgroup(pod)

    async def share(self, gpu: str, share: MpsShare) -> None:
        """Have a share of a GPU on MPS.

        Raises:
            MpsError: the service refused, or its daemon limits clients in another way than was planned.
            VendorError: the GPU is gone.
        """
        self._gpu(gpu)  # the service would try in vain to start a daemon on a GPU that is gone
        made = await self._service(gpu).share(gpu, share.name, share.limits)
        if made.protocol is not share.protocol:  # the step has failed, and undoing it gives the share up
            raise MpsError(
                MpsErrorKind.UNSUPPORTED,
                f"the MPS daemon of GPU {gpu} works with protocol `{made.protocol.value}`, but its driver offers "
                f"`{share.protocol.value}`: install `dra-gpu mps` and the node plugin in the same release, and restart "
                "the daemon once its GPU is free",
            )
        self._shares[gpu, share.name] = made

    async def shared(self, gpu: str, share: MpsShare) -> bool:
        """Tell whether a share is there with its limits.

        Raises:
            MpsError: the service did not answer.
        """
        for known in await self._service(gpu).clients(gpu):
            for one in known.shares:
                if known.daemon.gpu == gpu and one.name == share.name:
                    self._shares[gpu, share.name] = one
                    return one.limits == share.limits
        return False

    async def unshare(self, gpu: str, name: str) -> None:
        """Give a share up; one that is not there is as good.

        Raises:
            MpsError: it may still be there.
        """
        self._shares.pop((gpu, name), None)
        if self._mps is not None:  # a service that was taken away has ended its daemons itself
            await self._mps.stop(gpu, name)

    async def shares(self) -> tuple[tuple[str, str], ...]:
        """Return all shares on MPS by GPU and name; none where there is no service.

        Raises:
            MpsError: the service did not answer.
        """
        if self._mps is None:
            return ()
        return tuple((known.daemon.gpu, one.name) for known in await self._mps.clients() for one in known.shares)

    async def memory_budgets(self, claim_uid: str, gpu: str) -> Sequence[MemoryBudget]:
        """Return the limits that the cgroups of a claim's pods should have on a GPU.

        Raises:
            JournalError: it could not be read.
        """
        return await self._budgets(claim_uid, gpu)

    async def memory_limit(self, gpu: str, cgroup: str) -> int | None:
        """Return a cgroup's limit on a GPU in bytes; None where there is none.

        Raises:
            CgroupGoneError: there is no such cgroup.
            VendorError: the GPU is gone or cannot, or the driver did not answer.
        """
        return await self._vendor.memory_limit(self._gpu(gpu), cgroup)

    async def set_memory_limit(self, gpu: str, cgroup: str, limit: int | None) -> None:
        """Set a cgroup's limit on a GPU, in bytes; None takes it away.

        Raises:
            CgroupGoneError: there is no such cgroup.
            VendorError: the GPU is gone or cannot, or the driver did not answer.
        """
        await self._vendor.set_memory_limit(self._gpu(gpu), cgroup, limit)

    async def write_spec(self, step: WriteCdiSpec) -> None:
        """Write the claim's CDI file.

        Raises:
            VendorError: a GPU is gone, or the driver installation is incomplete.
            MpsError: a share is not to be had.
            SpecStoreError: the file cannot be written.
        """
        edits = await self._share_edits(step)
        await self._in_thread(lambda: self._write(step, edits))

    async def spec_intact(self, step: WriteCdiSpec) -> bool:
        """Tell whether the claim's CDI file has the content it would be written with now.

        Making that anew takes a walk through the driver installation. As long as neither the installation nor the file
        has changed since they were seen to agree, they still do; that takes a handful of system calls.

        Raises:
            VendorError, MpsError: as for `write_spec`.
        """
        edits = await self._share_edits(step)
        known = self._verified.get(step.claim_uid)
        if known is not None and None not in known and known == self._marks(step.claim_uid, edits):
            return True
        return await self._in_thread(lambda: self._is_intact(step, edits))

    async def remove_spec(self, claim_uid: str) -> None:
        """Remove the claim's CDI file.

        Raises:
            SpecStoreError: it stays.
        """
        self._verified.pop(claim_uid, None)
        await self._in_thread(lambda: self._specs.remove(claim_uid))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _write(self, step: WriteCdiSpec, edits: Edits) -> None:
        installation = self._vendor.installation()
        self._specs.write(step.claim_uid, self._spec(step, edits))
        self._verified[step.claim_uid] = (installation, tuple(edits.items()), self._specs.mark(step.claim_uid))

    def _is_intact(self, step: WriteCdiSpec, edits: Edits) -> bool:
        marks = self._marks(step.claim_uid, edits)
        try:
            found = self._specs.read(step.claim_uid)
        except SpecStoreError:
            return False  # whatever stands there is replaced; if it cannot be, the write says why
        wanted = self._spec(step, edits)
        intact = found == msgspec.structs.replace(wanted, cdi_version=minimum_version(wanted))
        if intact:
            self._verified[step.claim_uid] = marks
        return intact

    def _marks(self, claim_uid: str, edits: Edits) -> tuple[Hashable, ...]:
        return self._vendor.installation(), tuple(edits.items()), self._specs.mark(claim_uid)

    def _spec(self, step: WriteCdiSpec, edits: Edits) -> Spec:
        common = self._vendor.common_edits().merged(ContainerEdits(env=(f"{CLAIM_VARIABLE}={step.claim}",)))
        return Spec(
            "", cdi_kind(self._vendor.driver_name), tuple(self._cdi_device(one, edits) for one in step.devices), common
        )

    def _cdi_device(self, device: CdiDevice, edits: Edits) -> Device:
        published = self._published(device)
        wanted = self._vendor.device_edits([published])
        share = edits.get(device.cdi_name)
        if share is not None:
            wanted = wanted.merged(self._vendor.share_edits(published.gpu, share))
        return Device(device.cdi_name, wanted)

    async def _share_edits(self, step: WriteCdiSpec) -> Edits:
        """Return what containers need to know of the shares behind a file's devices, by CDI name."""
        return {
            device.cdi_name: await self._edits_of(device.gpu, device.share)
            for device in step.devices
            if device.share is not None
        }

    async def _edits_of(self, gpu: str, share: MpsShare) -> ShareEdits:
        if (gpu, share.name) not in self._shares and not await self.shared(gpu, share):
            await self.share(gpu, share)
        known = self._shares[gpu, share.name]
        limits = share.limits
        return ShareEdits(
            known.pipe_directory,
            known.shm_directory,
            share.protocol,
            limits.compute_percent,
            limits.memory_bytes,
            limits.low_priority,
        )

    def _service(self, gpu: str) -> MpsService:
        if self._mps is None:
            raise MpsError(
                MpsErrorKind.UNAVAILABLE,
                f"GPU {gpu} is shared by MPS, but this node plugin runs without the MPS service (`dra-gpu mps`): "
                "enable it again until no claim uses it",
            )
        return self._mps

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
