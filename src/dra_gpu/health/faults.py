"""What is known to be wrong with GPUs, as it is kept over restarts. Pure.

Times are those of the wall clock, since they outlive the process and the boot. What is kept moves with a clock that is
set (`Part.moved`); what is of a later time than the present all the same counts as of the present (`Part.not_after`).
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dra_gpu.health.xids import Severity
from dra_gpu.inventory.model import MigPlacement


class FaultKind(enum.Enum):
    """What is wrong. The value is the name of the taint, behind the driver's domain."""

    XID = "xid"
    LOST = "gpu-lost"
    UNMONITORED = "unmonitored"  # no events: what happens is noticed by looking from time to time
    XID_NOTICE = "xid-notice"
    MEMORY = "memory-error"
    UNRESPONSIVE = "unresponsive"
    ACTION = "recovery-action"  # the driver wants something done
    PROBLEM = "hardware-problem"
    FABRIC = "fabric-problem"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        kind: what.
        severity: what follows.
        value: more about it, as a label's value: an XID, a recovery action.
        text: what it is and what to do, for a person.
        since: when it came, whole seconds, UTC.
        last: when it was last seen, UTC.
        epoch: the GPU's then.
        provisional: the epoch may end with a reset that came before the fault; the next look corrects it.
    """

    kind: FaultKind
    severity: Severity
    value: str
    text: str
    since: datetime
    last: datetime
    epoch: int
    provisional: bool = False

    @property
    def serious(self) -> bool:
        """Whether the GPU cannot be relied on because of it."""
        return self.severity > Severity.NOTICE


@dataclass(frozen=True, slots=True)
class Part:
    """How a whole GPU is, or one MIG instance.

    Attributes:
        faults: at most one of a kind, by kind.
        relapses: when it became sick again, within the last hour.
        recovered: when it last became well again.
        stays: it does not recover by itself any more.
        since: when its verdict last changed.
    """

    faults: tuple[Fault, ...] = ()
    relapses: tuple[datetime, ...] = ()
    recovered: datetime | None = None
    stays: bool = False
    since: datetime | None = None

    @property
    def serious(self) -> tuple[Fault, ...]:
        """What makes it unreliable."""
        return tuple(fault for fault in self.faults if fault.serious)

    @property
    def memorable(self) -> bool:
        """Whether a restart must not forget it."""
        return bool(self.faults or self.relapses) or self.recovered is not None or self.stays

    def fault(self, kind: FaultKind) -> Fault | None:
        """Return the fault of a kind."""
        return next((fault for fault in self.faults if fault.kind is kind), None)

    def having(self, fault: Fault) -> "Part":
        """Return it with this fault in place of the one of that kind."""
        return self.without(lambda other: other.kind is fault.kind, also=(fault,))

    def without(self, doomed: Callable[[Fault], bool], also: tuple[Fault, ...] = ()) -> "Part":
        """Return it without some faults, and with others."""
        kept = [*(fault for fault in self.faults if not doomed(fault)), *also]
        return replace(self, faults=tuple(sorted(kept, key=lambda fault: fault.kind.value)))

    def not_after(self, now: datetime) -> "Part":
        """Return it with nothing later than now: a clock that was set back must not keep a GPU sick for long."""
        return self._timed(lambda moment: min(moment, now))

    def moved(self, by: timedelta) -> "Part":
        """Return it after the clock was set: what is counted from stays as long ago, what others see stays as it is."""
        return self._timed(lambda moment: _shifted(moment, by))

    def _timed(self, change: Callable[[datetime], datetime]) -> "Part":
        return replace(
            self,
            faults=tuple(replace(fault, last=change(fault.last)) for fault in self.faults),
            relapses=tuple(map(change, self.relapses)),
            recovered=None if self.recovered is None else change(self.recovered),
        )


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance with something wrong.

    Attributes:
        placement: where it lies.
        gpu_instance: id of its GPU instance.
        part: how it is.
    """

    placement: MigPlacement
    gpu_instance: int
    part: Part


@dataclass(frozen=True, slots=True)
class GpuFaults:
    """What is known of one GPU.

    Attributes:
        gpu: its UUID.
        whole: of the GPU as such.
        instances: those that are sick for themselves, or were within the last hour.
        epoch: how many resets have been noticed; whatever is of an earlier epoch was before a reset.
        boot: id of the boot of the last look.
        reset_mark: the vendor's mark at the last look that had one.
        counter: the vendor's counter then.
        seen: it has been looked at since the process started.
        lost: the last look, or an event since, says that it is gone.
        gone: the last look did not find it; one that comes back was reset, or bound anew.
        doubtful: how many looks in a row it has not answered, or could not be read as it should.
    """

    gpu: str
    whole: Part = Part()
    instances: tuple[Instance, ...] = ()
    epoch: int = 0
    boot: str = ""
    reset_mark: str = ""
    counter: int | None = None
    seen: bool = False
    lost: bool = False
    gone: bool = False
    doubtful: int = 0

    @property
    def memorable(self) -> bool:
        """Whether a restart must not forget it."""
        parts = (self.whole, *(one.part for one in self.instances))
        return any(part.memorable for part in parts)

    def each(self, change: Callable[[Part], Part]) -> "GpuFaults":
        """Return it with every part changed; instances of which nothing is to be remembered are forgotten."""
        instances = (replace(one, part=change(one.part)) for one in self.instances)
        return replace(self, whole=change(self.whole), instances=tuple(one for one in instances if one.part.memorable))


def _shifted(moment: datetime, by: timedelta) -> datetime:
    """Return another moment; one of which no clock can tell stays as it is."""
    try:
        return moment + by
    except OverflowError:
        return moment
