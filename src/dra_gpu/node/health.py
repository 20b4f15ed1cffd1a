"""The health of GPUs in the node plugin: what watches them, joined to everything that tells of it.

Taints go into the slices that the GPUs make; Events go to the Node and to the claims that hold a sick device; each of
these claims' status says how its devices are; a person's request to call a GPU well comes in with the Node object.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from dra_gpu.api.cordon import CLEAR_ANNOTATION
from dra_gpu.apiserver.resources import Node
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.record import Record, State
from dra_gpu.health import clock
from dra_gpu.health.changes import Change, ChangeKind, changes
from dra_gpu.health.ledger import HealthLedger
from dra_gpu.health.monitor import HealthMonitor, MonitorTimes, WatchedVendor
from dra_gpu.health.state import GpuHealth, HealthStates, PartHealth
from dra_gpu.health.store import HealthStore
from dra_gpu.health.tainting import tainted
from dra_gpu.inventory import slices
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import Gpu, MigPlacement
from dra_gpu.inventory.slices import SliceContent
from dra_gpu.inventory.views import Layout
from dra_gpu.node.figures import names_of_gpus
from dra_gpu.node.health_instances import Instances, KnownInstance
from dra_gpu.node.health_settings import HealthSettings
from dra_gpu.node.telling import Kind
from dra_gpu.vendors.health import HealthEvent

RETRY_SECONDS = 5.0  # while the journal cannot be read
_MOST_COUNTED = 4096
_MOST_CHANGES = 1024
_OF_NODE: Mapping[ChangeKind, tuple[Kind, str]] = {
    ChangeKind.SICK: ("Warning", "GpuUnhealthy"),
    ChangeKind.WELL: ("Normal", "GpuHealthy"),
    ChangeKind.NOTICE: ("Warning", "GpuNotice"),
}
_OF_CLAIM: Mapping[ChangeKind, tuple[Kind, str]] = {
    ChangeKind.SICK: ("Warning", "DeviceUnhealthy"),
    ChangeKind.WELL: ("Normal", "DeviceHealthy"),
    ChangeKind.NOTICE: ("Warning", "DeviceNotice"),
}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HealthOutputs:
    """Whom the node plugin tells.

    Attributes:
        publish: takes what the node's slices should be.
        tell_node: records an Event of the Node: kind, reason, note.
        tell_claim: the same of a claim.
        say: has the status of a prepared claim written.
    """

    publish: Callable[[tuple[SliceContent, ...]], None]
    tell_node: Callable[[Kind, str, str], None]
    tell_claim: Callable[[ClaimRef, Kind, str, str], None]
    say: Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class HealthInputs:
    """What the node plugin knows.

    Attributes:
        inventory: returns what the node offers.
        records: reads the journal.
        known_instance: returns the instance of a partition as claims know it, without a call.
        look_around: has the GPUs enumerated soon.
        may_write: whether this instance of the plugin is the one that writes.
    """

    inventory: Callable[[], Inventory]
    records: Callable[[], Awaitable[Sequence[Record]]]
    known_instance: KnownInstance
    look_around: Callable[[], None]
    may_write: Callable[[], bool]


class NodeHealth:
    """The health of this node's GPUs.

    Args:
        chosen: the settings.
        driver: our driver's name.
        boot_id: of this boot.
        state_dir: where it is remembered.
        vendor: reports.
        inputs: what is known.
        outputs: who is told.
    """

    def __init__(
        self,
        chosen: HealthSettings,
        driver: str,
        boot_id: str,
        state_dir: Path,
        vendor: WatchedVendor,
        inputs: HealthInputs,
        outputs: HealthOutputs,
    ) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        """How often what happened, by UUID and kind; of XIDs by their number."""
        self._boot_id = boot_id
        self._inputs = inputs
        self._outputs = outputs
        self._instances = Instances(inputs.inventory, inputs.known_instance)
        self._ledger = HealthLedger(
            driver, boot_id, chosen.policy, chosen.evict, lambda: datetime.now(UTC), clock.Jumps().until
        )
        self._monitor = HealthMonitor(
            vendor,
            self._ledger,
            HealthStore(state_dir),
            self._gpus,
            self._instances.find,
            may_write=inputs.may_write,
            on_event=self._count,
            on_change=inputs.look_around,
            on_kept=self._kept,
            times=MonitorTimes(period=chosen.period),
        )
        self._layout: Layout | None = None
        self._told: Mapping[str, GpuHealth] = {}
        self._on_disk: Mapping[str, GpuHealth] = {}
        self._for_claims: list[Change] = []
        self._some = asyncio.Event()
        self._monitor.restore()
        self._ledger.subscribe(self._changed)

    @property
    def states(self) -> HealthStates:
        """How well every GPU is."""
        return self._ledger

    def of(self, gpu: str, placement: MigPlacement | None) -> PartHealth | None:
        """Return how well a GPU or partition is; None where nothing is known of the GPU."""
        known = self._ledger.states().get(gpu)
        return None if known is None else known.of(placement)

    def set_layout(self, layout: Layout) -> None:
        """Take what the GPUs of the node come to, and publish it with the taints of those that are sick."""
        self._layout = layout
        self._monitor.gpus_changed()
        self._publish()

    def destroyed(self, gpu: str, placement: MigPlacement) -> None:
        """Take note of a partition that was destroyed."""
        self._instances.destroyed(gpu, placement)
        self._ledger.destroyed(gpu, placement)

    def was_reset(self, gpu: Gpu) -> None:
        """Take note of a GPU that this node has reset."""
        self._monitor.was_reset(gpu.uuid)

    def read_node(self, node: Node) -> None:
        """Act on what a person asks for in the Node object."""
        cleared = self._monitor.clear(node.metadata.annotations.get(CLEAR_ANNOTATION, "").strip())
        if cleared:
            _log.info("GPUs are called well by a person", gpus=cleared)

    async def run(self) -> None:
        """Watch, and tell claims, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._monitor.run(), name="health-monitor")
            group.create_task(self._tell_claims(), name="health-of-claims")

    def _gpus(self) -> tuple[Gpu, ...]:
        inventory = self._inputs.inventory()
        return (*inventory.gpus.values(), *inventory.lost.values())

    def _count(self, event: HealthEvent) -> None:
        key = event.gpu, event.kind.value if event.xid is None else str(event.xid)
        if key in self.events or len(self.events) < _MOST_COUNTED:
            self.events[key] += event.count

    def _publish(self) -> None:
        if self._layout is not None:
            # Of a GPU of which nothing has been written in this run, what is known is from the run before.
            states = {**self._ledger.states(), **self._on_disk}
            self._outputs.publish(slices.arrange(tainted(self._layout, states)))

    def _kept(self, states: Mapping[str, GpuHealth]) -> None:
        self._on_disk = states
        self._publish()

    def _changed(self) -> None:
        before, self._told = self._told, self._ledger.states()
        found = changes(before, self._told)
        for change in found:
            self._tell_node(change)
        self._for_claims = [*self._for_claims, *found][-_MOST_CHANGES:]
        if found:
            self._some.set()

    def _tell_node(self, change: Change) -> None:
        said = _OF_NODE.get(change.kind)
        if said is None:
            return
        note = self._note(change)
        log = _log.info if change.kind is ChangeKind.WELL else _log.warning
        log("the health of a GPU changed", gpu=change.gpu, now=change.kind.value, reason=note)
        self._outputs.tell_node(*said, note)

    def _note(self, change: Change) -> str:
        name = names_of_gpus(self._inputs.inventory()).get(change.gpu, "")
        which = f"GPU {name} ({change.gpu})" if name else f"GPU {change.gpu}"
        if change.placement is not None:
            which = f"the partition of {change.placement.size} memory units from {change.placement.start} of {which}"
        return f"{which}: {'it is well again' if change.kind is ChangeKind.WELL else change.text}"

    async def _tell_claims(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            try:
                records = await self._inputs.records()
            except JournalError as error:
                _log.warning("claims are told later how their devices are", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._some.set()
                continue
            found, self._for_claims = self._for_claims, []
            for record in records:
                if record.boot_id == self._boot_id and record.state is State.PREPARED:
                    self._tell_claim(record, found)

    def _tell_claim(self, record: Record, found: Sequence[Change]) -> None:
        about = [change for change in found if _concerns(change, record)]
        for change in about:
            said = _OF_CLAIM.get(change.kind)
            if said is not None:
                self._outputs.tell_claim(record.ref, *said, self._note(change))
        if about:
            self._outputs.say(record)


def _concerns(change: Change, record: Record) -> bool:
    """Tell whether a claim holds what a change is about: of a partition, that very one; of a GPU, any part of it."""
    units = 0 if change.placement is None else change.placement.units
    return any(hold.is_of((change.gpu, units)) for hold in record.holds)
