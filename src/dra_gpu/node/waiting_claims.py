"""Says when a device comes free for which a claim had to be refused, so that its pod need not wait for a minute.

The kubelet repeats a failed Prepare after 60 to 90 s. Who refused because other claims hold the device knows them by
name; when one of them has left the journal, another call is worth it, and an Event of the claim says so. The controller
hears it and has the kubelet call at once; a person reads it in `kubectl describe`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.outcome import ClaimRef, Refusal

LOOK_SECONDS = 0.5
"""Between two looks into the journal while somebody waits; also another instance of the plugin may give back."""
FORGET_SECONDS = 120.0
"""After a refusal; the kubelet has called again by itself, and a claim that is refused again is waited for anew."""
_MOST = 1024

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Wait:
    ref: ClaimRef
    holders: frozenset[str]
    until: float


@dataclass(slots=True)
class WaitingClaims:
    """Remembers refused claims and who held what they want.

    Attributes:
        known: returns which of some claims have a record in the journal.
        on_free: told a claim of whose holders one has gone.
        period: seconds between two looks.
    """

    known: Callable[[Sequence[str]], Awaitable[frozenset[str]]]
    on_free: Callable[[ClaimRef], None]
    period: float = LOOK_SECONDS
    dropped: int = 0
    """How many claims were not remembered, since too many wait: the kubelet calls again by itself, later."""
    _waits: dict[str, _Wait] = field(default_factory=dict)
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    def refused(self, ref: ClaimRef, refusal: Refusal) -> None:
        """Take note of a refusal; one that nobody's leaving would change is none to wait for."""
        self._waits.pop(ref.uid, None)
        if not refusal.holders:
            return
        if len(self._waits) < _MOST:
            until = asyncio.get_running_loop().time() + FORGET_SECONDS
            self._waits[ref.uid] = _Wait(ref, refusal.holders, until)
            self._some.set()
        else:
            self.dropped += 1

    def answered(self, ref: ClaimRef) -> None:
        """Take note of a claim that was prepared, or is not wanted any more."""
        self._waits.pop(ref.uid, None)

    async def run(self) -> None:
        """Look until cancelled; nobody is asked while nobody waits."""
        while True:
            await self._some.wait()
            await self.look()
            if not self._waits:
                self._some.clear()
                continue
            await asyncio.sleep(self.period)

    async def look(self) -> None:
        """Look once."""
        now = asyncio.get_running_loop().time()
        self._waits = {uid: wait for uid, wait in self._waits.items() if wait.until > now}
        holders = sorted({holder for wait in self._waits.values() for holder in wait.holders})
        try:
            there = await self.known(holders) if holders else frozenset()
        except JournalError as error:
            _log.info("it cannot be told whether devices came free", reason=str(error))
            return
        for uid, wait in list(self._waits.items()):
            if not wait.holders <= there and self._waits.get(uid) is wait:
                del self._waits[uid]
                self.on_free(wait.ref)
