"""Looks at the GPUs again and again, and keeps what the node offers up to date without a restart.

A driver binds GPUs one after another, a library appears after the plugin has started, a GPU falls off the bus: each
look replaces the whole inventory, and whoever publishes it hears only of changes. A look that fails as a whole changes
nothing: what was known stays offered, and the failure is told once. Looks follow each other soon while a GPU is sick,
and when the vendor's mark of what is there differs, so that who comes or returns is offered within seconds.

Partitions come and go with claims while a look is under way. Which ones claims have is asked before the look and after
it, and one that nobody claims is believed to be an administrator's only when a second look shows it, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.record import DeviceName
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import Gpu, MigPlacement, Scan, SickGpu, View
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.inventory.views import Layout
from dra_gpu.vendors.base import Vendor, VendorError

# Until two looks agree the driver may still be binding GPUs: look again soon.
SETTLE_SECONDS = 2.0
# A library that is missing is usually being installed; its first look matters to waiting pods.
RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
# However often somebody asks for a look.
SHORTEST_SECONDS = 1.0
# How often it is asked whether other GPUs are there, which costs a few system calls.
PRESENCE_SECONDS = 2.0
# A GPU that is sick may be reset at any time.
SICK_SECONDS = 5.0

Partitions = Collection[tuple[str, MigPlacement]]
Claimed = frozenset[tuple[str, MigPlacement]]

_log = structlog.get_logger(__name__)


class NameBook(Protocol):
    """Where names given to slots are kept for a boot."""

    async def names(self, boot_id: str) -> dict[str, str]:
        """Return the names given this boot, by slot."""

    async def remember_names(self, boot_id: str, names: list[DeviceName]) -> None:
        """Keep names; those known already stay as they are."""


async def _none() -> Partitions:
    return ()


@dataclass(slots=True)
class InventoryWatch:
    """Owns the inventory of the node.

    Attributes:
        vendor: whom to ask.
        names: where names are kept.
        boot_id: the boot for which names hold.
        on_change: told each layout that differs from the one before.
        on_trouble: told what a person has to act on, as an Event's reason and note.
        options: what of the GPUs to publish.
        ours: returns, by GPU UUID, the partitions that this driver has made for claims, or is about to make.
        expected_gpus: fewer are not told as final; None takes what is found.
        period: seconds between two looks once the GPUs have settled.
        looked: set after the first look, whether it succeeded or not.
        found: set after the first look that succeeded.
    """

    vendor: Vendor
    names: NameBook
    boot_id: str
    on_change: Callable[[Layout], None]
    on_trouble: Callable[[str, str], None]
    options: ViewOptions = field(default_factory=ViewOptions)
    ours: Callable[[], Awaitable[Partitions]] = _none
    expected_gpus: int | None = None
    period: float = 60.0
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    found: asyncio.Event = field(default_factory=asyncio.Event)
    _layout: Layout = field(default_factory=lambda: Layout(Inventory(), ()))
    _scan: Scan | None = None
    _claimed: Claimed = frozenset()
    _names: dict[str, str] = field(default_factory=dict)
    _problem: str = ""
    _announced: bool = False
    _present: Hashable = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Look at the GPUs soon: one may have been lost, or come back."""
        self._woken.set()

    def inventory(self) -> Inventory:
        """Return what the node offers now; why the last look failed, if it did, stands among the sick."""
        inventory = self._layout.inventory
        if not self._problem:
            return inventory
        return replace(inventory, sick=(SickGpu("all GPUs", self._problem), *inventory.sick))

    def gpu(self, uuid: str) -> Gpu | None:
        """Return a GPU by its UUID, as it is or as it was when it last answered."""
        return self._layout.inventory.known_gpu(uuid)

    def offer(self, chosen: tuple[View, ...]) -> None:
        """Offer these views from now on; what has been seen is offered in them at once."""
        if chosen == self.options.views:
            return
        self.options = replace(self.options, views=chosen)
        if self._scan is not None:
            self._take(self._scan, self._claimed, self._names)

    def known_inventory(self) -> Inventory | None:
        """Return what the node offers, or None as long as no look has succeeded: then nothing can be said missing."""
        return None if self._scan is None else self._layout.inventory

    async def run(self) -> None:
        """Look until cancelled."""
        retry = RETRY_SECONDS
        while True:
            settled = await self._look()
            if self._problem:
                await asyncio.sleep(retry)
                retry = min(2 * retry, LONGEST_RETRY_SECONDS)
                continue
            retry = RETRY_SECONDS
            await self._until_next(self._pause(settled=settled))

    def _pause(self, *, settled: bool) -> float:
        pause = self.period if settled else min(SETTLE_SECONDS, self.period)
        return min(SICK_SECONDS, pause) if self._layout.inventory.sick else pause

    async def _until_next(self, seconds: float) -> None:
        """Wait so long, or until somebody knows of a change; never less than a look after a look is worth."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await asyncio.sleep(min(SHORTEST_SECONDS, seconds))
        while not self._woken.is_set() and self.vendor.presence() == self._present:
            left = end - loop.time()
            if left <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, PRESENCE_SECONDS)):
                    await self._woken.wait()
        self._woken.clear()

    async def _look(self) -> bool:
        """Look once; returns whether what is published has not changed since the look before."""
        try:
            scan, claimed = await self._seen()
            if _unclaimed(scan, claimed) - self._known_unclaimed():
                scan, claimed = await self._seen()
            names = await self._name(scan)
        except (VendorError, JournalError) as error:
            self._failed(str(error))
            self.looked.set()
            return False
        self._problem = ""
        if (scan, claimed) == (self._scan, self._claimed):
            return True
        settled = self._take(scan, claimed, names)
        self.found.set()
        self.looked.set()
        return settled

    async def _seen(self) -> tuple[Scan, Claimed]:
        before = await self.ours()
        self._present = self.vendor.presence()
        scan = await self.vendor.scan()
        claimed = frozenset(before) | frozenset(await self.ours())
        # What claims had on a lost GPU when it was last seen does not become an administrator's when they end.
        lost = {gpu.uuid for gpu in scan.sick if gpu.last is not None}
        return scan, claimed | {one for one in self._claimed if one[0] in lost}

    def _known_unclaimed(self) -> Claimed:
        return frozenset() if self._scan is None else _unclaimed(self._scan, self._claimed)

    def _take(self, scan: Scan, claimed: Claimed, names: dict[str, str]) -> bool:
        """Make a look that differs from the one before the truth; returns whether as much is published as before."""
        self._tell_sick(scan)
        layout = views.build(scan, names, self.options, claimed)
        self._tell_notes(layout)
        known, self._layout, self._scan, self._claimed = self._layout, layout, scan, claimed
        self._names = names
        same = _published(layout) == _published(known)
        if self._incomplete(scan):
            return False
        if not same or not self._announced:
            self._announced = True
            _log.info("GPUs of this node", working=len(scan.gpus), sick=len(scan.sick), driver=scan.versions.driver)
            self.on_change(layout)
        return same

    async def _name(self, scan: Scan) -> dict[str, str]:
        known = await self.names.names(self.boot_id)
        gpus = (*scan.gpus, *(one.last for one in scan.sick if one.last is not None))
        names = naming.assign(known, gpus)
        uuids = {naming.slot(gpu): gpu.uuid for gpu in gpus}
        new = [DeviceName(slot, name, uuids[slot]) for slot, name in names.items() if slot not in known]
        if new:
            await self.names.remember_names(self.boot_id, new)
        return names

    def _incomplete(self, scan: Scan) -> bool:
        if self.expected_gpus is None or len(scan.gpus) + len(scan.sick) >= self.expected_gpus:
            return False
        _log.warning(
            "fewer GPUs than expected: nothing is published yet", expected=self.expected_gpus, found=len(scan.gpus)
        )
        return True

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            _log.error("the GPUs cannot be looked at", reason=problem)
            self.on_trouble("GpusNotReady", problem)
        self._problem = problem
        if not self._announced and self.expected_gpus is None:
            self._announced = True
            self.on_change(self._layout)  # an empty pool says that the driver is up and has no devices

    def _tell_sick(self, scan: Scan) -> None:
        before = {gpu.where for gpu in self._scan.sick} if self._scan else set()
        for gpu in scan.sick:
            if gpu.where not in before:
                _log.error("a GPU cannot be used", where=gpu.where, uuid=gpu.uuid, reason=gpu.reason)
                self.on_trouble("GpuNotUsable", f"GPU at {gpu.where}: {gpu.reason}")

    def _tell_notes(self, layout: Layout) -> None:
        for note in layout.notes:
            if note not in self._layout.notes:
                _log.warning("a GPU is not offered in full", reason=note.text)
                self.on_trouble(note.reason, note.text)


def _unclaimed(scan: Scan, claimed: Claimed) -> Claimed:
    """Return the instances that no claim of this driver has."""
    found = frozenset((gpu.uuid, instance.placement) for gpu in scan.gpus for instance in gpu.mig_instances)
    return found - claimed


def _published(layout: Layout) -> tuple[object, ...]:
    """Return what others see of a layout: a GPU's own facts, such as the instances it has, are not all of it."""
    inventory = layout.inventory
    return [device.wire for device in inventory.devices.values()], layout.counter_sets, inventory.sick
