"""Lets everybody in this process use NVML at once, or one close it for all.

Whoever has NVML open has the device nodes of GPUs open (NVML API reference r580, nvmlInit_v2), and a GPU is not reset
while anybody has its node open. So a reset asks everybody to leave, and those who come wait outside meanwhile, each
with its own deadline. Who uses NVML for long, such as a wait for events, looks at `closing` and leaves soon.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StillInUseError(Exception):
    """Somebody in this process did not leave in time."""


class Gate:
    """Open for many users, or closed for one. Used from one event loop."""

    def __init__(self) -> None:
        self._users = 0
        self._open, self._closing, self._empty = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._one = asyncio.Lock()

    @property
    def closing(self) -> bool:
        """Whether somebody waits for all users to leave, or has closed it: who can leave should."""
        return self._closing.is_set()

    async def wait_closing(self) -> None:
        """Wait until the users are asked to leave."""
        await self._closing.wait()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Be a user; waits while it is closed. The caller's own deadline or cancellation ends the wait."""
        while self.closing:
            await self._open.wait()
        self._users += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._empty.set()

    @asynccontextmanager
    async def closed(self, seconds: float) -> AsyncIterator[None]:
        """Have no users for as long as the block lasts.

        Args:
            seconds: how long the present users are waited for.

        Raises:
            StillInUseError: they did not leave in time.
        """
        async with self._one:
            self._closing.set()
            self._open.clear()
            try:
                await self._wait_empty(seconds)
                yield
            finally:
                self._closing.clear()
                self._open.set()

    async def _wait_empty(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            raise StillInUseError(f"{self._users} uses of it did not end within {seconds:g} s") from None
