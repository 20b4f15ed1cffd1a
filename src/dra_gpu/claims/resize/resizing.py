"""Brings one share to what its ClaimResize wants, as far as that is possible now.

Promises: whatever is interrupted goes on at the next visit; nothing is published, and no limit is raised, before the
journal has it; a claim's preparation and its resize never run at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from dra_gpu.api.claim_resize import ClaimResize, NodeStatus
from dra_gpu.api.resource_v1 import ResourceClaim
from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.claims.allocation import pods_of
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.locks import ClaimLocks, GpuLocks
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.ports import ClaimReader
from dra_gpu.claims.preparation import Identity, Preparation
from dra_gpu.claims.reasons import no_room
from dra_gpu.claims.record import Record, State
from dra_gpu.claims.resize import settings
from dra_gpu.claims.resize import wish as wishes
from dra_gpu.claims.resize.decide import Drop, Enforce, Enforced, Facts, Keep, Presence, Raise, Rest, decide
from dra_gpu.claims.resize.limits import enforce
from dra_gpu.claims.resize.report import report
from dra_gpu.claims.resize.state import Resize, ShareKey
from dra_gpu.claims.resize.whole import WholeDevices
from dra_gpu.claims.resize.wish import Wish
from dra_gpu.claims.steps import Machine
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.mps.service import MpsError
from dra_gpu.vendors.base import VendorError

_log = structlog.get_logger(__name__)

_LOCK_S = 5.0  # a preparation that waits for others has it longer: then the visit comes again
_MOST_MOVES = 64  # each visit needs a handful; a mistake of ours must not become a busy loop


class Offers(Protocol):
    """What is published beyond the hardware."""

    def offer(self, key: ShareKey, amounts: Amounts) -> None:
        """Publish so much for a share; returns at once."""

    def at_server(self, key: ShareKey) -> Amounts | None:
        """Return what the server has for a share; None while that is not known."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of a visit.

    Attributes:
        status: the node's part of the object's status; None where nothing is to be said.
        waiting: it is worth looking again by and by.
        before: what the journal had before it, or was given at first sight; None where it had nothing.
        after: what it has now; None where it has nothing any more.
    """

    status: NodeStatus | None
    waiting: bool
    before: Resize | None
    after: Resize | None


class Resizing:
    """Visits shares.

    Args:
        identity: driver and pool.
        journal: what is known.
        machine: where limits are set.
        preparation: lets pods join, and waiting claims look again.
        reader: claims of the API server.
        claim_locks: one lock a claim, shared with preparation and other instances.
        gpu_locks: one lock a GPU, likewise.
        offers: what is published.
        on_resized: told of a prepared claim whose shares have changed; it returns at once.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        journal: Journal,
        machine: Machine,
        preparation: Preparation,
        reader: ClaimReader,
        claim_locks: ClaimLocks,
        gpu_locks: GpuLocks,
        offers: Offers,
        on_resized: Callable[[Record], None] = lambda _record: None,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._machine = machine
        self._preparation = preparation
        self._reader = reader
        self._claim_locks = claim_locks
        self._gpu_locks = gpu_locks
        self._offers = offers
        self._on_resized = on_resized
        self._pods_seen: dict[str, tuple[int, tuple[str, ...]]] = {}

    def wish(self, resize: ClaimResize) -> Wish | None:
        """Return what an object asks of this node; None where it asks nothing of a share here."""
        return wishes.of(resize, self._identity.driver, self._identity.pool)

    def key_of(self, resize: ClaimResize) -> ShareKey | None:
        """Return the share or device here that an object is about; None where it is about none."""
        wish = self.wish(resize)
        return wish.key if wish is not None else settings.key_of(resize, self._identity.driver, self._identity.pool)

    async def visit(self, key: ShareKey, seen: ClaimResize | None) -> Visit:
        """Do what can be done for a share now.

        Args:
            key: the share.
            seen: its object; None where there is none.

        Raises:
            LockTimeoutError, JournalError, ClaimReadError: nothing, or not everything, was done; visit it again.
        """
        until = asyncio.get_running_loop().time() + _LOCK_S
        async with self._claim_locks.hold(key.uid, f"resize of claim {key.uid}", until):
            if not key.share_id:
                return await self._visit_whole(key, seen)
            wish = None if seen is None else self.wish(seen)
            found = await self._journal.resizes_of(key.uid)
            before = next((one for one in found if one.key == key), None)
            if before is None and (wish is None or wish.key != key):
                return Visit(None, waiting=False, before=None, after=None)
            if before is not None:  # another instance may have changed it
                self._offers.offer(key, before.offered)
            record = await self._journal.load(key.uid)
            if record is None:
                self._pods_seen.pop(key.uid, None)
            one = _OneShare(self, before, wish if wish is None or wish.key == key else None, record)
            resting = await one.run(deletable=seen is None)
            after, record = one.resize, one.record
            status = None
            if seen is not None and one.wish is not None and after is not None:
                status = report(after, one.wish, one.facts(), seen, record)
        self._tell(one.before, after, record)
        return Visit(status, resting.waiting, one.before, after)

    async def _visit_whole(self, key: ShareKey, seen: ClaimResize | None) -> Visit:
        record = await self._journal.load(key.uid)
        whole = WholeDevices(self._journal, self._machine, self._gpu_locks)
        outcome = await whole.visit(key, seen, record, self.presence(record))
        return Visit(outcome.status, outcome.waiting, None, None)

    def _tell(self, before: Resize | None, after: Resize | None, record: Record | None) -> None:
        if before is None or after is None or before.limit == after.limit:
            return
        _log.info(
            "a share is resized",
            claim=f"{after.namespace}/{after.name} ({after.uid})",
            device=after.device,
            limit=after.limit.text(),
            before=before.limit.text(),
        )
        self._preparation.wake()
        if record is not None and record.boot_id == self._journal.boot_id and record.state is State.PREPARED:
            self._on_resized(record)

    async def keep(self, resize: Resize) -> None:
        """Write to the journal, then publish what it offers."""
        await self._journal.keep_resize(resize)
        self._offers.offer(resize.key, resize.offered)

    async def drop(self, key: ShareKey) -> None:
        """Forget a share of which nothing is published."""
        await self._journal.drop_resize(key)
        self._offers.offer(key, Amounts())

    async def raise_limit(self, resize: Resize, record: Record | None) -> str:
        """Write a higher limit to the journal; returns who leaves no room for it, empty when it is written."""
        blockers = await self._journal.raise_limit(resize)
        if not blockers:
            return ""
        return no_room(record.ref if record is not None else _ref(resize), blockers)

    async def enforce(self, resize: Resize) -> Enforced:
        """Set the limits of a prepared share to its goal, and look what holds."""
        record = await self._journal.load(resize.uid)
        assert record is not None, "the claim's lock is held"
        pods = await self._pods(record)
        until = asyncio.get_running_loop().time() + _LOCK_S
        async with self._gpu_locks.hold(record.lock_keys, str(record.ref), until):
            await self._preparation.admit(record, pods or ())
            try:
                return await enforce(record, resize, self._machine, pods)
            except (VendorError, MpsError, SpecStoreError) as error:
                _log.warning("the limits of a share cannot be set now", claim=str(record.ref), reason=str(error))
                return Enforced(resize.limit, complete=False, reason="LimitsNotSet", message=str(error))

    async def _pods(self, record: Record) -> Sequence[str] | None:
        """Return the pods that may use a claim, those among them that were force-deleted; None where it is gone.

        Kubernetes forgets such a pod at once, while its processes go on for seconds.
        """
        claim: ResourceClaim | None = await self._reader.get(record.ref.namespace, record.ref.name)
        if claim is None or claim.metadata.uid != record.ref.uid:
            return None
        seq, seen = self._pods_seen.get(record.ref.uid, (record.seq, ()))
        pods = tuple(dict.fromkeys((*(seen if seq == record.seq else ()), *pods_of(claim))))
        self._pods_seen[record.ref.uid] = record.seq, pods
        return pods

    async def record(self, uid: str) -> Record | None:
        """Return a claim's record with all its resizes."""
        return await self._journal.load(uid)

    def presence(self, record: Record | None) -> Presence:
        """Return how a claim is there."""
        if record is None:
            return Presence.GONE
        if record.boot_id != self._journal.boot_id:
            return Presence.AWAY
        whole = record.state is State.PREPARED and not record.adopted and not record.fault
        return Presence.HERE if whole else Presence.UNCLEAR

    def at_server(self, key: ShareKey) -> Amounts | None:
        """Return what the server has for a share; None while that is not known."""
        return self._offers.at_server(key)


class _OneShare:
    """A visit under the claim's lock."""

    def __init__(self, of: Resizing, before: Resize | None, wish: Wish | None, record: Record | None) -> None:
        self._of = of
        self.before = self.resize = before
        self.wish = wish
        self.record = record
        self._enforced: Enforced | None = None
        self._refused: tuple[Amounts, str] | None = None

    def facts(self) -> Facts:
        """Return what is known now."""
        presence = self._of.presence(self.record)
        at_server = None if self.resize is None else self._of.at_server(self.resize.key)
        facts = Facts(presence, at_server, self._enforced)
        if self._refused is not None:
            facts = replace(facts, refused=self._refused[0], refusal=self._refused[1])
        return facts

    async def run(self, *, deletable: bool) -> Rest:
        """Do one step after the other until nothing can be done."""
        if self.resize is None:
            assert self.wish is not None
            await self._keep(wishes.begun(self.wish, self._held()))
            self.before = self.resize
        for _ in range(_MOST_MOVES):
            assert self.resize is not None
            match decide(self.resize, self.wish, self.facts()):
                case Keep(resize):
                    await self._keep(resize)
                case Raise(resize):
                    refusal = await self._of.raise_limit(resize, self.record)
                    if refusal:
                        self._refused = resize.limit, refusal
                    else:
                        await self._took(resize)
                case Enforce():
                    self._enforced = await self._of.enforce(self.resize)
                case Drop():
                    if deletable:
                        await self._of.drop(self.resize.key)
                        self.resize = None
                    return Rest()
                case Rest() as rest:
                    return rest
        _log.error("a resize does not come to rest", resize=str(self.resize), wish=str(self.wish))
        return Rest(waiting=True)

    def _held(self) -> Amounts | None:
        """Return what the claim was prepared with; of one that was taken over from a lost journal, at most that."""
        assert self.wish is not None
        if self.record is None:
            return None
        key = (self.wish.key.device, self.wish.key.share_id)
        share = next((one for one in self.record.planned if (one.device, one.share_id) == key), None)
        if share is None:
            return self.wish.allocated
        return Amounts(share.percent, share.memory_bytes, share.clients or 0, share.nvlink_bandwidth or 0)

    async def _keep(self, resize: Resize) -> None:
        await self._of.keep(resize)
        await self._took(resize)

    async def _took(self, resize: Resize) -> None:
        """Go on with what the journal has now."""
        before, self.resize = self.resize, resize
        if before is None or (resize.goal, resize.limit) != (before.goal, before.limit):
            self.record = await self._of.record(resize.uid)
        if before is None or resize.goal != before.goal:
            self._enforced = None


def _ref(resize: Resize) -> ClaimRef:
    return ClaimRef(resize.namespace, resize.name, resize.uid)
