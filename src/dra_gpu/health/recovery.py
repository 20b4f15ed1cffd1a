"""When a GPU is well again. Pure.

At once, when the driver wants nothing done and the GPU was reset since, which a reboot or a reload of the driver does
as well. Otherwise after a hold-off in which nothing serious happened, with a good look at its end. Who becomes sick
again too often stays so until a person has looked.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dra_gpu.health.faults import Fault, FaultKind, Part


@dataclass(frozen=True, slots=True)
class RecoveryRules:
    """When a GPU is well again.

    Attributes:
        hold_off: how long nothing serious must have happened to one that was not reset.
        window: for how long a relapse counts.
        most_relapses: with so many in the window it stays sick.
    """

    hold_off: timedelta = timedelta(minutes=10)
    window: timedelta = timedelta(hours=1)
    most_relapses: int = 3

    def sickened(self, part: Part, now: datetime) -> Part:
        """Return a part that was well and has become sick now."""
        relapses = self._recent(part.relapses, now)
        if part.recovered is not None and now - part.recovered < self.window:
            relapses = (*relapses, now)
        return replace(part, relapses=relapses, since=now, stays=len(relapses) >= self.most_relapses)

    def recovered(self, part: Part, epoch: int, now: datetime) -> Part:
        """Return a part after a good look.

        Args:
            part: how it was before.
            epoch: the GPU's of now.
            now: the present.
        """
        if part.stays:
            return part
        left = [fault for fault in part.serious if fault.epoch >= epoch]
        if left and now - max(fault.last for fault in left) >= self.hold_off:
            left = []
        well = part.without(lambda fault: fault.serious and fault not in left)
        if not part.serious or left:
            return well
        return replace(well, recovered=now, since=now)

    def faded(self, part: Part, epoch: int, now: datetime) -> Part:
        """Return a part without what has lost its meaning: old notices, relapses that do not count any more."""
        faded = part.without(lambda fault: self._is_old(fault, epoch, now))
        recovered = part.recovered if part.recovered is None or now - part.recovered < self.window else None
        relapses = part.relapses if part.stays else self._recent(part.relapses, now)
        return replace(faded, relapses=relapses, recovered=recovered)

    def _recent(self, moments: tuple[datetime, ...], now: datetime) -> tuple[datetime, ...]:
        return tuple(moment for moment in moments if now - moment < self.window)[-self.most_relapses :]

    def _is_old(self, fault: Fault, epoch: int, now: datetime) -> bool:
        if fault.serious or fault.kind is FaultKind.UNMONITORED:
            return False
        return fault.epoch < epoch or now - fault.last >= self.hold_off
