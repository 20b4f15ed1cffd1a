"""The node as steps see it: one vendor's GPUs, their partitions, their shares on MPS, and the CDI files of claims."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.api.resource_v1 import Device as WireDevice
from dra_gpu.claims.node_partitions import NodePartitions
from dra_gpu.claims.node_shares import NodeShares
from dra_gpu.claims.node_specs import Behind, NodeSpecs
from dra_gpu.claims.partitions import PartitionHolder
from dra_gpu.claims.ports import SpecStore
from dra_gpu.claims.shares import MemoryBudget, MpsShare
from dra_gpu.claims.steps import CdiDevice, WriteCdiSpec
from dra_gpu.claims.time_slices import TimeSliceHolder
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.mps.service import MpsService
from dra_gpu.vendors.base import FailureKind, MemoryUse, Vendor, VendorError

Budgets = Callable[[str, str], Awaitable[Sequence[MemoryBudget]]]
Holders = Callable[[str], Awaitable[Sequence[PartitionHolder]]]
TimeSliceHolders = Callable[[str], Awaitable[Sequence[TimeSliceHolder]]]


async def _nobody(_gpu: str) -> tuple[TimeSliceHolder, ...]:
    return ()


class NodeMachine:
    """Carries out steps on this node.

    Args:
        vendor: the GPUs.
        specs: the CDI files.
        inventory: returns what the node offers at the moment of the call.
        budgets: returns the memory limits of a claim's pods on a GPU, from the journal.
        holders: returns who holds partitions of a GPU, from the journal.
        time_slices: returns who has set the time slice of a GPU that several claims have, from the journal.
        mps: the MPS service; None where sharing by MPS is not enabled.
        on_destroyed: told the UUID of the GPU and the place of each partition that was destroyed.
    """

    def __init__(
        self,
        vendor: Vendor,
        specs: SpecStore,
        inventory: Callable[[], Inventory],
        *,
        budgets: Budgets,
        holders: Holders,
        time_slices: TimeSliceHolders = _nobody,
        mps: MpsService | None = None,
        on_destroyed: Callable[[str, MigPlacement], None] = lambda _gpu, _placement: None,
    ) -> None:
        self._vendor = vendor
        self._inventory = inventory
        self._budgets = budgets
        self._holders = holders
        self._time_slices = time_slices
        self._partitions = NodePartitions(vendor, self._gpu, on_destroyed)
        self._shares = NodeShares(mps)
        self._specs = NodeSpecs(vendor, specs, self._published)

    def close(self) -> None:
        """Wait for running file work and end the threads."""
        self._specs.close()

    def has_gpu(self, gpu: str) -> bool:
        """Tell whether the GPU of that UUID is in this node and works."""
        return gpu in self._inventory().gpus

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

    def sharing(self, device: PublishedDevice) -> SharingAbility:
        """Tell what the GPU, or the partition, behind a device and its driver can do for shares."""
        return self._vendor.sharing(device.gpu, partition=device.placement is not None)

    def pod_cgroup(self, pod: str) -> str | None:
        """Return the cgroup of the pod of that UID; None where it was not found."""
        return self._vendor.pod_cgroup(pod)

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

    def in_mig_mode(self, gpu: Gpu) -> bool:
        """Tell whether a GPU is known to be in MIG mode; asks no GPU."""
        return self._partitions.in_mig_mode(gpu)

    def known_instance(self, gpu: str, placement: MigPlacement) -> MigInstance | None:
        """Return the instance of a partition as it was last seen; asks no GPU."""
        return self._partitions.known(gpu, placement)

    def doubt(self, gpu: str) -> None:
        """Look again at the partitions of a GPU when they are next asked for: somebody may have changed them."""
        self._partitions.doubt(gpu)

    async def partition_holders(self, gpu: str) -> Sequence[PartitionHolder]:
        """Return the claims of this boot that hold partitions of a GPU.

        Raises:
            JournalError: it could not be read.
        """
        return await self._holders(gpu)

    async def time_slice_holders(self, gpu: str) -> Sequence[TimeSliceHolder]:
        """Return the claims of this boot that have set the time slice of a GPU which several claims have at once.

        Raises:
            JournalError: it could not be read.
        """
        return await self._time_slices(gpu)

    async def mig_mode(self, gpu: str) -> bool:
        """Tell whether a GPU is in MIG mode now.

        Raises:
            VendorError: the GPU is gone, or it cannot be read.
        """
        return await self._partitions.mode(gpu)

    async def has_mig_mode(self, gpu: str, *, enabled: bool) -> bool:
        """Tell whether a GPU is in that mode; what this process has found out itself is not asked for again.

        Raises:
            VendorError: as for `mig_mode`.
        """
        return await self._partitions.has_mode(gpu, enabled=enabled)

    async def set_mig_mode(self, gpu: str, *, enabled: bool) -> None:
        """Put a GPU into MIG mode, or out of it.

        Raises:
            VendorError: the GPU is gone or cannot, or somebody keeps it open.
        """
        await self._partitions.set_mode(gpu, enabled=enabled)

    async def has_partition(self, gpu: str, placement: MigPlacement) -> bool:
        """Tell whether anything lies at exactly that place now, whole or not.

        Raises:
            VendorError: the GPU is gone, or it cannot be read.
        """
        return await self._partitions.lies(gpu, placement)

    async def offers_partition(self, gpu: str, placement: MigPlacement) -> bool:
        """Tell whether a partition can be used; what this process has found out itself is not asked for again.

        Raises:
            VendorError: as for `has_partition`.
        """
        return await self._partitions.whole(gpu, placement) is not None

    async def make_partition(self, gpu: str, placement: MigPlacement) -> None:
        """Have a partition.

        Raises:
            VendorError: the GPU is gone or cannot, or others lie there.
        """
        await self._partitions.make(gpu, placement)

    async def destroy_partition(self, gpu: str, placement: MigPlacement) -> None:
        """Destroy a partition; one that is not there is as good.

        Raises:
            VendorError: the GPU is gone, or a process uses the partition.
        """
        await self._partitions.destroy(gpu, placement)

    @property
    def serves_mps(self) -> bool:
        """Whether there is an MPS service to ask."""
        return self._shares.served

    async def share(self, gpu: str, share: MpsShare, placement: MigPlacement | None = None) -> None:
        """Have a share of a GPU, or of a partition of it, on MPS.

        Raises:
            MpsError: the service refused, or its daemon limits clients in another way than was planned.
            VendorError: the GPU is gone, or the partition is.
        """
        await self._shares.have(await self._device(gpu, placement), share)

    async def shared(self, gpu: str, share: MpsShare, placement: MigPlacement | None = None) -> bool:
        """Tell whether a share is there with its limits.

        Raises:
            MpsError: the service did not answer.
            VendorError: the GPU is gone, or cannot be read.
        """
        if placement is None:
            return await self._shares.there(gpu, share)
        instance = await self._partitions.whole(gpu, placement)
        return instance is not None and await self._shares.there(instance.uuid or "", share)

    async def resize_share(self, gpu: str, share: MpsShare, placement: MigPlacement | None = None) -> None:
        """Give a share on MPS other limits; one that is not there is made.

        Raises:
            MpsError: BUSY while clients are attached whose limits would change; or as for `share`.
            VendorError: as for `share`.
        """
        await self._shares.resize(await self._device(gpu, placement), share)

    async def share_clients(self, gpu: str, name: str, placement: MigPlacement | None = None) -> Sequence[int]:
        """Return the processes that are attached to a share.

        Raises:
            MpsError: the service, or its daemon, did not answer.
            VendorError: the GPU is gone, or the partition is.
        """
        return await self._shares.clients(await self._device(gpu, placement), name)

    async def memory_use(self, gpu: str, cgroup: str) -> MemoryUse:
        """Return the device memory that a cgroup uses.

        Raises:
            CgroupGoneError: there is no such cgroup.
            VendorError: the GPU is gone or cannot, or the driver did not answer.
        """
        return await self._vendor.memory_use(self._gpu(gpu), cgroup)

    async def environments(self, pods: Collection[str]) -> Mapping[int, Mapping[str, str]]:
        """Return what each process of some pods was started with, by its id."""
        return await asyncio.to_thread(self._vendor.environments, pods)

    def command(self, pid: int) -> str:
        """Return how a process was started, shortened; empty where it has ended."""
        return self._vendor.command(pid)

    async def unshare(self, gpu: str, name: str, placement: MigPlacement | None = None) -> None:
        """Give a share up; one that is not there is as good.

        Raises:
            MpsError: it may still be there.
        """
        known = None if placement is None else self._partitions.known(gpu, placement)
        if placement is None or (known is not None and known.uuid is not None):
            await self._shares.give_up(gpu if known is None else known.uuid or gpu, name)
            return
        # The partition, and with it its UUID, may be gone; the name is unique on the node.
        for device in [device for device, one in await self._shares.all() if one == name]:
            await self._shares.give_up(device, name)

    async def shares(self) -> tuple[tuple[str, str], ...]:
        """Return all shares on MPS by the UUID of their GPU or partition, and name; none where there is no service.

        Raises:
            MpsError: the service did not answer.
        """
        return await self._shares.all()

    async def write_spec(self, step: WriteCdiSpec) -> None:
        """Write the claim's CDI file.

        Raises:
            VendorError: a GPU or partition is gone, or the driver installation is incomplete.
            MpsError: a share is not to be had.
            SpecStoreError: the file cannot be written.
        """
        await self._specs.write(step, await self._behind(step))

    async def spec_intact(self, step: WriteCdiSpec) -> bool:
        """Tell whether the claim's CDI file has the content it would be written with now.

        Raises:
            VendorError, MpsError: as for `write_spec`, but for a partition that is gone.
        """
        for device in step.devices:
            if device.placement is not None and await self._partitions.whole(device.gpu, device.placement) is None:
                return False
        return await self._specs.intact(step, await self._behind(step))

    async def remove_spec(self, claim_uid: str) -> None:
        """Remove the claim's CDI file.

        Raises:
            SpecStoreError: it stays.
        """
        await self._specs.remove(claim_uid)

    async def _behind(self, step: WriteCdiSpec) -> Behind:
        """Return what stands behind the devices of a file."""
        shares, instances = {}, {}
        for device in step.devices:
            partition = None
            if device.placement is not None:
                instance = instances[device.cdi_name] = await self._partitions.instance(device.gpu, device.placement)
                partition = instance.uuid
            if device.share is not None:
                place = partition or device.gpu
                shares[device.cdi_name] = await self._shares.edits(place, device.share, partition)
        return Behind(shares, instances)

    async def _device(self, gpu: str, placement: MigPlacement | None) -> str:
        """Return the UUID by which MPS knows a GPU or a partition."""
        if placement is None:
            return self._gpu(gpu).uuid  # the service would try in vain to start a daemon on a GPU that is gone
        return (await self._partitions.instance(gpu, placement)).uuid or ""

    def _gpu(self, gpu: str) -> Gpu:
        inventory = self._inventory()
        found = inventory.gpus.get(gpu)
        if found is not None:
            return found
        sick = next((one for one in inventory.sick if one.uuid == gpu), None)
        if sick is not None:
            raise VendorError(FailureKind.UNRESPONSIVE, f"GPU {gpu} cannot be used: {sick.reason}")
        unnamed = next((one for one in inventory.sick if one.uuid is None), None)
        if unnamed is not None or not (inventory.gpus or inventory.sick):
            # As for reconciliation: only who knows every GPU of the node can say that one is gone.
            why = "no GPU is seen" if unnamed is None else f"{unnamed.where}: {unnamed.reason}"
            raise VendorError(
                FailureKind.UNRESPONSIVE, f"GPU {gpu} is not seen now, and may be there all the same: {why[:400]}"
            )
        raise VendorError(
            FailureKind.LOST,
            f"GPU {gpu} is not among the working GPUs of this node: it was removed, or needs a reset (see its events)",
        )

    def _published(self, device: CdiDevice) -> PublishedDevice:
        """Return the device by its GPU: a view may not be published any more while claims still hold it."""
        found = self._inventory().devices.get(device.device)
        if found is not None and found.gpu.uuid == device.gpu:
            return found
        wire = WireDevice(name=device.device)
        return PublishedDevice(device.device, device.view, self._gpu(device.gpu), wire, device.placement)
