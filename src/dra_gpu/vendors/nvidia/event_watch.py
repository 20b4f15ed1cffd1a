"""Watches GPUs by NVML's events, for as long as somebody wants it, with one thread that waits.

NVML is open while one watches, and with it every GPU. Whoever has to close it, for a reset or to find GPUs that came
later, asks by the `Gate`: the wait ends within half a second, and the watch goes on when the gate opens again. What
happens in between is not told as an event; who looks at the GPUs finds it.

A lost GPU ends every wait at once, as often as one waits. It is left out, told once, and tried again now and then.
"""

import asyncio
import enum
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.health import HealthEvent, HealthEventKind
from dra_gpu.vendors.nvidia.events import EventSet, LostGpuError, handed_over
from dra_gpu.vendors.nvidia.gate import Gate
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.session import Session
from dra_gpu.vendors.watchdog import Watchdog

# How long a wait lasts: so late at most is it noticed that somebody wants NVML closed.
WAIT_MS = 500
# A GPU that was lost and answers again is watched again after so long at most.
RETRY_SECONDS = 5.0
_CALL_SECONDS = 15.0
_SUBJECT = "NVML's events"

T = TypeVar("T")

Report = Callable[[HealthEvent], None]
Ready = Callable[[Sequence[str]], None]


class _Ended(enum.Enum):
    """Why one does not wait for a set any more."""

    CLOSING = "NVML is wanted closed"
    AT_ONCE = "its first wait says that a GPU is lost"
    LATER = "a later wait says so"


class EventWatch:
    """Watches GPUs, one watch at a time.

    Args:
        nvml: the library of this process.
        gate: who uses it.
        watchdog: by which blocking calls run.
    """

    def __init__(self, nvml: Nvml, gate: Gate, watchdog: Watchdog) -> None:
        self._session = Session(nvml, watchdog)
        self._gate = gate
        self._watchdog = watchdog

    async def run(self, gpus: Sequence[Gpu], report: Report, ready: Ready) -> None:
        """See `vendors.base.Vendor.watch_health`."""
        wanted = tuple(gpu.uuid for gpu in gpus)
        told = _Told(report, ready)
        while True:
            async with self._gate.use(), self._session.opened():
                await self._while_open(wanted, told)
            # Nobody is watched, or NVML is wanted closed: then the gate makes this wait as long as it takes.
            await asyncio.sleep(0 if told.watched else RETRY_SECONDS)

    async def _while_open(self, wanted: Sequence[str], told: "_Told") -> None:
        """Watch until somebody wants NVML closed, or there is nobody to watch."""
        events = await self._registered(wanted, careful=False)
        try:
            told.of(events)
            while events.watched:
                ended = await self._listen(events, wanted, told)
                if ended is _Ended.CLOSING:
                    return
                # The former set goes only when the next one has everybody who is left, so that nothing is missed.
                former, events = events, await self._registered(wanted, careful=True)
                await self._hand_over(former, events, told)
                told.of(events)
                if ended is _Ended.AT_ONCE and events.lost == former.lost:
                    raise _broken()
        finally:
            await self._close(events)

    async def _registered(self, wanted: Sequence[str], *, careful: bool) -> EventSet:
        """Return a new set. What happens meanwhile to those of a former set is told by that one."""
        events = await self._blocking("nvmlEventSetCreate", EventSet)
        try:
            await self._add(events, wanted, careful=careful)
        except BaseException:
            await self._close(events)
            raise
        return events

    async def _add(self, events: EventSet, wanted: Sequence[str], *, careful: bool) -> list[HealthEvent]:
        """Have GPUs registered; returns what happened to those that were waited for alone."""
        found: list[HealthEvent] = []
        await self._blocking("nvmlDeviceRegisterEvents", lambda: events.add(wanted, found.append, careful=careful))
        if events.answering and not events.watched:
            raise _broken()  # it is the waiting that does not work, and no GPU is to blame
        return found

    async def _hand_over(self, former: EventSet, following: EventSet, told: "_Told") -> None:
        try:
            for event in await self._blocking("nvmlEventSetWait_v2", lambda: handed_over(former, following)):
                told.report(event)
        finally:
            await self._close(former)

    async def _listen(self, events: EventSet, wanted: Sequence[str], told: "_Told") -> "_Ended":
        """Hand events on until NVML has to be closed, or the set is of no use because a GPU of it is lost."""
        loop = asyncio.get_running_loop()
        retry, lost = loop.time() + RETRY_SECONDS, _Ended.AT_ONCE
        while not self._gate.closing:
            try:
                found = await self._blocking("nvmlEventSetWait_v2", lambda: events.wait(WAIT_MS))
            except LostGpuError:
                return lost
            lost = _Ended.LATER
            for event in found:
                told.report(event)
            if events.lost and loop.time() >= retry:
                for event in await self._add(events, wanted, careful=True):
                    told.report(event)
                told.of(events)
                retry = loop.time() + RETRY_SECONDS
        return _Ended.CLOSING

    async def _close(self, events: EventSet) -> None:
        if not self._watchdog.stuck:  # else a call may still be inside the library
            await self._blocking("nvmlEventSetFree", events.close)

    async def _blocking(self, what: str, call: Callable[[], T], seconds: float = _CALL_SECONDS) -> T:
        return await _to_its_end(self._watchdog.call(_SUBJECT, what, call, seconds))


def _broken() -> VendorError:
    return VendorError(
        FailureKind.LOST,
        "NVML: nvmlEventSetWait_v2 says that a GPU is lost, and none is: GPUs are looked at instead; reload the driver",
    )


class _Told:
    """What has been told of, so that it is told once."""

    def __init__(self, report: Report, ready: Ready) -> None:
        self.report = report
        self._ready = ready
        self.watched: tuple[str, ...] | None = None
        self._lost: frozenset[str] = frozenset()

    def of(self, events: EventSet) -> None:
        """Tell what differs from the last time: who is watched, and who is lost."""
        for uuid in sorted(events.lost - self._lost):
            self.report(HealthEvent(uuid, HealthEventKind.LOST, detail="NVML does not reach it any more"))
        self._lost = events.lost
        if events.watched != self.watched:
            self.watched = events.watched
            self._ready(events.watched)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something whose thread must not be left behind when this task is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
