"""Preparing and unpreparing claims: plan, journal, apply, answer, and the mirror image back.

Promises: every claim of a call gets an answer of its own; claims are served at once, calls for one claim one after the
other; a device is never held by two claims; whatever fails or dies in the middle is erased by the next call. A call
that runs out of time is answered, its work goes on, and the next call finds it done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from dra_gpu.claims.outcome import ClaimRef, Prepared, Refusal, RefusalKind
from dra_gpu.claims.preparation import Preparation
from dra_gpu.claims.refusals import refusal_of

T = TypeVar("T")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of a call, in seconds. The kubelet waits 45 s (K8s v1.37 pkg/kubelet/cm/dra/plugin/dra_plugin.go).

    Attributes:
        answer_margin: how long before the deadline a call is answered, whatever is still running.
        work_margin: how long before the deadline nothing new is begun, which leaves time to undo.
        longest_work: work is not begun later than this after the call came.
        at_once: claims that may be in work at a time; a kubelet starts far fewer pods.
    """

    answer_margin: float = 1.0
    work_margin: float = 4.0
    longest_work: float = 40.0
    at_once: int = 1024


class Engine:
    """Serves the calls of the kubelet.

    Args:
        preparation: what is done for one claim.
        limits: times of a call.
    """

    def __init__(self, preparation: Preparation, limits: Limits | None = None) -> None:
        self._preparation = preparation
        self._limits = limits or Limits()
        self._running: set[asyncio.Task[object]] = set()

    async def prepare(self, refs: Sequence[ClaimRef], deadline: float) -> dict[str, Prepared | Refusal]:
        """Make claims ready on this node; a claim that is ready already is verified, repaired and answered the same.

        Args:
            refs: the claims of one pod.
            deadline: when the caller stops waiting, on the loop's monotonic clock.

        Returns:
            An answer for each UID. Never raises for a claim.
        """
        return await self._each(refs, deadline, self._preparation.prepare)

    async def unprepare(self, refs: Sequence[ClaimRef], deadline: float) -> dict[str, Refusal | None]:
        """Take back what was done for claims. Asks no API server; a claim that is not known here is done.

        Args:
            refs: the claims; only their UIDs matter.
            deadline: when the caller stops waiting, on the loop's monotonic clock.

        Returns:
            None for each UID that is done, else why not. Never raises for a claim.
        """
        try:
            known = await self._preparation.concerned(refs)
        except Exception as error:  # noqa: BLE001 - becomes the answer
            refusal = _refusal("unprepare", error)
            return {ref.uid: refusal for ref in refs}
        answers: dict[str, Refusal | None] = {ref.uid: None for ref in refs if ref.uid not in known}
        known_refs = [ref for ref in refs if ref.uid in known]
        answers.update(await self._each(known_refs, deadline, self._preparation.unprepare))
        return answers

    async def drain(self, deadline: float) -> int:
        """Wait until no claim is in work; returns how many still are at the deadline (loop's clock)."""
        loop = asyncio.get_running_loop()
        if self._running:
            await asyncio.wait(set(self._running), timeout=max(0.0, deadline - loop.time()))
        return len(self._running)

    async def _each(
        self, refs: Sequence[ClaimRef], deadline: float, work: Callable[[ClaimRef, float], Awaitable[T]]
    ) -> dict[str, T | Refusal]:
        loop = asyncio.get_running_loop()
        limits = self._limits
        until = min(deadline - limits.work_margin, loop.time() + limits.longest_work)
        tasks: dict[str, asyncio.Task[T | Refusal]] = {}
        answers: dict[str, T | Refusal] = {}
        for ref in refs:
            if len(self._running) >= limits.at_once:
                answers[ref.uid] = Refusal(
                    f"claim {ref}: {limits.at_once} claims are in work; ask again",
                    retryable=True,
                    kind=RefusalKind.BUSY,
                )
            elif ref.uid not in tasks:
                tasks[ref.uid] = self._start(_answered(work, ref, until))
        if tasks:
            await asyncio.wait(tasks.values(), timeout=max(0.0, deadline - limits.answer_margin - loop.time()))
        for ref in refs:
            task = tasks.get(ref.uid)
            if task is not None:
                answers[ref.uid] = task.result() if task.done() else _still_busy(ref)
        return answers

    def _start(self, work: Awaitable[T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


async def _answered(work: Callable[[ClaimRef, float], Awaitable[T]], ref: ClaimRef, until: float) -> T | Refusal:
    try:
        return await work(ref, until)
    except Exception as error:  # noqa: BLE001 - every claim gets an answer, and its neighbours theirs
        return _refusal(f"claim {ref}", error)


def _refusal(what: str, error: Exception) -> Refusal:
    known = refusal_of(what, error)
    if known is not None:
        return known
    _log.error("unexpected error", what=what, exc_info=error)
    message = f"{what}: internal error {type(error).__name__}: {error}; see the node plugin's log"
    return Refusal(message, retryable=True, kind=RefusalKind.INTERNAL)


def _still_busy(ref: ClaimRef) -> Refusal:
    return Refusal(
        f"claim {ref}: not finished by the deadline of the call; the work goes on, and the next call finds it done",
        retryable=True,
        kind=RefusalKind.TIMEOUT,
    )
