"""A share of 60 % of a GPU, interrupted while another share of the same GPU is in use."""

import asyncio
import os
import signal
from contextlib import contextmanager

from tests.component.node.dying import Dying
from tests.component.node.node_under_fire import PATIENCE, journal_busy, records, rows, until
from tests.component.node.sharing import VIEWS

LIMIT_CALL = "nvmlDeviceSetMemoryLimits*"
PERCENT = 60


async def before_the_record(dying, claim, call):
    dying.stack.enter_context(journal_busy(dying.world))
    await call(dying.sharing.until_read(claim.name))
    assert claim.uid not in records(dying.world)


async def before_the_share(dying, claim, call):
    dying.stack.enter_context(dying.service_stands_still())
    await call(until(lambda: records(dying.world).get(claim.uid) == "preparing"))


async def before_the_limit(dying, claim, call):
    await call(until(dying.driver_hangs()))
    assert len(await dying.sharing.share_names()) == 2
    assert len(dying.limits) == 1


async def before_the_file(dying, claim, call):
    dying.file_is_a_pipe(claim)
    await call(until(lambda: len(dying.limits) == 2))


async def after_the_file(dying, claim, call):
    await call(until(dying.driver_hangs()))
    dying.stack.enter_context(journal_busy(dying.world))
    dying.sharing.node.clear()
    await until(dying.spec(claim).exists)
    assert records(dying.world)[claim.uid] == "preparing"


async def after_the_end(dying, claim, call):
    await call(until(lambda: records(dying.world).get(claim.uid) == "prepared"))


PREPARING = (
    before_the_record,
    before_the_share,
    before_the_limit,
    before_the_file,
    after_the_file,
    after_the_end,
)


async def before_the_mark(dying, claim, call):
    dying.stack.enter_context(journal_busy(dying.world))
    await call(asyncio.sleep(0))
    assert records(dying.world)[claim.uid] == "prepared"


async def before_the_limit_is_taken_back(dying, claim, call):
    await call(until(dying.driver_hangs()))
    assert not dying.spec(claim).exists()
    assert len(dying.limits) == 2


async def before_the_share_is_given_up(dying, claim, call):
    dying.stack.enter_context(dying.service_stands_still())
    await call(until(lambda: len(dying.limits) == 1))


async def before_the_record_is_deleted(dying, claim, call):
    await call(until(dying.driver_hangs()))
    dying.stack.enter_context(journal_busy(dying.world))
    dying.sharing.node.clear()
    async with asyncio.timeout(PATIENCE):
        while len(await dying.sharing.share_names()) == 2:
            await asyncio.sleep(0.01)
    assert records(dying.world)[claim.uid] == "unpreparing"


async def after_the_record_is_deleted(dying, claim, call):
    await call(until(lambda: claim.uid not in records(dying.world)))


UNPREPARING = (
    before_the_mark,
    before_the_limit_is_taken_back,
    before_the_share_is_given_up,
    before_the_record_is_deleted,
    after_the_record_is_deleted,
)


class Shares(Dying):
    """One GPU with a share that stays, whose program must never notice, and claims for another share."""

    preparing, unpreparing = PREPARING, UNPREPARING
    arguments = (VIEWS,)

    def __init__(self, sharing, stays, program) -> None:
        super().__init__(sharing.world)
        self.sharing, self.stays, self.program = sharing, stays, program

    @classmethod
    async def create(cls, _make_world, make_sharing) -> "Shares":
        sharing = await make_sharing()
        stays = await sharing.pod("stays")
        dying = cls(sharing, stays, sharing.client(stays))
        dying.alone = await dying.everything()
        return dying

    def claim(self):
        self.claims += 1
        name, uid = f"job-{self.claims}", f"pod-{self.claims}"
        self.sharing.cluster.paths.make_pod_cgroup(uid)
        return self.sharing.claim(name, results=[self.sharing.result(name, PERCENT)], pod_uid=uid)

    async def right(self, claim) -> None:
        found = await self.everything()
        both = {self.stays.claim.uid, claim.uid}
        assert found["records"] == dict.fromkeys(both, "prepared")
        assert sorted(percent for _, percent in found["shares"]) == [20, PERCENT]
        assert (len(found["files"]), len(found["mps"]), found["limits"]) == (2, 2, 2)
        self.unharmed()

    async def nothing_left(self) -> None:
        await until(lambda: list(records(self.world)) == [self.stays.claim.uid])
        await until(lambda: len(self.world.cdi_files) == 1)  # a start removes temporary files last
        assert await self.everything() == self.alone
        self.unharmed()

    @contextmanager
    def service_stands_still(self):
        pid = self.sharing.server_pid
        os.kill(pid, signal.SIGSTOP)
        yield
        os.kill(pid, signal.SIGCONT)

    def driver_hangs(self):
        """Let the next call that limits memory hang; return what tells that it does."""
        return self.stall(LIMIT_CALL).reached

    @property
    def limits(self) -> list[int]:
        return [limit.hard for limit in self.node.snapshot().limits]

    async def everything(self) -> dict[str, object]:
        """What is there of both shares, by everybody's own account."""
        return {
            "records": records(self.world),
            "shares": rows(self.world, "SELECT uid, percent FROM shares ORDER BY uid"),
            "cgroups": rows(self.world, "SELECT uid FROM memory_cgroups"),
            "files": self.world.cdi_files,
            "mps": await self.sharing.share_names(),
            "limits": len(self.limits),
            "mode": self.sharing.modes,
        }

    def unharmed(self) -> None:
        """The program in the other share goes on."""
        assert self.program.command("alloc 1G").startswith("ok")
        assert self.program.command("free 1G").startswith("ok")
