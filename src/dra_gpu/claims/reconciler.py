"""Brings journal, node and API server together: once at start, then periodically.

One pass looks at every record on its own; a record that cannot be dealt with is logged and left for the next pass.
Whatever a call of the kubelet does meanwhile wins: each action checks under the claim's lock that the record is still
the one that was looked at.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

import structlog

from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.claims.adoption import adopted
from dra_gpu.claims.allocation import pods_of
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.ports import ClaimReader, ClaimReadError, SpecStore
from dra_gpu.claims.preparation import Identity, Preparation
from dra_gpu.claims.reconcile import Action, Decision, NodeFacts, Presence, decide, needs_claim, presence
from dra_gpu.claims.record import Record
from dra_gpu.claims.refusals import refusal_of
from dra_gpu.claims.shares import is_ours
from dra_gpu.inventory.devices import Inventory
from dra_gpu.mps.service import MpsError

_log = structlog.get_logger(__name__)

_AT_ONCE = 4  # records in work: a full node is through in seconds, and the API server hardly notices
_BUDGET_S = 30.0  # for one record; nobody waits for it, but its locks do
_JITTER = 0.1  # of the period, so that the nodes of a cluster do not ask in step
_FIRST_AGAIN_S = 5.0  # of claims taken over from a lost journal; others wait for what they have of their GPUs


@dataclass(slots=True)
class Report:
    """What one pass did: how many records each action met, how many files and shares were orphans, what failed."""

    actions: Counter[Action] = field(default_factory=Counter)
    adopted: int = 0
    orphans: int = 0
    orphaned_shares: int = 0
    failures: list[str] = field(default_factory=list)


class Reconciler:
    """Reconciles the claims of this node.

    Args:
        identity: driver and pool.
        preparation: acts on single claims.
        journal: the records.
        specs: the CDI files.
        reader: claims of the API server.
        inventory: returns what the node offers; None while it could not be enumerated.
        shares: returns all shares on MPS by GPU and name.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        preparation: Preparation,
        journal: Journal,
        specs: SpecStore,
        reader: ClaimReader,
        inventory: Callable[[], Inventory | None],
        shares: Callable[[], Awaitable[Sequence[tuple[str, str]]]],
    ) -> None:
        self._identity = identity
        self._preparation = preparation
        self._journal = journal
        self._specs = specs
        self._reader = reader
        self._inventory = inventory
        self._shares = shares
        self._again: float | None = None

    async def run(self, period: float, in_charge: Callable[[], bool] = lambda: True) -> None:
        """Reconcile once a period, for ever. The first pass comes after one period.

        Passes follow sooner, and later and later, while a claim is left that was taken over without what it has.

        Args:
            period: seconds, a tenth of jitter.
            in_charge: tells whether this is the instance that reconciles; a pass is left out while it is not.
        """
        while True:
            pause = period if self._again is None else min(period, self._again)
            await asyncio.sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - spreads load
            if not in_charge():
                continue
            try:
                await self.reconcile()
            except Exception as error:  # noqa: BLE001 - a pass that fails is repeated; claims are served meanwhile
                _log.error("reconciliation failed", exc_info=error)

    async def recover(self) -> Report:
        """Do what the start needs: remove what killed writers left, then a first pass.

        Raises:
            JournalError: the records cannot be read.
            SpecStoreError: the CDI directory cannot be read.
        """
        try:
            removed = await asyncio.to_thread(self._specs.clean_temporaries)
        except SpecStoreError as error:
            _log.warning("files of killed writers stay until the next start", reason=str(error))
        else:
            if removed:
                _log.info("removed files of killed writers", count=removed)
        return await self.reconcile()

    async def has_unrecorded(self) -> bool:
        """Tell whether claims may hold devices without a record: the journal was lost, by damage or by hand.

        A CDI directory that cannot be read tells of none, and no container can be started from it either.
        """
        try:
            return bool(await self._unrecorded())
        except SpecStoreError as error:
            _log.error("the CDI directory cannot be read", reason=str(error))
            return False
        except JournalError as error:
            _log.error("the records of claims cannot be read", reason=str(error))
            return True

    async def reconcile(self) -> Report:
        """Do one pass: adopt claims that have a CDI file but no record, settle all records, remove orphaned files.

        Raises:
            JournalError: the records cannot be read.
        """
        report = await self.adopt()
        records = await self._journal.records()
        facts = self._facts()
        room = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._settle(record, facts, room, report) for record in records))
        await self._look_for_unknown()
        await self._remove_orphans(report)
        await self._remove_orphaned_shares(records, report)
        done = {action.value: count for action, count in report.actions.items() if action is not Action.KEEP}
        _log.info(
            "reconciled",
            records=len(records),
            adopted=report.adopted,
            orphans=report.orphans,
            shares=report.orphaned_shares,
            **done,
        )
        return report

    async def _look_for_unknown(self) -> None:
        """See whether claims are left of which it is not known yet what they have."""
        left = any(record.adopted for record in await self._journal.records())
        self._again = None if not left else _FIRST_AGAIN_S if self._again is None else 2 * self._again

    def _seen(self) -> Inventory | None:
        """Return the inventory; None for an empty one: a driver that is not installed yet shows no GPUs either."""
        inventory = self._inventory()
        return inventory if inventory is not None and (inventory.gpus or inventory.sick) else None

    def _facts(self) -> NodeFacts:
        inventory = self._seen()
        if inventory is None:
            return NodeFacts(self._journal.boot_id, None)
        sick = frozenset(gpu.uuid for gpu in inventory.sick if gpu.uuid is not None)
        working = frozenset(inventory.gpus)
        complete = all(gpu.uuid is not None for gpu in inventory.sick)
        return NodeFacts(self._journal.boot_id, working, sick, complete)

    async def _settle(self, record: Record, facts: NodeFacts, room: asyncio.Semaphore, report: Report) -> None:
        async with room:
            try:
                found, pods = await self._look_up(record.ref) if needs_claim(record, facts) else (Presence.UNKNOWN, ())
                decision = decide(record, facts, found)
                report.actions[decision.action] += 1
                await self._carry_out(record, decision, pods)
            except Exception as error:  # noqa: BLE001 - one record never stops the others
                self._failed(record.ref, error, report)

    async def _look_up(self, ref: ClaimRef) -> tuple[Presence, tuple[str, ...]]:
        """Return whether a claim is there, and the pods that use it."""
        try:
            claim = await self._reader.get(ref.namespace, ref.name)
        except ClaimReadError as error:
            _log.info("claim cannot be compared with the API server", claim=str(ref), reason=str(error))
            return Presence.UNKNOWN, ()
        return presence(ref, claim), pods_of(claim) if claim is not None else ()

    async def _carry_out(self, record: Record, decision: Decision, pods: tuple[str, ...]) -> None:
        ref, seq = record.ref, record.seq
        until = asyncio.get_running_loop().time() + _BUDGET_S
        if decision.reason and decision.action is not Action.KEEP:
            _log.info("reconciling a claim", claim=str(ref), action=decision.action.value, reason=decision.reason)
        match decision.action:
            case Action.KEEP:
                return
            case Action.VERIFY:
                await self._preparation.repair(ref, until, seq=seq, pods=pods)
            case Action.PREPARE:
                await self._preparation.prepare(ref, until)
            case Action.ERASE:
                await self._preparation.erase(ref, until, seq=seq)
            case Action.UNPREPARE:
                await self._preparation.unprepare(ref, until, seq=seq)
            case Action.QUARANTINE:
                keep = bool(record.fault)  # a record that only another release understands: its container may restart
                await self._preparation.quarantine(ref, until, seq=seq, reason=decision.reason, keep_spec=keep)

    async def adopt(self) -> Report:
        """Make records of claims that have a CDI file but none; nothing as long as the GPUs are not known.

        Raises:
            JournalError: the records cannot be read.
        """
        report = Report()
        inventory = self._seen()
        if inventory is None:
            return report
        for uid in await self._unrecorded():
            try:
                await self._adopt_one(uid, inventory, report)
            except Exception as error:  # noqa: BLE001 - one file never stops the others
                self._failed(ClaimRef("", "", uid), error, report)
        return report

    async def _adopt_one(self, uid: str, inventory: Inventory, report: Report) -> None:
        try:
            spec = await asyncio.to_thread(self._specs.read, uid)
        except SpecStoreError as error:
            _log.warning("CDI file of an unknown claim cannot be read and is removed", claim=uid, reason=str(error))
            return
        if spec is None:
            return
        identity = self._identity
        record = adopted(uid, spec, pool=identity.pool, boot_id=self._journal.boot_id, inventory=inventory)
        until = asyncio.get_running_loop().time() + _BUDGET_S
        if record is not None and await self._preparation.adopt(record, until):
            report.adopted += 1
            _log.warning("adopted a claim that the journal did not know", claim=str(record.ref))

    async def _remove_orphans(self, report: Report) -> None:
        """Remove CDI files of ours that belong to no record; nobody holds anything by them."""
        if self._seen() is None:
            return
        for uid in await self._unrecorded():
            try:
                await self._preparation.remove_orphan(uid, asyncio.get_running_loop().time() + _BUDGET_S)
                report.orphans += 1
            except Exception as error:  # noqa: BLE001 - one file never stops the others
                self._failed(ClaimRef("", "", uid), error, report)

    async def _remove_orphaned_shares(self, records: Sequence[Record], report: Report) -> None:
        """Give up shares on MPS with names of ours that belong to no record."""
        if self._seen() is None:
            return
        owned = frozenset(name for record in records for name in record.share_names)
        try:
            shares = await self._shares()
        except MpsError as error:
            _log.warning("shares cannot be compared with the MPS service", reason=str(error))
            return
        for gpu, name in shares:
            if name in owned or not is_ours(name):
                continue
            try:
                until = asyncio.get_running_loop().time() + _BUDGET_S
                if await self._preparation.remove_orphaned_share(gpu, name, until):
                    _log.warning("gave up a share that belongs to no claim", gpu=gpu, share=name)
                    report.orphaned_shares += 1
            except Exception as error:  # noqa: BLE001 - one share never stops the others
                self._failed(ClaimRef("", "", name), error, report)

    async def _unrecorded(self) -> Collection[str]:
        """Return claims with a CDI file and no record, files first: a record is written before its file."""
        uids = sorted(await asyncio.to_thread(self._specs.claim_uids))
        return sorted(set(uids) - await self._journal.known(uids))

    def _failed(self, ref: ClaimRef, error: Exception, report: Report) -> None:
        refusal = refusal_of(f"claim {ref}", error)
        if refusal is None:
            _log.error("reconciling a claim failed", claim=str(ref), exc_info=error)
        else:
            _log.warning(
                "reconciling a claim failed; the next pass tries again", claim=str(ref), reason=refusal.message
            )
        report.failures.append(refusal.message if refusal else f"claim {ref}: {error!r}")
