"""A watch over the GPUs of a bed, and waiting for what it tells."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.health import HealthEvent, HealthEventKind

#: Seconds after which a test has failed; nothing measures how soon something comes.
PATIENCE = 50.0


class Watching:
    """What a watch has told so far."""

    def __init__(self, task: asyncio.Task) -> None:
        self.task = task
        self.events: list[HealthEvent] = []
        self.ready: list[tuple[str, ...]] = []
        self._more = asyncio.Event()

    def report(self, event: HealthEvent) -> None:
        self.events.append(event)
        self._more.set()

    def set_ready(self, uuids: Sequence[str]) -> None:
        self.ready.append(tuple(uuids))
        self._more.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was told is such; a watch that ends raises."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._more.clear()
                more = asyncio.ensure_future(self._more.wait())
                await asyncio.wait({more, self.task}, return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
                if self.task.done():
                    self.task.result()

    async def until_ready(self, *uuids: str) -> None:
        await self.until(lambda: bool(self.ready) and set(self.ready[-1]) == set(uuids))

    async def until_xid(self, number: int) -> HealthEvent:
        await self.until(lambda: number in self.xids)
        return next(event for event in self.events if event.xid == number)

    @property
    def xids(self) -> list[int]:
        return [event.xid for event in self.events if event.xid is not None]

    @property
    def lost(self) -> list[str]:
        return [event.gpu for event in self.events if event.kind is HealthEventKind.LOST]


@asynccontextmanager
async def watching(bed, gpus: Sequence[Gpu] | None = None) -> AsyncIterator[Watching]:
    """Watch GPUs, all of them by default; they are ready when the block begins."""
    gpus = (await bed.vendor.scan()).gpus if gpus is None else gpus
    made: list[Watching] = []

    async def watch() -> None:
        await asyncio.sleep(0)
        await bed.vendor.watch_health(gpus, made[0].report, made[0].set_ready)

    task = asyncio.create_task(watch())
    made.append(Watching(task))
    try:
        await made[0].until(lambda: bool(made[0].ready))
        yield made[0]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
