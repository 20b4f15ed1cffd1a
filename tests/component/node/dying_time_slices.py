"""A claim with two GPUs and a time slice, interrupted."""

import asyncio

from tests.component.node.dying import Dying
from tests.component.node.node_under_fire import SMI, held_twice, journal_busy, records, until

LONG = 3
RESTORED = [0, 0]
APPLIED = [LONG, LONG]


async def first_call(dying, gpu, call) -> None:
    """Stop at the first question to a GPU: how it is set."""
    await call(until(dying.stall(SMI, gpu).reached))


async def second_call(dying, gpu, call) -> None:
    """Stop right before a GPU is set."""
    stall = dying.stall(SMI, gpu)
    await call(until(stall.reached))
    await stall.go_on()


# Each boundary stops a call and returns when it has been reached; `dying.stack` is undone after the kill.


async def before_looking(dying, claim, call):
    await first_call(dying, 0, call)


async def between_looking_at_two_gpus(dying, claim, call):
    await first_call(dying, 1, call)


async def before_the_record(dying, claim, call):
    dying.world.node.forget_calls()
    dying.stack.enter_context(journal_busy(dying.world))
    await call(until(lambda: len(dying.world.node.calls(SMI)) == 2))
    assert records(dying.world) == {}


async def after_the_record(dying, claim, call):
    await second_call(dying, 0, call)
    assert records(dying.world) == {claim.uid: "preparing"}
    assert dying.world.time_slices() == RESTORED


async def between_two_gpus(dying, claim, call):
    await second_call(dying, 1, call)
    assert dying.world.time_slices() == [LONG, 0]


async def before_the_file(dying, claim, call):
    dying.file_is_a_pipe(claim)
    await call(until(lambda: dying.world.time_slices() == APPLIED))


async def after_the_file(dying, claim, call):
    await second_call(dying, 1, call)
    dying.stack.enter_context(journal_busy(dying.world))
    dying.world.node.clear()
    await until(dying.spec(claim).exists)
    assert records(dying.world) == {claim.uid: "preparing"}


async def after_the_end(dying, claim, call):
    await call(until(lambda: records(dying.world) == {claim.uid: "prepared"}))


PREPARING = (
    before_looking,
    between_looking_at_two_gpus,
    before_the_record,
    after_the_record,
    between_two_gpus,
    before_the_file,
    after_the_file,
    after_the_end,
)


async def before_the_mark(dying, claim, call):
    dying.stack.enter_context(journal_busy(dying.world))
    await call(asyncio.sleep(0))
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
    await call(until(lambda: records(dying.world) == {}))


UNPREPARING = (
    before_the_mark,
    after_the_file_is_gone,
    before_the_last_gpu_is_restored,
    after_the_last_gpu_is_restored,
    before_the_first_gpu_is_restored,
    before_the_record_is_deleted,
    after_the_record_is_deleted,
)


class TimeSlices(Dying):
    """Two GPUs, and claims for both of them."""

    preparing, unpreparing = PREPARING, UNPREPARING

    def __init__(self, world) -> None:
        super().__init__(world)
        self.before = world.node.snapshot()

    @classmethod
    async def create(cls, make_world, _make_sharing) -> "TimeSlices":
        world = await make_world(gpus=2)
        await world.start(devices=4)
        return cls(world)

    def claim(self):
        self.claims += 1
        return self.world.claim(f"job-{self.claims}", "gpu-0", "gpu-1", interval="Long")

    async def right(self, claim) -> None:
        assert self.world.time_slices() == APPLIED
        assert records(self.world) == {claim.uid: "prepared"}
        assert self.world.cdi_files == [self.spec(claim).name]
        assert held_twice(self.world) == []

    async def nothing_left(self) -> None:
        await until(lambda: not records(self.world))
        assert self.node.snapshot() == self.before
        await until(lambda: not self.world.cdi_files)  # a start removes temporary files last
