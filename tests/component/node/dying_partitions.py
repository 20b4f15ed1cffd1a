"""A claim with two partitions of a GPU, interrupted: alone, and beside another partition that is in use.

Alone it turns the GPU's MIG mode on and off; beside another it must leave mode and partition alone.
"""

import asyncio

from tests.component.node.dying import Dying
from tests.component.node.node_under_fire import journal_busy, records, until
from tests.component.node.partitions import (
    DESTROY,
    DESTROY_COMPUTE,
    DEVICES,
    MAKE,
    MAKE_COMPUTE,
    SET_MODE,
    VIEWS,
    Partitions,
    half,
    small,
)

GET_MODE = "nvmlDeviceGetMigMode"
FIRST, SECOND = ("1g.10gb", 0, 1), ("3g.40gb", 4, 1)
STAYS = ("1g.10gb", 2, 1)


async def before_the_record(dying, claim, call):
    dying.node.forget_calls()
    dying.stack.enter_context(journal_busy(dying.world))
    await call(until(lambda: dying.node.calls(GET_MODE)))
    assert claim.uid not in records(dying.world)


async def before_the_mode(dying, claim, call):
    await call(until(dying.stall(SET_MODE).reached))
    assert records(dying.world) == {claim.uid: "preparing"}
    assert not dying.partitions.mode()


async def before_the_first_partition(dying, claim, call):
    await call(until(dying.stall(MAKE).reached))
    assert records(dying.world)[claim.uid] == "preparing"
    assert dying.partitions.mode()
    assert dying.lying() == []


async def within_the_first_partition(dying, claim, call):
    await call(until(dying.stall(MAKE_COMPUTE).reached))
    assert dying.lying() == [("1g.10gb", 0, 0)]


async def between_two_partitions(dying, claim, call):
    stall = dying.stall(MAKE)
    await call(until(stall.reached))
    await stall.go_on()
    assert dying.lying() == [FIRST]


async def within_the_second_partition(dying, claim, call):
    stall = dying.stall(MAKE_COMPUTE)
    await call(until(stall.reached))
    await stall.go_on()
    assert dying.lying() == [FIRST, ("3g.40gb", 4, 0)]


async def before_the_file(dying, claim, call):
    dying.file_is_a_pipe(claim)
    await call(until(lambda: dying.lying() == [FIRST, SECOND]))


async def after_the_file(dying, claim, call):
    await within_the_second_partition(dying, claim, call)
    dying.stack.enter_context(journal_busy(dying.world))
    dying.node.clear()
    await until(dying.spec(claim).exists)
    assert records(dying.world)[claim.uid] == "preparing"


async def after_the_end(dying, claim, call):
    await call(until(lambda: records(dying.world).get(claim.uid) == "prepared"))


async def before_the_mark(dying, claim, call):
    dying.stack.enter_context(journal_busy(dying.world))
    await call(asyncio.sleep(0))
    assert records(dying.world)[claim.uid] == "prepared"


async def before_the_last_partition_is_destroyed(dying, claim, call):
    await call(until(dying.stall(DESTROY_COMPUTE).reached))
    assert not dying.spec(claim).exists()
    assert records(dying.world)[claim.uid] == "unpreparing"
    assert dying.lying() == [FIRST, SECOND]


async def within_the_last_partition(dying, claim, call):
    await call(until(dying.stall(DESTROY).reached))
    assert dying.lying() == [FIRST, ("3g.40gb", 4, 0)]


async def between_destroying_two_partitions(dying, claim, call):
    stall = dying.stall(DESTROY_COMPUTE)
    await call(until(stall.reached))
    await stall.go_on()
    assert dying.lying() == [FIRST]


async def within_the_first_partition_that_is_destroyed(dying, claim, call):
    stall = dying.stall(DESTROY)
    await call(until(stall.reached))
    await stall.go_on()
    assert dying.lying() == [("1g.10gb", 0, 0)]


async def before_the_mode_is_restored(dying, claim, call):
    await call(until(dying.stall(SET_MODE).reached))
    assert records(dying.world) == {claim.uid: "unpreparing"}
    assert dying.partitions.mode()
    assert dying.lying() == []


async def before_the_record_is_deleted(dying, claim, call):
    await within_the_first_partition_that_is_destroyed(dying, claim, call)
    dying.stack.enter_context(journal_busy(dying.world))
    dying.node.clear()
    await until(lambda: dying.lying() == [] and dying.partitions.mode() is (dying.pod is not None))
    assert records(dying.world)[claim.uid] == "unpreparing"


async def after_the_record_is_deleted(dying, claim, call):
    await call(until(lambda: claim.uid not in records(dying.world)))


PREPARING = (
    before_the_record,
    before_the_first_partition,
    within_the_first_partition,
    between_two_partitions,
    within_the_second_partition,
    before_the_file,
    after_the_file,
    after_the_end,
)
UNPREPARING = (
    before_the_mark,
    before_the_last_partition_is_destroyed,
    within_the_last_partition,
    between_destroying_two_partitions,
    within_the_first_partition_that_is_destroyed,
    before_the_record_is_deleted,
    after_the_record_is_deleted,
)


class Alone(Dying):
    """One GPU that is not in MIG mode, and claims for two partitions of it."""

    preparing = (before_the_mode, *PREPARING)
    unpreparing = (*UNPREPARING, before_the_mode_is_restored)
    arguments = (VIEWS,)
    pod = None

    def __init__(self, world) -> None:
        super().__init__(world)
        self.partitions = Partitions(world)

    @classmethod
    async def create(cls, make_world, _make_sharing) -> "Alone":
        world = await make_world(gpus=1)
        await world.start(VIEWS, devices=DEVICES)
        return cls(world)

    def claim(self):
        self.claims += 1
        return self.world.claim(f"job-{self.claims}", small(0), half(4))

    def lying(self) -> list[tuple[str, int, int]]:
        """The truth about the partitions that the interrupted claim may have."""
        return [one for one in self.partitions.lying() if one != STAYS]

    async def right(self, claim) -> None:
        assert self.partitions.lying() == [FIRST, SECOND]
        assert records(self.world) == {claim.uid: "prepared"}
        assert self.world.cdi_files == [self.spec(claim).name]

    async def nothing_left(self) -> None:
        await until(lambda: not self.partitions.left())


class Beside(Alone):
    """A GPU with a partition that stays, whose program must never notice, and claims for two others."""

    preparing, unpreparing = PREPARING, UNPREPARING

    @classmethod
    async def create(cls, make_world, make_sharing) -> "Beside":
        dying = await super().create(make_world, make_sharing)
        dying.pod = await dying.partitions.pod("stays", small(2))
        dying.program = dying.programs.enter_context(dying.pod.client())
        assert dying.program.attached.startswith("attached")
        dying.node.forget_calls()
        dying.partitions.before = dying.node.snapshot()
        return dying

    async def right(self, claim) -> None:
        assert self.partitions.lying() == sorted([FIRST, SECOND, STAYS])
        assert records(self.world) == dict.fromkeys([self.pod.claim.uid, claim.uid], "prepared")
        assert len(self.world.cdi_files) == 2
        self.unharmed()

    async def nothing_left(self) -> None:
        await until(lambda: list(records(self.world)) == [self.pod.claim.uid])
        await until(lambda: self.world.cdi_files == [self.spec(self.pod.claim).name])
        assert self.partitions.lying() == [STAYS]
        self.unharmed()

    def unharmed(self) -> None:
        """The program in the other partition goes on, and nobody has touched the GPU's mode."""
        assert self.program.command("alloc 1G").startswith("ok")
        assert self.program.command("free 1G").startswith("ok")
        assert self.partitions.calls(SET_MODE) == []
