"""Looks at the GPUs again and again, and keeps what the node offers up to date without a restart.

A driver binds GPUs one after another, a library appears after the plugin has started, a GPU falls off the bus: each
look replaces the whole inventory, and whoever publishes it hears only of changes. A look that fails as a whole changes
nothing: what was known stays offered, and the failure is told once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.record import DeviceName
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import Gpu, Scan, SickGpu
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.inventory.views import Layout
from dra_gpu.vendors.base import Vendor, VendorError

# Until two looks agree the driver may still be binding GPUs: look again soon.
SETTLE_SECONDS = 2.0
# A library that is missing is usually being installed; its first look matters to waiting pods.
RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0

_log = structlog.get_logger(__name__)


class NameBook(Protocol):
    """Where names given to slots are kept for a boot."""

    async def names(self, boot_id: str) -> dict[str, str]:
        """Return the names given this boot, by slot."""

    async def remember_names(self, boot_id: str, names: list[DeviceName]) -> None:
        """Keep names; those known already stay as they are."""


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
    expected_gpus: int | None = None
    period: float = 60.0
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    found: asyncio.Event = field(default_factory=asyncio.Event)
    _layout: Layout = field(default_factory=lambda: Layout(Inventory(), ()))
    _scan: Scan | None = None
    _problem: str = ""
    _announced: bool = False

    def inventory(self) -> Inventory:
        """Return what the node offers now; why the last look failed, if it did, stands among the sick."""
        inventory = self._layout.inventory
        if not self._problem:
            return inventory
        return replace(inventory, sick=(SickGpu("all GPUs", self._problem), *inventory.sick))

    def gpu(self, uuid: str) -> Gpu | None:
        """Return a working GPU by its UUID."""
        found = next(self._layout.inventory.of_gpu(uuid), None)
        return None if found is None else found.gpu

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
            await asyncio.sleep(self.period if settled else min(SETTLE_SECONDS, self.period))

    async def _look(self) -> bool:
        """Look once; returns whether nothing has changed since the look before."""
        try:
            scan = await self.vendor.scan()
            names = await self._name(scan)
        except (VendorError, JournalError) as error:
            self._failed(str(error))
            self.looked.set()
            return False
        self._problem = ""
        if scan == self._scan:
            return True
        self._take(scan, names)
        self.found.set()
        self.looked.set()
        return False

    def _take(self, scan: Scan, names: dict[str, str]) -> None:
        """Make a look that differs from the one before the truth."""
        self._tell_sick(scan)
        self._scan = scan
        layout = views.build(scan, names, self.options)
        if self._incomplete(scan):
            self._layout = layout
            return
        if layout != self._layout or not self._announced:
            self._layout, self._announced = layout, True
            _log.info("GPUs of this node", working=len(scan.gpus), sick=len(scan.sick), driver=scan.versions.driver)
            self.on_change(layout)

    async def _name(self, scan: Scan) -> dict[str, str]:
        known = await self.names.names(self.boot_id)
        names = naming.assign(known, scan.gpus)
        uuids = {naming.slot(gpu): gpu.uuid for gpu in scan.gpus}
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
