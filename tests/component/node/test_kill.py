"""kill -9 of the shipped process at every step of a claim with two GPUs and a time slice.

Whatever the moment: the next call is right, nothing stays behind in the hardware, the journal or the CDI directory,
and no GPU is held twice. The moment is met exactly: nvidia-smi is made to hang, the journal to be busy, and the file
to be read before it is written is a pipe that nobody writes to.
"""

import asyncio
import os
import random
import signal
from contextlib import ExitStack, suppress

import pytest

from tests.component.node.node_under_fire import (
    SMI,
    SmiStall,
    children,
    held_twice,
    journal_busy,
    records,
    until,
)

LONG = 3
RESTORED = [0, 0]
APPLIED = [LONG, LONG]


class Dying:
    """A node whose plugin is killed at a named moment of a call."""

    def __init__(self, world) -> None:
        self.world = world
        self.before = world.node.snapshot()
        self.stack = ExitStack()
        self.claims = 0

    def claim(self):
        self.claims += 1
        return self.world.claim(f"job-{self.claims}", "gpu-0", "gpu-1", interval="Long")

    def spec(self, claim):
        return self.world.cluster.paths.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json"

    async def die(self) -> None:
        """Kill the process and what it started, as the kernel does with a container, and start another one."""
        process = self.world.plugin
        started = children(process.pid)
        await process.kill()
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stack.close()
        self.world.node.clear()
        self.world.kubelet.restart()
        await self.world.start()

    async def nothing_left(self) -> None:
        """The node is as it was before the first claim."""
        await until(lambda: not records(self.world))
        assert self.world.node.snapshot() == self.before
        await until(lambda: not self.world.cdi_files)  # a start removes temporary files last

    def right(self, claim) -> None:
        """The claim has what it asked for, once."""
        assert self.world.time_slices() == APPLIED
        assert records(self.world) == {claim.uid: "prepared"}
        assert self.world.cdi_files == [self.spec(claim).name]
        assert held_twice(self.world) == []


async def first_call(dying, gpu, call) -> None:
    """Stop at the first question to a GPU: how it is set."""
    await call(SmiStall(dying.world, gpu).reached)


async def second_call(dying, gpu, call) -> None:
    """Stop right before a GPU is set."""
    stall = SmiStall(dying.world, gpu)
    await call(stall.reached)
    await stall.go_on()


# Each boundary stops a call and returns when it has been reached; `dying.stack` is undone after the kill.


async def before_looking(dying, claim, call):
    await first_call(dying, 0, call)


async def between_looking_at_two_gpus(dying, claim, call):
    await first_call(dying, 1, call)


async def before_the_record(dying, claim, call):
    dying.world.node.forget_calls()
    dying.stack.enter_context(journal_busy(dying.world))
    await call(lambda: len(dying.world.node.calls(SMI)) == 2)
    assert records(dying.world) == {}


async def after_the_record(dying, claim, call):
    await second_call(dying, 0, call)
    assert records(dying.world) == {claim.uid: "preparing"}
    assert dying.world.time_slices() == RESTORED


async def between_two_gpus(dying, claim, call):
    await second_call(dying, 1, call)
    assert dying.world.time_slices() == [LONG, 0]


async def before_the_file(dying, claim, call):
    os.mkfifo(dying.spec(claim))
    dying.stack.callback(dying.spec(claim).unlink)
    await call(lambda: dying.world.time_slices() == APPLIED)


async def after_the_file(dying, claim, call):
    await second_call(dying, 1, call)
    dying.stack.enter_context(journal_busy(dying.world))
    dying.world.node.clear()
    await until(dying.spec(claim).exists)
    assert records(dying.world) == {claim.uid: "preparing"}


async def after_the_end(dying, claim, call):
    await call(lambda: records(dying.world) == {claim.uid: "prepared"})


PREPARING = [
    before_looking,
    between_looking_at_two_gpus,
    before_the_record,
    after_the_record,
    between_two_gpus,
    before_the_file,
    after_the_file,
    after_the_end,
]


async def before_the_mark(dying, claim, call):
    dying.stack.enter_context(journal_busy(dying.world))
    await call(lambda: True)
    assert records(dying.world) == {claim.uid: "prepared"}


async def after_the_file_is_gone(dying, claim, call):
    await first_call(dying, 1, call)
    assert records(dying.world) == {claim.uid: "unpreparing"}
    assert dying.world.cdi_files == []
    assert dying.world.time_slices() == APPLIED


async def before_the_last_gpu_is_restored(dying, claim, call):
    await second_call(dying, 1, call)
    assert dying.world.time_slices() == APPLIED


async def after_the_last_gpu_is_restored(dying, claim, call):
    await first_call(dying, 0, call)
    assert dying.world.time_slices() == [LONG, 0]


async def before_the_first_gpu_is_restored(dying, claim, call):
    await second_call(dying, 0, call)
    assert dying.world.time_slices() == [LONG, 0]


async def before_the_record_is_deleted(dying, claim, call):
    await second_call(dying, 0, call)
    dying.stack.enter_context(journal_busy(dying.world))
    dying.world.node.clear()
    await until(lambda: dying.world.time_slices() == RESTORED)
    assert records(dying.world) == {claim.uid: "unpreparing"}


async def after_the_record_is_deleted(dying, claim, call):
    await call(lambda: records(dying.world) == {})


UNPREPARING = [
    before_the_mark,
    after_the_file_is_gone,
    before_the_last_gpu_is_restored,
    after_the_last_gpu_is_restored,
    before_the_first_gpu_is_restored,
    before_the_record_is_deleted,
    after_the_record_is_deleted,
]


async def killed_in(dying, boundary, claim, call) -> None:
    """Kill the process when `call` for the claim has come to the boundary."""
    running: list[asyncio.Task] = []

    async def begin(reached) -> None:
        running.append(asyncio.create_task(call(claim)))
        await until(reached)

    await boundary(dying, claim, begin)
    await dying.die()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.fixture
async def dying(make_world) -> Dying:
    world = await make_world(gpus=2)
    await world.start(devices=4)
    return Dying(world)


async def test_killed_anywhere_in_a_prepare_the_next_prepare_is_right_and_the_unprepare_restores(dying):
    for boundary in PREPARING:
        claim = dying.claim()

        await killed_in(dying, boundary, claim, dying.world.prepare)

        await dying.world.prepared(claim)
        dying.right(claim)
        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.nothing_left()


async def test_killed_anywhere_in_a_prepare_the_gpus_go_to_the_next_claim_when_the_pod_is_gone(dying):
    for boundary in PREPARING:
        gone, successor = dying.claim(), dying.claim()

        await killed_in(dying, boundary, gone, dying.world.prepare)
        dying.world.cluster.remove_claim(gone)
        assert (await dying.world.unprepare(gone))[gone.uid] == "", boundary.__name__

        await dying.world.prepared(successor)
        dying.right(successor)
        assert (await dying.world.unprepare(successor))[successor.uid] == ""
        await dying.nothing_left()


async def test_killed_anywhere_in_an_unprepare_the_next_unprepare_restores(dying):
    for boundary in UNPREPARING:
        claim = dying.claim()
        await dying.world.prepared(claim)

        await killed_in(dying, boundary, claim, dying.world.unprepare)

        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.nothing_left()


async def test_killed_anywhere_in_an_unprepare_the_next_prepare_is_right(dying):
    for boundary in UNPREPARING:
        claim = dying.claim()
        await dying.world.prepared(claim)

        await killed_in(dying, boundary, claim, dying.world.unprepare)

        await dying.world.prepared(claim)
        dying.right(claim)
        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.nothing_left()


async def test_killed_at_random_moments_of_many_calls_nothing_is_held_twice_or_left(make_world):
    world = await make_world(gpus=4)
    await world.start(devices=8)
    dying, rng = Dying(world), random.Random(20260)
    claims = [world.claim(f"c{number}", f"gpu-{number % 4}", interval="Long") for number in range(8)]

    async def life(claim) -> None:
        with suppress(Exception):  # the connection breaks with the process
            await world.prepare(claim, within=5.5)
            await world.unprepare(claim)

    for _ in range(6):
        lives = [asyncio.create_task(life(claim)) for claim in claims]
        await asyncio.sleep(rng.uniform(0.0, 0.25))
        await dying.die()
        await asyncio.gather(*lives)
        assert held_twice(world) == []

    for claim in claims:
        assert (await world.unprepare(claim))[claim.uid] == ""
    await dying.nothing_left()
