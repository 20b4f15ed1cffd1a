"""Taking the driver off a node for good: `dra-gpu node leave`.

A pod whose claims nobody gives back stays Terminating for ever, and GPUs keep what its claims made of them. So whoever
leaves first stays: it publishes nothing and refuses new claims, but goes on giving back those that end, until none is
left and no other instance of the driver runs here. Then nothing of the driver is on the node any more: no slice, no
socket, no CDI file, no setting of a GPU, no partition, no journal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from dra_gpu.apiserver.publisher import SlicePublisher
from dra_gpu.claims.record import Record
from dra_gpu.health.store import FILE_NAME
from dra_gpu.kubelet import service
from dra_gpu.kubelet.leftovers import living_registrations
from dra_gpu.node import reset_log
from dra_gpu.node.presence import somebody_present

REASON = "the driver is being removed from this node"
LOOK_SECONDS = 0.5  # a look at the local journal; what ends is given back by the kubelet's own call
COMPARE_SECONDS = 10.0  # with the API server: claims that vanished without a call
_NAMED = 20

_log = structlog.get_logger(__name__)


class LeavingService:
    """Serves the kubelet while the driver leaves: no new claims.

    A claim that is prepared is prepared again, so that the pod that has it can restart its containers.

    Args:
        inner: serves claims.
        known: returns which UIDs have a record.
    """

    def __init__(
        self, inner: service.ClaimService, known: Callable[[Sequence[str]], Awaitable[Collection[str]]]
    ) -> None:
        self._inner = inner
        self._known = known

    async def prepare(
        self, claims: Sequence[service.ClaimRef], deadline: float
    ) -> Mapping[str, service.PreparedClaim | service.ClaimError]:
        """See `kubelet.service.ClaimService.prepare`."""
        known = await self._known([claim.uid for claim in claims])
        answers: dict[str, service.PreparedClaim | service.ClaimError] = {
            claim.uid: service.ClaimError(f"claim {claim}: {REASON}: recreate the pod, so that it gets another node")
            for claim in claims
        }
        prepared = [claim for claim in claims if claim.uid in known]
        return answers | dict(await self._inner.prepare(prepared, deadline)) if prepared else answers

    async def unprepare(
        self, claims: Sequence[service.ClaimRef], deadline: float
    ) -> Mapping[str, service.ClaimError | None]:
        """See `kubelet.service.ClaimService.unprepare`."""
        return await self._inner.unprepare(claims, deadline)


@dataclass(slots=True)
class Leaving:
    """Waits until nothing holds the node any more.

    Attributes:
        records: reads the journal.
        reconcile: compares claims with the API server and releases those that are gone, and what belongs to none.
        publisher: of the slices.
        registrar_dir: the kubelet's directory of registration sockets.
        driver: name of the driver.
        own: registration socket of this instance.
        state_dir: where instances say that they live.
    """

    records: Callable[[], Awaitable[Sequence[Record]]]
    reconcile: Callable[[], Awaitable[object]]
    publisher: SlicePublisher
    registrar_dir: Path
    driver: str
    own: Path
    state_dir: Path
    _told: str = field(default="", init=False)

    async def run(self) -> None:
        """Return when nothing of any claim is left, nothing is published, and no other instance runs.

        Raises:
            JournalError: the journal cannot be read.
            OSError: the state directory cannot be used.
        """
        self.publisher.withdraw(REASON)
        loop = asyncio.get_running_loop()
        compared = loop.time()
        while await self._in_the_way():
            await asyncio.sleep(LOOK_SECONDS)
            if loop.time() - compared >= COMPARE_SECONDS:
                await self.reconcile()
                compared = loop.time()

    async def _in_the_way(self) -> bool:
        held = [str(record.ref) for record in await self.records()]
        others = await asyncio.to_thread(living_registrations, self.registrar_dir, self.driver, self.own)
        reasons = []
        if held:
            more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
            reasons.append(f"claims hold devices; delete their pods: {', '.join(held[:_NAMED])}{more}")
        if others:
            reasons.append(
                f"another instance of the driver runs here; delete its DaemonSet: {', '.join(map(str, others))}"
            )
        elif await asyncio.to_thread(somebody_present, self.state_dir):
            reasons.append("another instance of the driver is still ending")
        if not self.publisher.settled.is_set():
            reasons.append("slices are still published")
        told = "; ".join(reasons)
        if told and told != self._told:
            _log.warning("the driver cannot leave this node yet", reason=told)
        self._told = told
        return bool(reasons)


def remove_state(state_dir: Path) -> None:
    """Remove the journal and the locks; what somebody else put there stays, and so does a journal that was damaged."""
    for pattern in (
        "journal.db",
        "journal.db-*",
        "journal.db.lock",
        "journal.db.new",
        "publisher.wanted",
        "dra*.sock",
        f"*{FILE_NAME}*",
        f"{reset_log.FILE_NAME}*",
    ):
        for path in state_dir.glob(pattern):
            path.unlink(missing_ok=True)
    locks = state_dir / "locks"
    for path in locks.glob("*.lock"):
        path.unlink(missing_ok=True)
    for directory in (locks, state_dir):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
