"""Time as the package sees it, so that a test can own it."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that one can also sleep on."""

    def now(self) -> float:
        """Return monotonic seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


async def set_or_elapsed(event: asyncio.Event, clock: Clock, seconds: float | None) -> None:
    """Wait until an event is set, or so many seconds have passed; None waits for the event alone."""
    waits: set[asyncio.Task[object]] = {asyncio.create_task(event.wait())}
    if seconds is not None:
        waits.add(asyncio.create_task(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
