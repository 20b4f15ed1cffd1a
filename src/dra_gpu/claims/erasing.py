"""Taking a claim back: its steps undone, its record deleted, and whoever waits for its devices told.

What cannot be undone stays in the record, and nothing else of the claim does.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from dra_gpu.claims import execution
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.locks import GpuLocks
from dra_gpu.claims.outcome import RefusalKind, RefusedError
from dra_gpu.claims.record import Record, State
from dra_gpu.claims.steps import CreateMigInstance, Machine, SetMigMode, WriteCdiSpec

_log = structlog.get_logger(__name__)

_IN_USE_POLL_S = 0.5  # a process that is being killed lets a partition go within that; its neighbours need the lock


class Erasing:
    """Erases records. Every coroutine wants the claim's lock held.

    Args:
        journal: the records, and the boot in which effects live.
        machine: where steps are undone.
        gpu_locks: one lock a GPU.
        on_gone: told of the UID of each claim that has no record any more; it returns at once.

    Attributes:
        freed: set, and replaced by a new one, whenever something came free.
    """

    def __init__(self, journal: Journal, machine: Machine, gpu_locks: GpuLocks, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone
        self._journal = journal
        self._machine = machine
        self._gpu_locks = gpu_locks
        self.freed = asyncio.Event()

    def wake(self) -> None:
        """Let everybody who waits for a device look again."""
        self.freed.set()
        self.freed = asyncio.Event()

    async def erase(self, record: Record, until: float) -> None:
        """Undo a record's steps and delete it. Of another boot, only its CDI file is left to undo.

        Raises:
            RefusedError: something could not be undone; it stays in the record.
            JournalError, LockTimeoutError: the record is still there.
        """
        ref = record.ref
        steps = record.steps
        if not self._current(record) or record.fault:
            steps = (WriteCdiSpec(ref.uid, "", ()),)
        keys = record.lock_keys if self._current(record) else ()
        loop = asyncio.get_running_loop()
        while True:
            async with self._gpu_locks.hold(keys, str(ref), until):
                leftovers = await execution.undo(steps, self._machine, until)
                waits = any(leftover.in_use for leftover in leftovers) and loop.time() + _IN_USE_POLL_S <= until
                # Under the lock: what several claims have together goes with the last of them, and of two that end
                # at once the second must not take the first for one that stays.
                if not leftovers:
                    await self._journal.forget(ref.uid)
                elif not waits:
                    await self._narrow(record, leftovers)
            if not waits:
                break
            await asyncio.sleep(_IN_USE_POLL_S)  # without the lock: others may have their parts of the GPU meanwhile
        if not leftovers:
            self._gone(ref.uid)
            return
        reasons = "; ".join(leftover.reason for leftover in leftovers)
        if not all(leftover.silent for leftover in leftovers):
            kind = RefusalKind.HELD if any(leftover.in_use for leftover in leftovers) else RefusalKind.GPU
            raise RefusedError(f"claim {ref}: cannot be taken back yet: {reasons}", retryable=True, kind=kind)
        _log.warning("a claim is taken back when its GPU answers again", claim=str(ref), reason=reasons)

    async def give_up(self, record: Record, leftovers: Sequence[execution.Leftover]) -> None:
        """Delete the record of a failed preparation; what could not be undone stays in it for the next call."""
        if leftovers:
            reasons = [leftover.reason for leftover in leftovers]
            _log.warning("steps of a failed preparation remain", claim=str(record.ref), reasons=reasons)
            await self._narrow(record, leftovers)
            return
        with suppress(JournalError):
            await self._journal.forget(record.ref.uid)
            self._gone(record.ref.uid)

    async def _narrow(self, record: Record, leftovers: Sequence[execution.Leftover]) -> None:
        """Let go of everything but what could not be undone: what resists keeps nothing else from use.

        The mode of a GPU comes after its partitions, so that it waits for them; and a partition comes after what is
        left in it: others may use it meanwhile, and be gone before that.
        """
        left = tuple(leftover.step for leftover in leftovers)
        held = frozenset(gpu for step in left for gpu in step.gpus)
        inside = frozenset(place for step in left for place in step.places)
        kept = tuple(
            step
            for step in record.steps
            if step in left
            or (isinstance(step, SetMigMode) and step.gpu in held)
            or (isinstance(step, CreateMigInstance) and inside.issuperset(step.places))
        )
        holds = tuple(hold for hold in record.holds if any(hold.is_of(place) for step in left for place in step.places))
        devices = {hold.device for hold in holds}
        narrowed = replace(
            record,
            state=State.UNPREPARING,
            steps=kept,
            holds=holds,
            shares=tuple(share for share in record.shares if share.device in devices),
            planned=tuple(share for share in record.planned if share.device in devices),
            cgroups=tuple(cgroup for cgroup in record.cgroups if cgroup.gpu in held),
            note="; ".join(leftover.reason for leftover in leftovers),
        )
        if narrowed.steps == record.steps or record.fault:
            return
        with suppress(JournalError):  # it stays as it is, and holds more than it must
            await self._journal.begin(narrowed)
            self.wake()

    def _gone(self, uid: str) -> None:
        self._on_gone(uid)
        self.wake()

    def _current(self, record: Record) -> bool:
        return record.boot_id == self._journal.boot_id
