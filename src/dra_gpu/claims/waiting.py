"""Waiting inside a call for what another claim still holds.

The kubelet repeats a failed preparation only after a minute or more, while the holder's end is usually seconds away.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dra_gpu.claims.erasing import Erasing
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.locks import ClaimLocks, LockTimeoutError
from dra_gpu.claims.outcome import RefusedError
from dra_gpu.claims.plan import Plan
from dra_gpu.claims.reasons import held
from dra_gpu.claims.record import Blocker

HELD_WAIT_S = 30.0  # the Unprepare of a force-deleted pod usually comes within 2 s; a minute-long retry costs more
_HELD_POLL_S = 0.5  # for a release by the other instance; one of ours wakes the waiter at once
_AT_ONCE_S = 0.05  # a lock of an abandoned record is either free or its owner is alive


class Waiting:
    """Those that wait, and those that need not any more.

    Args:
        journal: who holds what.
        claim_locks: tells a holder that somebody is at work on from one that was abandoned.
        erasing: erases the latter, and tells when something came free.
    """

    def __init__(self, journal: Journal, claim_locks: ClaimLocks, erasing: Erasing) -> None:
        self._journal = journal
        self._claim_locks = claim_locks
        self._erasing = erasing
        self._leaving: dict[str, int] = {}

    @contextmanager
    def leave(self, uid: str) -> Iterator[None]:
        """Tell a preparation of the claim that waits for a device that nobody needs it any more."""
        self._leaving[uid] = self._leaving.get(uid, 0) + 1
        self._erasing.wake()
        try:
            yield
        finally:
            self._leaving[uid] -= 1
            if not self._leaving[uid]:
                del self._leaving[uid]

    async def until_free(self, plan: Plan, blockers: tuple[Blocker, ...], until: float) -> None:
        """Wait until nobody holds what a plan needs.

        Args:
            plan: of the claim.
            blockers: who held it at the last look.
            until: of the loop's clock.

        Raises:
            RefusedError: somebody still holds it, or the claim is being unprepared.
            JournalError: the records cannot be read.
        """
        loop = asyncio.get_running_loop()
        while blockers:
            for blocker in blockers:
                await self._reclaim(blocker)
            changed = self._erasing.freed
            blockers = await self._journal.blockers(plan.ref.uid, plan.holds, plan.shares)
            if not blockers:
                return
            if plan.ref.uid in self._leaving:
                raise RefusedError(f"claim {plan.ref} is being unprepared: its pod has gone", retryable=True)
            if loop.time() >= until:
                raise held(plan.ref, blockers)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, loop.time() + _HELD_POLL_S)):
                    await changed.wait()

    async def _reclaim(self, blocker: Blocker) -> None:
        """Erase a holder that a crash or a failure left half-way, unless somebody is at work on it."""
        uid = blocker.ref.uid
        if not blocker.state.in_between or self._claim_locks.is_wanted(uid):
            return
        deadline = asyncio.get_running_loop().time() + _AT_ONCE_S
        with suppress(LockTimeoutError, RefusedError):
            async with self._claim_locks.hold(uid, str(blocker.ref), deadline):
                record = await self._journal.load(uid)
                if record is not None and record.state.in_between and not record.fault:
                    await self._erasing.erase(record, asyncio.get_running_loop().time() + _HELD_POLL_S)
