"""Looks at what claims use, when a scrape asks for it and the last look is old enough.

A look opens the vendor's library once, asks each GPU in a thread of its own, and never waits for one that hangs longer
than the vendor's own deadline; scrapes get the figures of before meanwhile. On a node where nobody scrapes, no GPU is
asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from dra_gpu.api.resource_v1 import ResourceClaim
from dra_gpu.claims.allocation import pods_of
from dra_gpu.claims.record import Record, State
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import MigInstance, MigPlacement
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.metrics.node import UsageMetrics
from dra_gpu.mps.service import MpsError, MpsService
from dra_gpu.node import figures
from dra_gpu.node.claim_usage import ClaimUsage, Known, usage_of
from dra_gpu.vendors.base import Vendor, VendorError
from dra_gpu.vendors.usage import GpuUsage

LOOK_SECONDS = 10.0
"""Between two looks at least: two Prometheus servers that scrape the same node cost it one."""
_MOST_CLAIMS = 4096

_log = structlog.get_logger(__name__)


class PodsOfClaims:
    """The pods that use each claim, as they were when it was last read: when it is prepared, and every ten minutes."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, ...]] = {}

    def note(self, claim: ResourceClaim) -> None:
        """Take a claim as the API server has it."""
        self._pods.pop(claim.metadata.uid, None)
        while len(self._pods) >= _MOST_CLAIMS:
            del self._pods[next(iter(self._pods))]
        self._pods[claim.metadata.uid] = pods_of(claim)

    def of(self, uids: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return what is known of these claims, and forget the others."""
        self._pods = {uid: pods for uid, pods in self._pods.items() if uid in uids}
        return dict(self._pods)


@dataclass(slots=True)
class UsageMeter:
    """Fills the metrics of usage.

    Attributes:
        vendor: whom to ask.
        inventory: returns what the node offers.
        records: returns the journal's records.
        boot_id: holds of another boot are no holds.
        pods: which pods use a claim.
        instance_of: returns the GPU instance behind a partition.
        metrics: what to fill.
        mps: tells which processes are attached to which share; None where nothing is shared by MPS.
        period: seconds between two looks.
    """

    vendor: Vendor
    inventory: Callable[[], Inventory]
    records: Callable[[], Awaitable[Sequence[Record]]]
    boot_id: str
    pods: PodsOfClaims
    instance_of: Callable[[str, MigPlacement], MigInstance | None]
    metrics: UsageMetrics
    mps: MpsService | None = None
    period: float = LOOK_SECONDS
    _looked_at: float | None = None
    _complaint: str = ""
    _links: dict[tuple[str, str], float] = field(default_factory=dict)

    async def refresh(self) -> None:
        """Look, unless the last look is recent; how old that is, is told either way."""
        now = asyncio.get_running_loop().time()
        if self._looked_at is None or now - self._looked_at >= self.period:
            before, self._looked_at = self._looked_at, now
            try:
                await self._look()
            except VendorError as error:
                self._looked_at = before if before is not None else now
                self._complain(str(error))
        self.metrics.age.set(asyncio.get_running_loop().time() - self._looked_at)

    async def _look(self) -> None:
        inventory = self.inventory()
        records = [
            record
            for record in await self.records()
            if record.state is State.PREPARED and record.boot_id == self.boot_id
        ]
        asked = {
            uuid: (gpu, sorted({one.cgroup for record in records for one in record.cgroups if one.gpu == uuid}))
            for uuid, gpu in inventory.gpus.items()
        }
        told = await self.vendor.usage(asked) if asked else {}
        looks: dict[str, GpuUsage | None] = {}
        for uuid, look in told.items():
            if isinstance(look, VendorError):
                self.metrics.failures.inc()
                self._complain(str(look))
            looks[uuid] = None if isinstance(look, VendorError) else look
        names = figures.names_of_gpus(inventory)
        pids = {process.pid for look in looks.values() if look is not None for process in look.processes}
        pods = await asyncio.to_thread(self._pods_of, pids)
        known = Known(
            self.pods.of({record.ref.uid for record in records}),
            pods.get,
            await self._attached(records),
            self.instance_of,
        )
        self._show(usage_of(records, looks, names, known), looks, names)
        held = figures.memory_by_claim(inventory, records, self.boot_id)
        self.metrics.memory_held.replace({(*key, names.get(uuid, uuid)): held[key, uuid] for key, uuid in held})

    def _pods_of(self, pids: Iterable[int]) -> dict[int, str | None]:
        return {pid: self.vendor.pod_of(pid) for pid in pids}

    async def _attached(self, records: Sequence[Record]) -> Mapping[str, Collection[int]]:
        """Return the processes attached to each share; with classic MPS nobody can tell them apart."""
        if self.mps is None or not any(record.shares for record in records):
            return {}
        try:
            found = await self.mps.clients()
        except MpsError as error:
            self._complain(str(error))
            return {}
        return {
            share.name: share.clients
            for gpu in found
            if not gpu.problem
            for share in gpu.shares
            if share.protocol is MpsProtocol.NAMESPACE
        }

    def _show(self, usage: ClaimUsage, looks: Mapping[str, GpuUsage | None], names: Mapping[str, str]) -> None:
        metrics = self.metrics
        metrics.memory.replace({(*key, source): amount for key, (amount, source) in usage.memory.items()})
        metrics.sm.replace(usage.sm)
        metrics.unavailable.replace(dict.fromkeys(usage.unavailable, 1.0))
        metrics.unattributed.replace({(name,): amount for name, amount in usage.unattributed.items()})
        used = {uuid: look.memory_bytes for uuid, look in looks.items() if look is not None}
        metrics.gpu_memory.replace({(names.get(uuid, uuid),): float(it) for uuid, it in used.items() if it is not None})
        for uuid, look in looks.items():
            if look is not None:
                for direction, amount in (("sent", look.nvlink_sent), ("received", look.nvlink_received)):
                    if amount is not None:
                        self._links[names.get(uuid, uuid), direction] = float(amount)
        metrics.nvlink.replace(self._links)

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _log.warning("what claims use cannot be told in full", reason=reason)
