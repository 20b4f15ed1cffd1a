"""What is known of the health of all GPUs of a node, and who is told when it changes. No I/O.

Looks and events overlap: a look is taken only if no later one was, and proves nothing good when something serious was
reported while it was under way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

import structlog

from dra_gpu.health import handover
from dra_gpu.health.faults import Fault, GpuFaults
from dra_gpu.health.policy import HealthPolicy
from dra_gpu.health.state import GpuHealth
from dra_gpu.health.verdicts import Evict, told
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.vendors.health import HealthEvent, HealthProbe

Listener = Callable[[], None]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """A look that is under way.

    Attributes:
        number: of the look; later ones have a larger one.
        serious: by GPU, how many serious things had been reported when it began.
    """

    number: int
    serious: Mapping[str, int]


class HealthLedger:
    """Implements `health.state.HealthStates`.

    Args:
        driver: our driver's name.
        boot_id: of this boot.
        policy: judges.
        evict: whose pods are evicted.
        now: the wall clock.
        jumped: returns by how much that clock was set since it was asked before.
    """

    def __init__(
        self,
        driver: str,
        boot_id: str,
        policy: HealthPolicy,
        evict: Evict,
        now: Callable[[], datetime],
        jumped: Callable[[datetime], timedelta] = lambda _now: timedelta(),
    ) -> None:
        self._driver = driver
        self._boot_id = boot_id
        self._policy = policy
        self._evict = evict
        self._clock = now
        self._jumped = jumped
        self._faults: dict[str, GpuFaults] = {}
        self._present: dict[str, None] = {}  # an ordered set
        self._states: Mapping[str, GpuHealth] = MappingProxyType({})
        self._listeners: list[Listener] = []
        self._serious: dict[str, int] = {}
        self._looks = 0
        self._taken: dict[str, int] = {}

    def states(self) -> Mapping[str, GpuHealth]:
        """See `health.state.HealthStates.states`."""
        return self._states

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See `health.state.HealthStates.subscribe`."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def faults(self) -> tuple[GpuFaults, ...]:
        """Return what is known of every GPU, of those, too, that were there in earlier boots."""
        return tuple(self._faults.values())

    def restore(self, gpus: Iterable[GpuFaults]) -> None:
        """Take what an earlier run knew, or another instance, beside what is known already."""
        for gpu in gpus:
            known = self._faults.get(gpu.gpu)
            self._faults[gpu.gpu] = handover.resumed(gpu) if known is None else handover.joined(gpu, known)
        self._tell()

    def present(self, gpus: Iterable[str]) -> None:
        """Take note of GPUs that are there."""
        self._present |= dict.fromkeys(gpus)
        self._tell()

    def happened(self, event: HealthEvent, placement: MigPlacement | None) -> None:
        """Take an event; `placement` is where the instance lies that it is confined to."""
        now = self._now()
        before = self._of(event.gpu)
        after = self._policy.happened(before, event, placement, now)
        if _serious(before) != _serious(after):
            self._serious[event.gpu] = self._serious.get(event.gpu, 0) + 1
        self._keep(after)

    def begin(self) -> Look:
        """Begin a look."""
        self._looks += 1
        return Look(self._looks, dict(self._serious))

    def take(self, look: Look, probes: Sequence[HealthProbe]) -> None:
        """Take what a look found."""
        now = self._now()
        for probe in probes:
            if self._taken.get(probe.gpu, 0) > look.number:
                continue
            self._taken[probe.gpu] = look.number
            current = look.serious.get(probe.gpu, 0) == self._serious.get(probe.gpu, 0)
            gpu = self._policy.looked(self._of(probe.gpu), probe, self._boot_id, now, current=current)
            self._faults[probe.gpu] = gpu
        self._tell()

    def monitored(self, by_events: Iterable[str]) -> None:
        """Take note of which GPUs' events are seen; the others are only looked at."""
        seen, now = frozenset(by_events), self._now()
        for uuid in self._present:
            gpu = self._of(uuid)
            if not gpu.lost:
                self._faults[uuid] = self._policy.monitored(gpu, now, by_events=uuid in seen)
        self._tell()

    def clear(self, gpus: Iterable[str]) -> tuple[str, ...]:
        """Call GPUs well because a person says so; returns those that are known."""
        now = self._now()
        cleared = tuple(uuid for uuid in dict.fromkeys(gpus) if uuid in self._faults)
        for uuid in cleared:
            self._faults[uuid] = self._policy.cleared(self._faults[uuid], now)
            self._serious[uuid] = self._serious.get(uuid, 0) + 1  # a look that began before must not undo it
        self._tell()
        return cleared

    def was_reset(self, gpu: str) -> None:
        """Take note of a GPU that has just been reset: what a look need not find out by itself."""
        known = self._of(gpu)
        self._serious[gpu] = self._serious.get(gpu, 0) + 1  # a look that began before proves nothing
        self._faults[gpu] = replace(known, epoch=known.epoch + 1)

    def destroyed(self, gpu: str, placement: MigPlacement) -> None:
        """Forget an instance that was destroyed: the next one at that place is another one."""
        known = self._faults.get(gpu)
        if known is not None:
            self._keep(self._policy.without_instance(known, placement))

    def _now(self) -> datetime:
        """Return the present, and move what is known with a clock that was set."""
        now = self._clock()
        jump = self._jumped(now)
        if jump:
            _log.warning("the clock was set: hold-offs go on as they were", seconds=jump.total_seconds())
            self._faults = {uuid: gpu.each(lambda part: part.moved(jump)) for uuid, gpu in self._faults.items()}
        return now

    def _of(self, uuid: str) -> GpuFaults:
        return self._faults.get(uuid) or GpuFaults(uuid)

    def _keep(self, gpu: GpuFaults) -> None:
        self._faults[gpu.gpu] = gpu
        if self._states.get(gpu.gpu) != told(gpu, self._driver, self._evict):  # thousands a second may change nothing
            self._tell()

    def _tell(self) -> None:
        states = {uuid: told(self._of(uuid), self._driver, self._evict) for uuid in self._present}
        if states == self._states:
            return
        self._states = MappingProxyType(states)
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - one output that fails must not cost the others
                _log.error("a change of health could not be told", exc_info=error)


def _serious(gpu: GpuFaults) -> tuple[tuple[Fault, ...], ...]:
    return (gpu.whole.serious, *(one.part.serious for one in gpu.instances))
