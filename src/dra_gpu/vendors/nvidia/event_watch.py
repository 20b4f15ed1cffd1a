"""Watches GPUs by NVML's events, for as long as somebody wants it, with one thread that waits.

NVML is open while one watches, and with it every GPU. Whoever has to close it, for a reset or to find GPUs that came
later, asks by the `Gate`, and another instance of the driver by `Neighbours`: the wait ends within half a second, and
the watch goes on when they have finished. What happens in between is not told as an event; who looks at the GPUs finds
it.

A lost GPU ends every wait at once, as often as one waits. It is left out, told, and tried again now and then; that it
is still lost is told once a minute, as nothing new. One that does not answer costs a thread of its own; it is left out
and tried again, too, and not called lost.
"""

import asyncio
import enum
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.health import HealthEvent, HealthEventKind
from dra_gpu.vendors.nvidia import events
from dra_gpu.vendors.nvidia.events import EventSet, LostGpuError
from dra_gpu.vendors.nvidia.gate import Gate
from dra_gpu.vendors.nvidia.neighbours import Neighbours
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.session import Session
from dra_gpu.vendors.watchdog import Watchdog

# How long a wait lasts: so late at most is it noticed that somebody wants NVML closed.
WAIT_MS = 500
# A GPU that was left out and answers again is watched again after so long at most.
RETRY_SECONDS = 5.0
# That a GPU is still lost is told so often: it may answer every other call, and must not pass for well.
STILL_SECONDS = 60.0
_CALL_SECONDS = 15.0
# One GPU that hangs must not keep the others' events from being heard for long.
_SEE_SECONDS = 5.0
# A call that is under way when the watch is ended; one that hangs is left behind.
_LEAVE_SECONDS = 2.0
_SUBJECT = "NVML's events"

T = TypeVar("T")

Report = Callable[[HealthEvent], None]
Ready = Callable[[Sequence[str]], None]


class _Ended(enum.Enum):
    """Why one does not wait for a set any more."""

    CLOSING = "NVML is wanted closed"
    AT_ONCE = "its first wait says that a GPU is lost"
    LATER = "a later wait says so"


@dataclass(slots=True)
class _Watched:
    """A set, and who is not in it although he should be.

    Attributes:
        set: has those that are watched.
        lost: UUIDs of those that NVML does not list, or says are lost.
        silent: UUIDs of those that do not answer.
    """

    set: EventSet
    lost: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()

    @property
    def left_out(self) -> frozenset[str]:
        return self.lost | self.silent


class EventWatch:
    """Watches GPUs, one watch at a time.

    Args:
        nvml: the library of this process.
        gate: who uses it.
        watchdog: by which blocking calls run.
        neighbours: other instances on this node.
    """

    def __init__(self, nvml: Nvml, gate: Gate, watchdog: Watchdog, neighbours: Neighbours) -> None:
        self._session = Session(nvml, watchdog)
        self._gate = gate
        self._neighbours = neighbours
        self._watchdog = watchdog

    async def run(self, gpus: Sequence[Gpu], report: Report, ready: Ready) -> None:
        """See `vendors.base.Vendor.watch_health`."""
        wanted = {gpu.uuid: gpu.index for gpu in gpus}
        told = _Told(report, ready)
        while True:
            await self._neighbours.gone()
            async with self._gate.use():
                with self._neighbours.watching():
                    async with self._session.opened():
                        await self._while_open(wanted, told)
            # Nobody is watched, or NVML is wanted closed: then the gate makes this wait as long as it takes.
            await asyncio.sleep(0 if told.watched else RETRY_SECONDS)

    async def _while_open(self, wanted: Mapping[str, int], told: "_Told") -> None:
        """Watch until somebody wants NVML closed, or there is nobody to watch."""
        watched = await self._made(wanted, careful=False)
        try:
            told.of(watched)
            while watched.set.watched:
                ended = await self._listen(watched, wanted, told)
                if ended is _Ended.CLOSING:
                    return
                # The former set goes only when the next one has everybody who is left, so that nothing is missed.
                former, watched = watched, await self._made(wanted, careful=True)
                await self._hand_over(former, watched, told)
                if ended is _Ended.AT_ONCE and watched.lost == former.lost:
                    raise _broken()
        finally:
            await self._close(watched.set)

    async def _made(self, wanted: Mapping[str, int], *, careful: bool) -> _Watched:
        """Return a new set. What happens meanwhile to those of a former set is told by that one."""
        watched = _Watched(await self._blocking(_SUBJECT, "nvmlEventSetCreate", EventSet))
        try:
            await self._add(watched, wanted, careful=careful)
        except BaseException:
            await self._close(watched.set)
            raise
        return watched

    async def _add(self, watched: _Watched, wanted: Mapping[str, int], *, careful: bool) -> list[HealthEvent]:
        """Have GPUs registered, as far as they report events; those that are there already stay.

        Args:
            watched: the set, and who is left out afterwards.
            wanted: by UUID, where NVML listed the GPU.
            careful: wait for each alone before.

        Returns:
            What happened to those that were waited for alone.
        """
        missing, silent = set(wanted) - set(watched.set.watched), set[str]()
        count = await self._blocking(_SUBJECT, "nvmlDeviceGetCount_v2", events.count)
        seen = await asyncio.gather(*(self._seen(index, missing, careful=careful) for index in range(count)))
        for index, one in enumerate(seen):
            if one is None:
                silent.update(uuid for uuid, at in wanted.items() if at == index and uuid in missing)
            elif one.uuid in missing and not one.ends_waits:
                missing.discard(one.uuid)
                await self._blocking(_SUBJECT, "nvmlDeviceRegisterEvents", partial(watched.set.register, one))
        watched.silent = frozenset(silent & missing)
        watched.lost = frozenset(missing) - watched.silent
        if not watched.set.watched and any(one is not None and one.ends_waits for one in seen):
            raise _broken()  # it is the waiting that does not work, and no GPU is to blame
        return [event for one in seen if one is not None for event in one.happened]

    async def _seen(self, index: int, missing: Collection[str], *, careful: bool) -> events.Seen | None:
        """Return the GPU at an index; None when it does not answer."""
        try:
            return await self._blocking(
                f"GPU {index}", "nvmlDeviceGetUUID", lambda: events.see(index, missing if careful else ()), _SEE_SECONDS
            )
        except VendorError as error:
            if error.kind is not FailureKind.UNRESPONSIVE:
                raise
            return None

    async def _hand_over(self, former: _Watched, following: _Watched, told: "_Told") -> None:
        try:
            for event in await self._blocking(
                _SUBJECT, "nvmlEventSetWait_v2", lambda: events.handed_over(former.set, following.set)
            ):
                told.report(event)
        finally:
            await self._close(former.set)
        told.of(following)

    async def _listen(self, watched: _Watched, wanted: Mapping[str, int], told: "_Told") -> _Ended:
        """Hand events on until NVML has to be closed, or the set is of no use because a GPU of it is lost."""
        loop = asyncio.get_running_loop()
        retry, lost = loop.time() + RETRY_SECONDS, _Ended.AT_ONCE
        while not (self._gate.closing or self._neighbours.wanted):
            try:
                found = await self._blocking(_SUBJECT, "nvmlEventSetWait_v2", lambda: watched.set.wait(WAIT_MS))
            except LostGpuError:
                return lost
            lost = _Ended.LATER
            for event in found:
                told.report(event)
            if watched.left_out and loop.time() >= retry:
                for event in await self._add(watched, wanted, careful=True):
                    told.report(event)
                told.of(watched)
                retry = loop.time() + RETRY_SECONDS
        return _Ended.CLOSING

    async def _close(self, made: EventSet) -> None:
        if not self._watchdog.stuck:  # else a call may still be inside the library
            await self._blocking(_SUBJECT, "nvmlEventSetFree", made.close)

    async def _blocking(self, subject: str, what: str, call: Callable[[], T], seconds: float = _CALL_SECONDS) -> T:
        return await _to_its_end(self._watchdog.call(subject, what, call, seconds))


def _broken() -> VendorError:
    return VendorError(
        FailureKind.LOST,
        "NVML: nvmlEventSetWait_v2 says that a GPU is lost, and none is: GPUs are looked at instead; reload the driver",
    )


class _Told:
    """What has been told of, and when, so that it is not told with every try."""

    def __init__(self, report: Report, ready: Ready) -> None:
        self.report = report
        self._ready = ready
        self.watched: tuple[str, ...] | None = None
        self._lost: dict[str, float] = {}

    def of(self, watched: _Watched) -> None:
        """Tell what differs from the last time: who is watched, and who is lost."""
        now = asyncio.get_running_loop().time()
        lost = {uuid: self._lost.get(uuid) for uuid in sorted(watched.lost)}
        for uuid, told in lost.items():
            if told is None or now - told >= STILL_SECONDS:
                lost[uuid] = now
                detail = "NVML does not reach it any more"
                self.report(HealthEvent(uuid, HealthEventKind.LOST, detail=detail, count=int(told is None)))
        self._lost = {uuid: now if told is None else told for uuid, told in lost.items()}
        if watched.set.watched != self.watched:
            self.watched = watched.set.watched
            self._ready(self.watched)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something whose thread should not be left behind when this task is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=_LEAVE_SECONDS)
        task.cancel()
        raise
