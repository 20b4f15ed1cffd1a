"""How long a process runs on a GPU before another one gets it."""

import msgspec

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.steps.form import Form, Place
from dra_gpu.claims.steps.machine import Machine
from dra_gpu.claims.time_slices import TimeSliceHolder


class SetTimeSlice(Form, frozen=True, tag="setTimeSlice"):
    """Set how long a process runs on a GPU before another one gets it.

    Several claims may have one GPU, all with the same interval: the first sets it, the last restores what was before.

    Attributes:
        gpu: UUID of the GPU.
        interval: what the claim asked for.
        former: what was set before; None where it could not be read, and then undone to the default.
        claim_uid: the claim, where others may have the GPU, too; empty where it is the claim's alone.
    """

    gpu: str
    interval: TimeSliceInterval
    former: TimeSliceInterval | None = None
    claim_uid: str = ""

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it takes effect."""
        return ((self.gpu, 0),)

    async def observed(self, machine: Machine) -> "SetTimeSlice":
        """Return the step with the setting that the last claim is to restore."""
        for holder in await self._others(machine):
            return msgspec.structs.replace(self, former=holder.former)
        return msgspec.structs.replace(self, former=await machine.time_slice(self.gpu))

    async def apply(self, machine: Machine) -> None:
        """Set the interval."""
        await machine.set_time_slice(self.gpu, self.interval)

    async def undo(self, machine: Machine) -> None:
        """Restore the former interval, unless somebody else has changed it since: then it is not ours.

        What other claims still need stays.
        """
        if await self._others(machine):
            return
        present = await machine.time_slice(self.gpu)
        if present is not None and present is not self.interval:
            return
        former = self.former or TimeSliceInterval.DEFAULT
        if present is not former:
            await machine.set_time_slice(self.gpu, former)

    async def _others(self, machine: Machine) -> list[TimeSliceHolder]:
        if not self.claim_uid:
            return []
        return [one for one in await machine.time_slice_holders(self.gpu) if one.uid != self.claim_uid]

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the interval is in force; one that cannot be read counts as not."""
        return await machine.time_slice(self.gpu) is self.interval
