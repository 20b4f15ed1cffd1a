"""A server in memory, the shipped client in front of it, and ways to wait for what they do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import Connection
from dra_gpu_sim.apiserver.server import ApiServer

#: Seconds for what takes milliseconds: the machine may be busy with something else.
PATIENCE = 30.0


class SkippingClock:
    """A clock on which sleeping takes no time: it notes how long the sleep would have been and moves on."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


@asynccontextmanager
async def running(work: Callable[[], Awaitable[None]]) -> AsyncIterator[asyncio.Task[None]]:
    """Run a never-ending coroutine for the length of a block."""
    task = asyncio.ensure_future(work())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def api(server: ApiServer) -> Iterator[HttpKubernetesApi]:
    client = HttpKubernetesApi(Connection(server.url))
    yield client
    client.close()
