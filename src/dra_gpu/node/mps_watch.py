"""Notices MPS daemons that had to be started again, and tells the claims that were on them.

A daemon that dies takes its clients with it; the service starts it again with its shares, so that containers started
from then on work. Whoever's processes were lost should read why in their claim.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.record import Record
from dra_gpu.claims.steps import ShareOnMps
from dra_gpu.mps.service import GpuClients, MpsError, MpsService

# Clients of a dead daemon fail at once by themselves; only the explanation waits so long.
LOOK_SECONDS = 10.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class MpsWatch:
    """Compares how often each GPU's daemon had to be started with what it was before.

    Attributes:
        service: the MPS service.
        records: returns the claims of this node.
        on_restart: told each claim that had a share on such a GPU, and what happened.
        period: seconds between two looks.
    """

    service: MpsService
    records: Callable[[], Awaitable[list[Record]]]
    on_restart: Callable[[Record, str], None]
    period: float = LOOK_SECONDS
    _restarts: dict[str, int] | None = None
    _away: bool = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self.period)

    async def look(self) -> None:
        """Look once. A service that is away is told once, and asked again the next time."""
        try:
            records = [record for record in await self.records() if _shares(record)]
            if not records and not self._restarts:
                self._restarts = {}
                return  # nothing is shared: a node without the service pays nothing
            found = await self.service.clients()
        except (MpsError, JournalError) as error:
            if not self._away:
                _log.warning("it cannot be told how the MPS daemons are", reason=str(error))
            self._away = True
            return
        self._away = False
        known = self._restarts
        for gpu in found:
            # What the first look finds may have been told before this process started; a GPU that comes later is new.
            if known is not None and gpu.daemon.restarts > known.get(gpu.daemon.gpu, 0):
                self._tell(gpu, records)
        self._restarts = {gpu.daemon.gpu: gpu.daemon.restarts for gpu in found}

    def _tell(self, gpu: GpuClients, records: list[Record]) -> None:
        device = gpu.daemon.gpu
        _log.error("an MPS daemon ended and was started again", gpu=device)
        for record in records:
            if any(_is_on(step, gpu) for step in _shares(record)):
                self.on_restart(
                    record,
                    f"the MPS daemon of GPU {device} ended and was started again: processes that used the GPU have "
                    "lost it and must be restarted; see the log of `dra-gpu mps` for the reason",
                )


def _shares(record: Record) -> tuple[ShareOnMps, ...]:
    """Return what of a claim its processes reach through MPS, shares and whole devices alike."""
    return tuple(step for step in record.steps if isinstance(step, ShareOnMps))


def _is_on(step: ShareOnMps, gpu: GpuClients) -> bool:
    """Tell whether a share is on a daemon; that of a partition goes by a UUID that no record has."""
    if step.placement is None:
        return step.gpu == gpu.daemon.gpu
    return step.share.name in {share.name for share in gpu.shares}
