"""All shared GPUs of the node: the service itself, whoever calls it.

Each GPU has a lock of its own: one that hangs costs its own calls. Daemons are watched; one that dies is started again
with its shares, at once the first time and ever later when it keeps dying. Every minute everything is compared with
what was asked for.
"""

import asyncio
import time

import structlog

from dra_gpu.mps import decisions
from dra_gpu.mps.process import DaemonProcess
from dra_gpu.mps.service import Daemon, GpuClients, Limits, MpsError, Share
from dra_gpu.mps.shared_gpu import Machine, SharedGpu
from dra_gpu.mps.state import Ledger

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 60.0
#: A daemon that ran for so long starts over with the shortest pause when it dies.
STEADY_S = 60.0

_log = structlog.get_logger(__name__)


class MpsDaemons:
    """`MpsService` on this machine."""

    def __init__(self, ledger: Ledger, machine: Machine) -> None:
        self._ledger = ledger
        self._machine = machine
        self._gpus: dict[str, SharedGpu] = {}
        self._pauses: dict[str, float] = {}
        self._reviving: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, gpu: str) -> Daemon:
        """See `MpsService.ensure`."""
        shared = self._gpu(gpu)
        async with shared.lock:
            return await shared.ensure()

    async def share(self, gpu: str, name: str, limits: Limits) -> Share:
        """See `MpsService.share`."""
        shared = self._gpu(gpu, name, limits)
        async with shared.lock:
            return await shared.share(name, limits)

    async def limits(self, gpu: str, name: str, limits: Limits) -> Share:
        """See `MpsService.limits`."""
        shared = self._gpu(gpu, name, limits)
        async with shared.lock:
            return await shared.limits(name, limits)

    async def clients(self, gpu: str = "") -> tuple[GpuClients, ...]:
        """See `MpsService.clients`."""
        asked = (gpu,) if gpu else tuple(sorted(self._ledger.gpus))
        return tuple(found for found in await asyncio.gather(*map(self._clients, asked)) if found is not None)

    async def stop(self, gpu: str, name: str = "") -> None:
        """See `MpsService.stop`."""
        shared = self._gpu(gpu, name or None)
        async with shared.lock:
            await shared.stop(name)

    async def settle(self) -> None:
        """Put every GPU right as far as that goes now; what does not is logged and tried again later."""
        self._ledger.flush()
        await asyncio.gather(*map(self._settle, self._ledger.gpus))

    async def run(self, period: float) -> None:
        """Settle at once and every `period` seconds, for ever."""
        while True:
            await self.settle()
            await asyncio.sleep(period)

    async def close(self) -> None:
        """Watch nothing any more; the daemons go on."""
        reviving = tuple(self._reviving.values())
        for task in reviving:
            task.cancel()
        await asyncio.gather(*reviving, return_exceptions=True)
        for shared in self._gpus.values():
            shared.close()

    def _gpu(self, uuid: str, name: str | None = None, limits: Limits | None = None) -> SharedGpu:
        decisions.check(uuid, name, limits)
        shared = self._gpus.get(uuid)
        if shared is None:
            shared = SharedGpu(uuid, self._ledger, self._machine, lambda process: self._died(uuid, process))
            self._gpus[uuid] = shared
        return shared

    async def _clients(self, uuid: str) -> GpuClients | None:
        shared = self._gpu(uuid)
        async with shared.lock:
            return await shared.clients()

    async def _bar(self, shared: SharedGpu, uuid: str) -> None:
        async with shared.lock:
            try:
                await shared.bar()
            except MpsError as error:
                _log.warning("containers may use the GPU without limits until MPS is back", gpu=uuid, reason=str(error))

    async def _settle(self, uuid: str) -> None:
        shared = self._gpu(uuid)
        async with shared.lock:
            try:
                await shared.settle()
            except MpsError as error:
                _log.error("a shared GPU is not as it should be; tried again", gpu=uuid, reason=str(error))
            except Exception:  # noqa: BLE001 - one GPU's fault must not end the service of all
                _log.exception("settling a GPU failed in a way nobody thought of; tried again", gpu=uuid)

    def _died(self, uuid: str, process: DaemonProcess) -> None:
        """Start a daemon again that has died by itself."""
        lived = time.monotonic() - process.since
        pause = FIRST_PAUSE_S if lived >= STEADY_S else min(self._pauses.get(uuid, 0.0) * 2, LONGEST_PAUSE_S)
        self._pauses[uuid] = max(pause, FIRST_PAUSE_S)
        _log.error(
            "an MPS daemon died, and its clients with it; it is started again",
            gpu=uuid,
            pid=process.pid,
            lived_seconds=round(lived, 1),
            pause_seconds=self._pauses[uuid],
        )
        if uuid not in self._reviving:
            self._reviving[uuid] = asyncio.create_task(self._revive(uuid), name=f"revive {uuid}")

    async def _revive(self, uuid: str) -> None:
        """Try until it runs, or nobody wants it any more."""
        shared = self._gpus[uuid]
        try:
            await self._bar(shared, uuid)
            while shared.wanted is not None and not shared.runs:
                await asyncio.sleep(self._pauses[uuid])
                await self._settle(uuid)
                if not shared.runs:
                    self._pauses[uuid] = min(self._pauses[uuid] * 2, LONGEST_PAUSE_S)
        finally:
            del self._reviving[uuid]
