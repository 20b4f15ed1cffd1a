"""How long a process runs on a GPU before another one gets it."""

import msgspec

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.steps.form import Form, Place
from dra_gpu.claims.steps.machine import Machine


class SetTimeSlice(Form, frozen=True, tag="setTimeSlice"):
    """Set how long a process runs on a GPU before another one gets it.

    Attributes:
        gpu: UUID of the GPU.
        interval: what the claim asked for.
        former: what was set before; None where it could not be read, and then undone to the default.
    """

    gpu: str
    interval: TimeSliceInterval
    former: TimeSliceInterval | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it takes effect."""
        return ((self.gpu, 0),)

    async def observed(self, machine: Machine) -> "SetTimeSlice":
        """Return the step with the setting it is going to replace."""
        return msgspec.structs.replace(self, former=await machine.time_slice(self.gpu))

    async def apply(self, machine: Machine) -> None:
        """Set the interval."""
        await machine.set_time_slice(self.gpu, self.interval)

    async def undo(self, machine: Machine) -> None:
        """Restore the former interval, unless somebody else has changed it since: then it is not ours."""
        present = await machine.time_slice(self.gpu)
        if present is not None and present is not self.interval:
            return
        former = self.former or TimeSliceInterval.DEFAULT
        if present is not former:
            await machine.set_time_slice(self.gpu, former)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the interval is in force; one that cannot be read counts as not."""
        return await machine.time_slice(self.gpu) is self.interval
