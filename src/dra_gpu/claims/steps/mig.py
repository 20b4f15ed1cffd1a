"""Partitions of a GPU: its MIG mode, and the instance that a claim uses.

Several claims have partitions of one GPU, and several share one partition. So the first changes the node and the last
changes it back; who else is there, the journal tells. A partition that was there before any claim of ours, or a mode
that was set before, is the administrator's: it is used and left as it was.
"""

import asyncio
from functools import partial

import structlog

from dra_gpu.claims.retry import retrying
from dra_gpu.claims.steps.form import Form, Place
from dra_gpu.claims.steps.machine import Machine
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.vendors.base import FailureKind, VendorError

LET_GO_SECONDS = 1.0  # a look through NVML takes tens of milliseconds; other claims of the GPU wait meanwhile

_log = structlog.get_logger(__name__)


class SetMigMode(Form, frozen=True, tag="setMigMode"):
    """Have a GPU, whose mode changes without a reset, in MIG mode, or out of it.

    Out of it is where a GPU rests: what a partition's claim has turned on, its last one turns off again, but what a
    whole GPU's claim has turned off stays so.

    Attributes:
        gpu: UUID of the GPU.
        enabled: the mode to have.
        claim_uid: the claim.
        former: the mode before the first of the claims that have partitions of the GPU now; None where nothing is to
            be restored.
    """

    gpu: str
    enabled: bool
    claim_uid: str
    former: bool | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it takes effect."""
        return ((self.gpu, 0),)

    async def observed(self, machine: Machine) -> "SetMigMode":
        """Return the step with the mode that the last claim is to restore."""
        if not self.enabled:
            return self
        for holder in await machine.partition_holders(self.gpu):
            if holder.former_mode is not None:
                return SetMigMode(self.gpu, self.enabled, self.claim_uid, holder.former_mode)
        return SetMigMode(self.gpu, self.enabled, self.claim_uid, await machine.mig_mode(self.gpu))

    async def apply(self, machine: Machine) -> None:
        """Set the mode."""
        await machine.set_mig_mode(self.gpu, enabled=self.enabled)

    async def undo(self, machine: Machine) -> None:
        """Restore the former mode with the last claim that has a partition.

        Whoever has the GPU open for a moment only, as everybody has who opens NVML (this driver's own MPS service for
        another GPU, say), is waited for. A GPU that somebody keeps open, or on which an administrator has made
        partitions since, stays as it is: no claim is kept from ending by it, and whoever needs the other mode sets it.
        """
        if self.former is None or self.former is self.enabled:
            return
        if any(holder.uid != self.claim_uid for holder in await machine.partition_holders(self.gpu)):
            return
        until = asyncio.get_running_loop().time() + LET_GO_SECONDS
        try:
            await retrying(partial(self._restore, machine, self.former), _in_use, until)
        except VendorError as error:
            _log.info("the GPU stays in the MIG mode it has", gpu=self.gpu, enabled=self.enabled, reason=str(error))

    async def _restore(self, machine: Machine, former: bool) -> None:  # noqa: FBT001 - a mode
        if await machine.mig_mode(self.gpu) is self.enabled:
            await machine.set_mig_mode(self.gpu, enabled=former)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the GPU is in that mode."""
        return await machine.has_mig_mode(self.gpu, enabled=self.enabled)


class CreateMigInstance(Form, frozen=True, tag="createMigInstance"):
    """Have a partition of a GPU.

    Attributes:
        gpu: UUID of the GPU.
        placement: the partition.
        claim_uid: the claim.
        foreign: it was there, and no claim of ours had it: never destroyed.
    """

    gpu: str
    placement: MigPlacement
    claim_uid: str
    foreign: bool = False

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it takes effect."""
        return ((self.gpu, self.placement.units),)

    async def observed(self, machine: Machine) -> "CreateMigInstance":
        """Return the step that knows whose the partition is."""
        units = self.placement.units
        holders = [one for one in await machine.partition_holders(self.gpu) if one.units == units]
        if holders:
            foreign = any(holder.foreign for holder in holders)
        else:
            foreign = await machine.has_partition(self.gpu, self.placement)
        return CreateMigInstance(self.gpu, self.placement, self.claim_uid, foreign)

    async def apply(self, machine: Machine) -> None:
        """Make the partition, or see that the administrator's is there."""
        if not self.foreign:
            await self._make(machine)
        elif not await machine.offers_partition(self.gpu, self.placement):
            raise VendorError(
                FailureKind.REFUSED,
                f"GPU {self.gpu}: its partition of {self.placement.size} memory units from {self.placement.start} was "
                "made by an administrator and cannot be used any more: recreate the pod to get another device",
            )

    async def _make(self, machine: Machine) -> None:
        try:
            await machine.make_partition(self.gpu, self.placement)
        except VendorError:
            if await machine.has_mig_mode(self.gpu, enabled=True):
                raise
            # The mode that `SetMigMode` knew of was changed since: by another instance of this driver, or by hand.
            await machine.set_mig_mode(self.gpu, enabled=True)
            await machine.make_partition(self.gpu, self.placement)

    async def undo(self, machine: Machine) -> None:
        """Destroy the partition with the last claim that uses it."""
        if self.foreign:
            return
        users = {one.uid for one in await machine.partition_holders(self.gpu) if one.units == self.placement.units}
        if not users - {self.claim_uid}:
            await machine.destroy_partition(self.gpu, self.placement)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the partition can be used."""
        return await machine.offers_partition(self.gpu, self.placement)


def _in_use(error: Exception) -> bool:
    return isinstance(error, VendorError) and error.kind is FailureKind.IN_USE
