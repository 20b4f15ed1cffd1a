"""Time that passes only when everybody sleeps: minutes of a protocol in milliseconds, the same each time."""

import asyncio
import heapq
import itertools

_TURNS = 20  # of the event loop, after which whoever was woken sleeps again


class VirtualClock:
    """A clock for several tasks of one loop; a test moves it on."""

    def __init__(self) -> None:
        self.time = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.time + max(0.0, seconds), next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, waking everybody in order."""
        end = self.time + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.time, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await self._settle()
        self.time = end

    @staticmethod
    async def _settle() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
