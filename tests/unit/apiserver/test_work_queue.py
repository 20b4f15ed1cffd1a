"""What waits to be done: each thing once, bounded, later and later while it fails."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

from dra_gpu.apiserver.work_queue import WorkQueue
from tests.unit.apiserver.virtual_clock import VirtualClock


class Work:
    """Notes what it was asked to do, and when."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.done: list[tuple[str, float]] = []
        self.fails = 0
        self.again: float | None = None
        self.hold: asyncio.Event | None = None

    async def __call__(self, key: str) -> float | None:
        self.done.append((key, self.clock.now()))
        if self.hold is not None:
            await self.hold.wait()
        if self.fails:
            self.fails -= 1
            raise ValueError("not yet")
        return self.again

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.done]


@asynccontextmanager
async def queue(work: Work, **options):
    made: WorkQueue[str] = WorkQueue(work, clock=work.clock, **options)
    running = asyncio.ensure_future(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_key_that_is_added_twice_is_done_once():
    work = Work(VirtualClock())
    async with queue(work) as waiting:
        waiting.add("a")
        waiting.add("a")
        waiting.add("b")
        await work.clock.advance(1)

    assert sorted(work.keys) == ["a", "b"]


async def test_a_key_that_is_added_while_it_is_worked_on_does_not_wait_for_when_the_work_wanted_to_look_again():
    work = Work(VirtualClock())
    work.hold, work.again = asyncio.Event(), 60.0
    async with queue(work) as waiting:
        waiting.add("a")
        await work.clock.advance(1)
        waiting.add("a")
        work.hold.set()
        await work.clock.advance(30)

    assert [at for _, at in work.done] == [0.0, 1.0]


async def test_a_key_that_is_added_while_it_is_worked_on_is_done_again_afterwards():
    work = Work(VirtualClock())
    work.hold = asyncio.Event()
    async with queue(work) as waiting:
        waiting.add("a")
        await work.clock.advance(1)
        waiting.add("a")
        await work.clock.advance(1)
        assert work.keys == ["a"]
        work.hold.set()
        await work.clock.advance(1)

    assert work.keys == ["a", "a"]


async def test_failures_are_repeated_later_and_later_and_then_given_up():
    work = Work(VirtualClock())
    work.fails = 100
    async with queue(work, attempts=6, first_wait=1.0, longest_wait=8.0) as waiting:
        waiting.add("a")
        await work.clock.advance(100)

        times = [at for _, at in work.done]
        gaps = [after - before for before, after in pairwise(times)]
        assert len(times) == 6
        assert all(low <= gap <= 2 * low for low, gap in zip((0.5, 1, 2, 4, 4), gaps, strict=True))
        assert (waiting.failed, waiting.dropped, len(waiting)) == (6, 1, 0)


async def test_more_than_may_wait_is_left_out_and_counted():
    work = Work(VirtualClock())
    async with queue(work, most=3) as waiting:
        for key in "abcde":
            waiting.add(key, after=10)
        await work.clock.advance(20)

        assert work.keys == ["a", "b", "c"]
        assert waiting.dropped == 2


async def test_sooner_wins_over_later():
    work = Work(VirtualClock())
    async with queue(work) as waiting:
        waiting.add("a", after=60)
        waiting.add("a", after=5)
        waiting.add("a", after=30)
        await work.clock.advance(100)

    assert work.done == [("a", 5.0)]


async def test_work_may_ask_to_be_done_again():
    work = Work(VirtualClock())
    work.again = 10.0
    async with queue(work) as waiting:
        waiting.add("a")
        await work.clock.advance(25)

    assert work.done == [("a", 0.0), ("a", 10.0), ("a", 20.0)]
