"""What is done for one claim, under its lock: prepare, unprepare, repair, quarantine.

The journal stands between intent and effect: a record is written before the first step and deleted after the last one
is undone. A record that says anything but `prepared` may have left effects behind and is erased before anything else
happens to its claim. Records of an earlier boot have no hardware effects left and block nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import structlog

from dra_gpu.api.resource_v1 import AllocationResult, ResourceClaim
from dra_gpu.claims import execution
from dra_gpu.claims.allocation import pods_of, resize_of
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.erasing import Erasing
from dra_gpu.claims.execution import StepFailedError
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.locks import ClaimLocks, GpuLocks
from dra_gpu.claims.outcome import ClaimRef, Prepared, Refusal, RefusedError
from dra_gpu.claims.plan import Plan, make_plan
from dra_gpu.claims.ports import ClaimReader, ClaimReadError, ResizeReader
from dra_gpu.claims.reasons import gpu_gone, quarantined, refuse_growth, refuse_unknown_steps
from dra_gpu.claims.record import Blocker, Record, State, joined_cgroups
from dra_gpu.claims.resize import wish as wishes
from dra_gpu.claims.retry import retrying
from dra_gpu.claims.steps import LimitMemory, Machine, with_owners
from dra_gpu.claims.waiting import HELD_WAIT_S, Waiting
from dra_gpu.inventory import naming
from dra_gpu.inventory.devices import Inventory
from dra_gpu.vendors.base import CgroupUnlimitedError

_log = structlog.get_logger(__name__)

_UNLIMITED_S = 600.0  # for how long it is not tried again whether the driver limits memory of pods


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose claims these are: driver name and the pool on this node."""

    driver: str
    pool: str


class Preparation:
    """Serves one claim at a time by its UID; different claims at once.

    Args:
        identity: driver and pool.
        journal: the records, and the boot in which effects live.
        machine: where steps take effect.
        reader: claims of the API server.
        inventory: returns what the node offers at the moment of the call.
        claim_locks: one lock a claim, shared with other instances.
        gpu_locks: one lock a GPU, shared with other instances.
        held_wait: seconds to wait inside a call for a device that another claim still holds.
        on_prepared: told of each record that has become prepared, or was found to be, after the call's answer; it
            returns at once.
        on_gone: told of the UID of each claim that has no record any more; it returns at once.
        resizes: ClaimResizes of the API server, for claims of which the journal has forgotten that they were resized.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        journal: Journal,
        machine: Machine,
        reader: ClaimReader,
        inventory: Callable[[], Inventory],
        claim_locks: ClaimLocks,
        gpu_locks: GpuLocks,
        held_wait: float = HELD_WAIT_S,
        on_prepared: Callable[[Record], None] = lambda _record: None,
        on_gone: Callable[[str], None] = lambda _uid: None,
        resizes: ResizeReader | None = None,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._machine = machine
        self._reader = reader
        self._inventory = inventory
        self._claim_locks = claim_locks
        self._gpu_locks = gpu_locks
        self._held_wait = held_wait
        self._on_prepared = on_prepared
        self._unlimited = ("", 0.0)
        self._resizes = resizes
        self._erasing = Erasing(journal, machine, gpu_locks, on_gone)
        self._waiting = Waiting(journal, claim_locks, self._erasing)

    async def prepare(self, ref: ClaimRef, until: float) -> Prepared:
        """Make a claim ready, or verify and repair one that is.

        Args:
            ref: the claim.
            until: nothing new is begun after this moment of the loop's clock.

        Raises:
            RefusedError, VendorError, MpsError, JournalError, ClaimReadError, SpecStoreError, LockTimeoutError,
                StepFailedError: it is not ready; see `refusal_of`.
        """
        if not ref.has_valid_uid:
            raise RefusedError(
                f"claim {ref}: its UID is not made of 1 to 63 letters, digits and inner dashes, which files and "
                "devices could be named after: recreate the claim",
                retryable=False,
            )
        async with self._claim_locks.hold(ref.uid, str(ref), until):
            record = await self._journal.load(ref.uid)
            if record is not None and self._is_current(record):
                if record.state is State.QUARANTINED or record.fault:
                    raise quarantined(record)
                if record.state is State.PREPARED and not record.adopted:
                    await self._repair(record, until)
                    return Prepared(record.devices)
                if record.state.in_between:
                    await self._erasing.erase(record, until)
            in_use = record is not None and record.adopted and self._is_current(record)
            try:
                return await self._prepare_anew(ref, until, in_use=in_use)
            except (StepFailedError, CgroupUnlimitedError) as error:
                cause = error.cause if isinstance(error, StepFailedError) else error
                if not isinstance(cause, CgroupUnlimitedError):
                    raise
                _log.warning("memory of pods is not limited by the driver", claim=str(ref), reason=str(cause))
                self._unlimited = (str(cause), asyncio.get_running_loop().time() + _UNLIMITED_S)
            return await self._prepare_anew(ref, until, in_use=in_use)

    async def unprepare(self, ref: ClaimRef, until: float, *, seq: int | None = None) -> None:
        """Take back what was done for a claim; success when nothing was.

        Args:
            ref: the claim; only its UID matters.
            until: nothing new is begun after this moment of the loop's clock.
            seq: only if the claim's record is still that one.

        Raises:
            RefusedError, JournalError, LockTimeoutError: something of it may still be there.
        """
        with self._waiting.leave(ref.uid):
            async with self._claim_locks.hold(ref.uid, str(ref), until):
                record = await self._journal.load(ref.uid)
                if record is None or seq not in (None, record.seq):
                    return
                if self._is_current(record):
                    refuse_unknown_steps(record)
                    with suppress(JournalError):  # on a full disk the devices are released all the same
                        await self._journal.mark(ref.uid, State.UNPREPARING, record.note)
                await self._erasing.erase(record, until)

    async def concerned(self, refs: Sequence[ClaimRef]) -> frozenset[str]:
        """Return the UIDs for which there is something to unprepare: a record, or a call in work."""
        uids = [ref.uid for ref in refs]
        busy = frozenset(uid for uid in uids if self._claim_locks.is_wanted(uid))
        return busy | await self._journal.known(uids)

    async def repair(self, ref: ClaimRef, until: float, *, seq: int, pods: Sequence[str] = ()) -> bool:
        """Verify a prepared claim and apply what is missing; return whether anything was.

        A quarantined record whose GPUs are back becomes prepared again.

        Args:
            ref: the claim.
            until: as for `prepare`.
            seq: only if the claim's record is still that one.
            pods: UIDs of the pods that use it now; those that have joined are limited, too.
        """
        async with self._record(ref, until, seq) as record:
            if record is None or record.fault or record.state.in_between:
                return False
            for gpu in record.gpus:
                self._machine.doubt(gpu)
            await self.admit(record, pods)
            repaired = await self._repair(record, until)
            if record.state is State.QUARANTINED:
                await self._journal.mark(ref.uid, State.PREPARED)
            self._tell(record)
            return repaired

    async def erase(self, ref: ClaimRef, until: float, *, seq: int) -> bool:
        """Undo what a crash left of a claim; False when somebody is at work on it."""
        if self._claim_locks.is_wanted(ref.uid):
            return False
        async with self._record(ref, until, seq) as record:
            if record is None or not record.state.in_between:
                return False
            await self._erasing.erase(record, until)
            return True

    async def quarantine(self, ref: ClaimRef, until: float, *, seq: int, reason: str, keep_spec: bool) -> None:
        """Set a record aside: it stays, blocks its devices, and is not worked with.

        Args:
            ref: the claim.
            until: as for `prepare`.
            seq: only if the claim's record is still that one.
            reason: what is wrong, for the pod's events.
            keep_spec: leave the CDI file; a container that restarts may still need it.
        """
        async with self._record(ref, until, seq) as record:
            if record is None:
                return
            await self._journal.mark(ref.uid, State.QUARANTINED, reason)
            if not keep_spec:
                await self._machine.remove_spec(ref.uid)

    async def adopt(self, record: Record, until: float) -> bool:
        """Write a record for a claim that has none; False when it has one by now, or somebody holds its devices."""
        async with self._claim_locks.hold(record.ref.uid, str(record.ref), until):
            if await self._journal.load(record.ref.uid) is not None:
                return False
            return not await self._journal.begin(record)

    async def remove_orphan(self, uid: str, until: float) -> None:
        """Remove the CDI file of a claim that has no record."""
        async with self._claim_locks.hold(uid, "reconciliation", until):
            if await self._journal.load(uid) is None:
                await self._machine.remove_spec(uid)

    async def remove_orphaned_share(self, gpu: str, name: str, until: float) -> bool:
        """Give up a share on MPS that belongs to no record; False when one has it, or the GPU is not there.

        Args:
            gpu: UUID of a GPU or of a partition.
            name: of the share.
            until: as for `prepare`.
        """
        slot = self._slot_of(gpu)
        if slot is None:
            return False
        async with self._gpu_locks.hold((slot,), "reconciliation", until):
            # A record is written under the locks of its GPUs, and before its share is made.
            for record in await self._journal.records():
                if name in record.share_names:
                    return False
            await self._machine.unshare(gpu, name)
            return True

    def wake(self) -> None:
        """Let claims that wait for others look again: something came free."""
        self._erasing.wake()

    async def admit(self, record: Record, pods: Sequence[str]) -> None:
        """Note the cgroups of pods that have joined a claim whose memory is limited by cgroup."""
        if not any(isinstance(step, LimitMemory) for step in record.steps):
            return
        found = [cgroup for pod in pods if (cgroup := self._machine.pod_cgroup(pod)) is not None]
        joined = joined_cgroups(record, found)
        if joined:
            await self._journal.add_cgroups(record.ref.uid, joined)

    def _slot_of(self, uuid: str) -> str | None:
        """Return the slot of a GPU by its UUID, or by that of one of its partitions; None where it is not there."""
        for gpu in self._inventory().gpus.values():
            if uuid == gpu.uuid or any(uuid == instance.uuid for instance in gpu.mig_instances):
                return naming.slot(gpu)
        return None

    def _tell(self, record: Record) -> None:
        """Tell that a claim is prepared, once the answer to the call at work has gone its way."""
        asyncio.get_running_loop().call_soon(self._on_prepared, record)

    def _is_current(self, record: Record) -> bool:
        return record.boot_id == self._journal.boot_id

    @asynccontextmanager
    async def _record(self, ref: ClaimRef, until: float, seq: int) -> AsyncIterator[Record | None]:
        """Hold a claim's lock and give its record, None when it is not the expected one any more."""
        async with self._claim_locks.hold(ref.uid, str(ref), until):
            record = await self._journal.load(ref.uid)
            yield record if record is not None and record.seq == seq else None

    async def _repair(self, record: Record, until: float) -> bool:
        missing = next((gpu for gpu in sorted(record.gpus) if not self._machine.has_gpu(gpu)), None)
        if missing is not None:
            raise gpu_gone(record.ref, missing)
        wrong = await execution.broken(record.steps, self._machine, until)
        if not wrong:
            return False
        _log.info("repairing a prepared claim", claim=str(record.ref), steps=[type(step).__name__ for step in wrong])
        async with self._gpu_locks.hold(record.lock_keys, str(record.ref), until):
            await execution.repair(wrong, self._machine, until)
        return True

    async def _prepare_anew(self, ref: ClaimRef, until: float, *, in_use: bool) -> Prepared:
        claim, allocation = await self._allocated(ref, until)
        refuse_growth(ref, claim)
        await self._recall_resizes(ref, claim, until)
        plan = self._plan(ref, claim, allocation)
        if not plan.devices:
            return Prepared(())
        held_until = min(until, asyncio.get_running_loop().time() + self._held_wait)
        while True:
            async with self._gpu_locks.hold(plan.lock_keys, str(ref), until):
                # Whoever had the GPUs meanwhile may have left them in another mode than they were in.
                plan = self._plan(ref, claim, allocation)
                asked = plan.replaces_settings
                blockers = await self._journal.blockers(ref.uid, plan.holds, plan.shares) if asked else ()
                if not blockers:
                    blockers = await self._carry_out(plan, until, in_use=in_use)
            if not blockers:
                return Prepared(plan.devices)
            await self._waiting.until_free(plan, blockers, held_until)

    def _plan(self, ref: ClaimRef, claim: ResourceClaim, allocation: AllocationResult) -> Plan:
        why_unlimited, then = self._unlimited
        plan = make_plan(
            ref,
            allocation,
            driver=self._identity.driver,
            pool=self._identity.pool,
            inventory=self._inventory(),
            around=Surroundings(
                self._machine.sharing,
                self._machine.serves_mps,
                pods_of(claim),
                self._machine.pod_cgroup,
                self._machine.in_mig_mode,
                why_unlimited if asyncio.get_running_loop().time() < then else "",
            ),
        )
        if isinstance(plan, Refusal):
            raise RefusedError(plan.message, retryable=plan.retryable, kind=plan.kind)
        return plan

    async def _allocated(self, ref: ClaimRef, until: float) -> tuple[ResourceClaim, AllocationResult]:
        claim = await retrying(lambda: self._reader.get(ref.namespace, ref.name), _retryable_read, until)
        if claim is None:
            raise RefusedError(f"claim {ref} does not exist any more: its pod is being replaced", retryable=True)
        if claim.metadata.uid != ref.uid:
            raise RefusedError(
                f"claim {ref} was replaced by one of the same name with UID {claim.metadata.uid[:80]}: the pod of the "
                "old one has to go",
                retryable=True,
            )
        if claim.status.allocation is None:
            raise RefusedError(
                f"claim {ref} is not allocated: the scheduler has to place its pod first", retryable=True
            )
        return claim, claim.status.allocation

    async def _recall_resizes(self, ref: ClaimRef, claim: ResourceClaim, until: float) -> None:
        """Learn from the ClaimResize how much of a claim is in force, where the journal was lost.

        What the claim gave back, others have by now: it must not be given its first limits again.
        """
        name = resize_of(claim)
        if self._resizes is None or name is None or await self._journal.resizes_of(ref.uid):
            return
        reader = self._resizes
        resize = await retrying(lambda: reader.get(ref.namespace, name), _retryable_read, until)
        wish = None if resize is None else wishes.of(resize, self._identity.driver, self._identity.pool)
        if wish is not None and wish.key.uid == ref.uid and wish.told.in_force is not None:
            await self._journal.keep_resize(wishes.begun(wish))

    async def _carry_out(self, plan: Plan, until: float, *, in_use: bool) -> tuple[Blocker, ...]:
        """Journal, apply, journal; returns who is in the way, and then nothing was done.

        What is in use already (an adopted claim's) is never undone: what fails stays to be repaired.
        """
        ref = plan.ref
        steps = with_owners(await execution.observed(plan.steps, self._machine, until))
        record = Record(
            ref=ref,
            boot_id=self._journal.boot_id,
            state=State.PREPARED if in_use else State.PREPARING,
            devices=plan.devices,
            steps=steps,
            holds=plan.holds,
            shares=plan.shares,
            cgroups=plan.cgroups,
            lock_keys=plan.lock_keys,
        )
        blockers = await self._journal.begin(record)
        if blockers:
            return blockers
        record = await self._journal.load(ref.uid) or record  # with as much of it as is in force
        steps = record.steps
        if in_use:
            await execution.repair(steps, self._machine, until)
            self._tell(record)
            return ()
        try:
            await execution.apply(steps, self._machine, until)
        except execution.StepFailedError as error:
            await self._erasing.give_up(record, error.leftovers)
            raise
        try:
            await self._journal.mark(ref.uid, State.PREPARED)
        except JournalError:
            await self._erasing.give_up(record, await execution.undo(steps, self._machine, until))
            raise
        self._tell(replace(record, state=State.PREPARED))
        return ()


def _retryable_read(error: Exception) -> bool:
    return isinstance(error, ClaimReadError) and error.retryable
