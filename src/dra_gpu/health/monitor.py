"""Watches the GPUs of a node.

Two loops around the ledger: events are taken as they come; looks follow every few seconds, and at once after an event.
What changes is told at once, and told as kept when it is on disk: a taint that others see is one that a restart knows.
A disk that takes long is not waited for.

Promises: however much a GPU reports, it is looked at once a second at most; a vendor that cannot watch is asked again
after growing pauses, and its GPUs are looked at meanwhile; errors are told once and never raised; the disk is written
when others see a change, and otherwise once a minute at most.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from dra_gpu.health.ledger import HealthLedger
from dra_gpu.health.state import GpuHealth
from dra_gpu.health.store import HealthStore, HealthStoreError, Remembered
from dra_gpu.inventory.model import Gpu, MigPlacement
from dra_gpu.vendors.health import HealthEvent, HealthEventKind, HealthProbe

_log = structlog.get_logger(__name__)


class WatchedVendor(Protocol):
    """What of a vendor is needed here; see `vendors.base.Vendor`."""

    async def watch_health(
        self,
        gpus: Sequence[Gpu],
        report: Callable[[HealthEvent], None],
        ready: Callable[[Sequence[str]], None],
    ) -> None:
        """Report what happens to GPUs, until cancelled."""

    async def probe_health(self, gpus: Sequence[Gpu]) -> tuple[HealthProbe, ...]:
        """Look at GPUs."""


@dataclass(frozen=True, slots=True)
class MonitorTimes:
    """Seconds, and their reasons.

    Attributes:
        period: between two looks at all GPUs; a reset is noticed within it.
        soon: between two looks that events ask for.
        first_wait, longest_wait: before a watch that ended is started again.
        steady: a watch that lasted so long was a good one: the next wait is short again.
        blind: how long no GPU is called unmonitored although the watch has ended.
        keep: between two writes of what changes nothing for others.
        patience: how long a change waits for the disk before it counts as kept.
        strays: between two lines about errors that belong to nobody.
    """

    period: float = 5.0
    soon: float = 1.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    steady: float = 60.0
    blind: float = 30.0
    keep: float = 60.0
    patience: float = 0.25
    strays: float = 60.0


@dataclass(slots=True)
class HealthMonitor:
    """Keeps a ledger of GPUs up to date.

    Attributes:
        vendor: reports.
        ledger: takes what is reported.
        store: remembers over restarts.
        gpus: returns the GPUs of now, lost ones included.
        instance: returns where the instance of these ids lies (GPU's UUID, GPU instance, compute instance); None where
            there is none.
        may_write: whether this instance of the plugin is the one that writes. Only that one waits for events, for which
            GPUs are held open: two instances must not keep each other from partitioning or resetting one.
        on_event: told each event, for counting.
        on_change: called when a GPU may have been lost or come back: it is time to look who is there.
        on_kept: told the health of all GPUs that a restart knows, after each change.
        times: how often what happens.
    """

    vendor: WatchedVendor
    ledger: HealthLedger
    store: HealthStore
    gpus: Callable[[], Sequence[Gpu]]
    instance: Callable[[str, int, int | None], MigPlacement | None]
    may_write: Callable[[], bool] = lambda: True
    on_event: Callable[[HealthEvent], None] = lambda _event: None
    on_change: Callable[[], None] = lambda: None
    on_kept: Callable[[Mapping[str, GpuHealth]], None] = lambda _states: None
    times: MonitorTimes = field(default_factory=MonitorTimes)
    cleared: str = ""
    _urgent: set[str] = field(default_factory=set)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _round: asyncio.Event = field(default_factory=asyncio.Event)
    _dirty: asyncio.Event = field(default_factory=asyncio.Event)
    _written: Remembered | None = None
    _behind: bool = True
    _blind_since: float | None = None
    _complaints: dict[str, str] = field(default_factory=dict)
    _strays: int = 0
    _strays_quiet_until: float = 0.0

    def restore(self) -> None:
        """Take what an earlier run knew, or whoever published before; call it before anything is published."""
        try:
            known = self.store.load()
        except HealthStoreError as error:
            self._complain("load", str(error))
            return
        if known == self._written:  # nobody else has written since
            return
        self.ledger.restore(known.gpus)
        if self.cleared == (self._written.cleared if self._written is not None else ""):
            self.cleared = known.cleared  # else this one has carried out a later request
        self._written = known

    async def run(self) -> None:
        """Watch until cancelled."""
        end = self.ledger.subscribe(self._dirty.set)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(), name="health-watch")
                group.create_task(self._look_often(), name="health-looks")
                group.create_task(self._look_soon(), name="health-urgent-looks")
                group.create_task(self._keep(), name="health-store")
        finally:
            end()

    def gpus_changed(self) -> None:
        """Take note that GPUs came, went or moved."""
        self.ledger.present(gpu.uuid for gpu in self.gpus())
        self._changed.set()
        self._round.set()

    def look_at(self, gpu: str) -> None:
        """Look at a GPU soon."""
        self._urgent.add(gpu)
        self._asked.set()

    def was_reset(self, gpu: str) -> None:
        """Take note of a GPU that has just been reset: it is well at the next good look."""
        self.ledger.was_reset(gpu)
        self.look_at(gpu)

    def clear(self, request: str) -> tuple[str, ...]:
        """Carry out a person's request to call GPUs well, once; returns those that it was carried out for.

        Args:
            request: UUIDs, separated by commas; empty when nothing is asked for any more.
        """
        if request == self.cleared:
            return ()
        self.cleared = request
        self._dirty.set()
        cleared = self.ledger.clear(name.strip() for name in request.split(","))
        for gpu in cleared:
            self.look_at(gpu)
        return cleared

    def _report(self, event: HealthEvent) -> None:
        self.on_event(event)
        placement = None
        if event.gpu_instance is not None:
            placement = self.instance(event.gpu, event.gpu_instance, event.compute_instance)
            if placement is None:
                self._note_stray(event)
        if event.gpu_instance is None or placement is not None:
            self.ledger.happened(event, placement)
        if event.kind is HealthEventKind.LOST and event.count:
            self.on_change()
        self.look_at(event.gpu)

    def _note_stray(self, event: HealthEvent) -> None:
        """Log an error of an instance that nobody has any more: the next one at its place will be another one."""
        now = asyncio.get_running_loop().time()
        self._strays += 1
        if now >= self._strays_quiet_until:
            _log.warning("errors of MIG instances that are gone", gpu=event.gpu, xid=event.xid, count=self._strays)
            self._strays, self._strays_quiet_until = 0, now + self.times.strays

    def _ready(self, gpus: Sequence[str]) -> None:
        self._blind_since = None
        self._complaints.pop("watch", None)
        self.ledger.monitored(gpus)

    async def _watch(self) -> None:
        clock, wait = asyncio.get_running_loop().time, self.times.first_wait
        while True:
            self._changed.clear()
            gpus = tuple(self.gpus())
            self._take_over()
            if not gpus or self._behind:
                await _set_or(self._changed, self.times.soon)
                continue
            began = clock()
            problem = await self._watch_these(gpus)
            if not problem:
                continue
            self._complain("watch", problem)
            if self._blind_since is None:
                self._blind_since = clock()
            if clock() - self._blind_since >= self.times.blind:
                self.ledger.monitored(())
            if clock() - began >= self.times.steady:
                wait = self.times.first_wait
            await asyncio.sleep(wait)
            wait = min(2 * wait, self.times.longest_wait)

    def _take_over(self) -> None:
        """Take what another instance has written until now: it has heard what this one has not."""
        if not self.may_write():
            self._behind = True
        elif self._behind:
            self.restore()
            self._behind = False
            self._dirty.set()

    async def _watch_these(self, gpus: tuple[Gpu, ...]) -> str:
        """Watch until others are there; returns why it ended otherwise."""
        places = _places(gpus)
        watching = asyncio.create_task(self.vendor.watch_health(gpus, self._report, self._ready))
        changing = asyncio.create_task(self._until_other(places))
        try:
            await asyncio.wait((watching, changing), return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                return ""
            error = watching.exception()
            return str(error) if error is not None else "it ended by itself"
        finally:
            watching.cancel()
            changing.cancel()
            await asyncio.gather(watching, changing, return_exceptions=True)

    async def _until_other(self, places: frozenset[tuple[str, str | None]]) -> None:
        while self.may_write() and _places(self.gpus()) == places:
            await _set_or(self._changed, self.times.soon)
            self._changed.clear()

    async def _look_often(self) -> None:
        while True:
            gpus = tuple(self.gpus())
            if gpus:
                await self._look(gpus)
            self._forget_instances()
            await _set_or(self._round, self.times.period)
            self._round.clear()

    async def _look_soon(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            urgent, self._urgent = self._urgent, set()
            await self._look(tuple(gpu for gpu in self.gpus() if gpu.uuid in urgent))
            await asyncio.sleep(self.times.soon)

    async def _look(self, gpus: tuple[Gpu, ...]) -> None:
        if not gpus:
            return
        lost = {uuid for uuid, gpu in self.ledger.states().items() if gpu.lost}
        self.ledger.present(gpu.uuid for gpu in gpus)
        look = self.ledger.begin()
        try:
            probes = await self.vendor.probe_health(gpus)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other GPUs and the claims go on
            self._complain("look", str(error) or type(error).__name__)
            return
        self._complaints.pop("look", None)
        self.ledger.take(look, probes)
        if {probe.gpu for probe in probes if probe.lost} != lost & {gpu.uuid for gpu in gpus}:
            self.on_change()

    def _forget_instances(self) -> None:
        there = {gpu.uuid for gpu in self.gpus()}  # of others it is not known which instances they have
        for gpu in self.ledger.faults():
            if gpu.gpu not in there:
                continue
            for one in gpu.instances:
                if self.instance(gpu.gpu, one.gpu_instance, None) != one.placement:
                    self.ledger.destroyed(gpu.gpu, one.placement)

    async def _keep(self) -> None:
        writing = asyncio.create_task(self._write())
        try:
            while True:
                await _set_or(self._dirty, self.times.keep)
                self._dirty.clear()
                states = self.ledger.states()
                if writing.done():
                    writing = asyncio.create_task(self._write())
                await asyncio.wait({writing}, timeout=self.times.patience)
                self.on_kept(states)
        finally:
            writing.cancel()

    async def _write(self) -> None:
        """Write until what others see is on disk, which may change meanwhile.

        That an error has happened again is no reason to write at once: there may be thousands a second.
        """
        seen = None
        while seen != (self.ledger.states(), self.cleared):
            seen = self.ledger.states(), self.cleared
            what = Remembered(tuple(gpu for gpu in self.ledger.faults() if gpu.memorable), self.cleared)
            if what == self._written or self._behind or not self.may_write():
                return
            try:
                await asyncio.to_thread(self.store.save, what)
            except HealthStoreError as error:
                self._complain("save", str(error))
                return
            self._written = what
            self._complaints.pop("save", None)

    def _complain(self, about: str, problem: str) -> None:
        if self._complaints.get(about) != problem:
            self._complaints[about] = problem
            _log.warning("the health of GPUs is known in part only", about=about, reason=problem)


def _places(gpus: Sequence[Gpu]) -> frozenset[tuple[str, str | None]]:
    return frozenset((gpu.uuid, gpu.pci_address) for gpu in gpus)


async def _set_or(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
