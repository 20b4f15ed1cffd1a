"""Keeps count of running work, so that a stop can wait for it.

Two things are counted: calls, from the request to the answer on the wire, and the work behind them, which outlives a
call whose client went away. Work is cancelled by `cancel` alone.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class RunningCalls:
    """The calls and the work of one server. Used from one event loop."""

    def __init__(self) -> None:
        self._calls = 0
        self._work: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether new calls are to be refused."""
        return self._closed

    @property
    def count(self) -> int:
        """How many calls are being answered, or pieces of work run, whichever is more."""
        return max(self._calls, len(self._work))

    def close(self) -> None:
        """From now on `closed` is true; what runs goes on."""
        self._closed = True

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count the enclosed block as one call."""
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            self._settle()

    def start(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run `work` as a task that ends by itself or by `cancel`; its failure is logged even if nobody waits."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        self._idle.clear()
        task.add_done_callback(self._finished)
        return task

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing runs, at most `seconds`; whether that came."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def cancel(self, seconds: float) -> int:
        """Cancel the work that is left and give it `seconds` to clean up; how many did not end in time."""
        for task in self._work:
            task.cancel()
        await self.wait_idle(seconds)
        return len(self._work)

    def _finished(self, task: asyncio.Task[T]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work for the kubelet failed", exc_info=error)
        self._settle()

    def _settle(self) -> None:
        if not self._calls and not self._work:
            self._idle.set()
