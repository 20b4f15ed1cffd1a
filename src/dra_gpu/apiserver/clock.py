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
