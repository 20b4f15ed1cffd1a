"""kill -9 of the shipped node plugin at every step of a share, while another share of the same GPU is in use.

Whatever the moment: the next call is right; nothing stays behind with MPS, in the hardware's limits, the journal or the
CDI directory; no part of the GPU is promised twice; and the program in the other share never notices. The moment is met
exactly: the journal is busy, the MPS service stands still, a call to the driver hangs, or the file to be read before it
is written is a pipe that nobody writes to.
"""

import asyncio
import os
import signal
from contextlib import ExitStack, contextmanager

import pytest

from tests.component.node.node_under_fire import PATIENCE, journal_busy, records, rows, until
from tests.component.node.sharing import VIEWS

LIMIT_CALL = "nvmlDeviceSetMemoryLimits*"
PERCENT = 60


class Dying:
    """A node with one share in use, whose plugin is killed at a named moment of a call about another share."""

    def __init__(self, sharing, stays, program) -> None:
        self.sharing, self.world, self.stays, self.program = sharing, sharing.world, stays, program
        self.stack = ExitStack()
        self.claims = 0

    def claim(self):
        """A share of 60 %, of which the GPU has room for one beside the other share."""
        self.claims += 1
        name, uid = f"job-{self.claims}", f"pod-{self.claims}"
        self.sharing.cluster.paths.make_pod_cgroup(uid)
        return self.sharing.claim(name, results=[self.sharing.result(name, PERCENT)], pod_uid=uid)

    def spec(self, claim):
        return self.world.cluster.paths.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json"

    @contextmanager
    def service_stands_still(self):
        pid = self.sharing.server_pid
        os.kill(pid, signal.SIGSTOP)
        yield
        os.kill(pid, signal.SIGCONT)

    def driver_hangs(self):
        """Let the next call that limits memory hang; return what tells that it does."""
        serial = self.sharing.node.inject(LIMIT_CALL, block=True)
        return lambda: any(fault.serial == serial and fault.hits for fault in self.sharing.node.faults())

    async def die(self) -> None:
        await self.world.plugin.kill()
        self.stack.close()
        self.sharing.node.clear()
        self.world.kubelet.restart()
        await self.world.start(VIEWS)

    @property
    def limits(self) -> list[int]:
        return [limit.hard for limit in self.sharing.node.snapshot().limits]

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

    async def only_the_other_share(self) -> None:
        await until(lambda: list(records(self.world)) == [self.stays.claim.uid])
        assert await self.everything() == self.alone
        self.unharmed()

    def unharmed(self) -> None:
        """The program in the other share goes on."""
        assert self.program.command("alloc 1G").startswith("ok")
        assert self.program.command("free 1G").startswith("ok")

    async def right(self, claim) -> None:
        """Both shares are all there, once."""
        found = await self.everything()
        both = {self.stays.claim.uid, claim.uid}
        assert found["records"] == dict.fromkeys(both, "prepared")
        assert sorted(percent for _, percent in found["shares"]) == [20, PERCENT]
        assert (len(found["files"]), len(found["mps"]), found["limits"]) == (2, 2, 2)
        self.unharmed()


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
    os.mkfifo(dying.spec(claim))
    dying.stack.callback(dying.spec(claim).unlink)
    await call(until(lambda: len(dying.limits) == 2))


async def after_the_file(dying, claim, call):
    await call(until(dying.driver_hangs()))
    dying.stack.enter_context(journal_busy(dying.world))
    dying.sharing.node.clear()
    await until(dying.spec(claim).exists)
    assert records(dying.world)[claim.uid] == "preparing"


async def after_the_end(dying, claim, call):
    await call(until(lambda: records(dying.world).get(claim.uid) == "prepared"))


PREPARING = [
    before_the_record,
    before_the_share,
    before_the_limit,
    before_the_file,
    after_the_file,
    after_the_end,
]


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


UNPREPARING = [
    before_the_mark,
    before_the_limit_is_taken_back,
    before_the_share_is_given_up,
    before_the_record_is_deleted,
    after_the_record_is_deleted,
]


async def killed_in(dying, boundary, claim, call) -> None:
    """Kill the process when `call` for the claim has come to the boundary."""
    running: list[asyncio.Task] = []

    async def begin(reached) -> None:
        running.append(asyncio.create_task(call(claim)))
        await reached

    await boundary(dying, claim, begin)
    await dying.die()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.fixture
async def dying(sharing) -> Dying:
    stays = await sharing.pod("stays")
    dying = Dying(sharing, stays, sharing.client(stays))
    dying.alone = await dying.everything()
    return dying


async def test_killed_anywhere_in_a_prepare_the_next_prepare_is_right_and_the_unprepare_leaves_nothing(dying):
    for boundary in PREPARING:
        claim = dying.claim()

        await killed_in(dying, boundary, claim, dying.world.prepare)

        await dying.world.prepared(claim)
        await dying.right(claim)
        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.only_the_other_share()


async def test_killed_anywhere_in_a_prepare_the_place_goes_to_the_next_claim_when_the_pod_is_gone(dying):
    for boundary in PREPARING:
        gone, successor = dying.claim(), dying.claim()

        await killed_in(dying, boundary, gone, dying.world.prepare)
        dying.world.cluster.remove_claim(gone)
        assert (await dying.world.unprepare(gone))[gone.uid] == "", boundary.__name__

        await dying.world.prepared(successor)
        await dying.right(successor)
        assert (await dying.world.unprepare(successor))[successor.uid] == ""
        await dying.only_the_other_share()


async def test_killed_anywhere_in_an_unprepare_the_next_unprepare_leaves_nothing(dying):
    for boundary in UNPREPARING:
        claim = dying.claim()
        await dying.world.prepared(claim)

        await killed_in(dying, boundary, claim, dying.world.unprepare)

        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.only_the_other_share()


async def test_killed_anywhere_in_an_unprepare_the_next_prepare_is_right(dying):
    for boundary in UNPREPARING:
        claim = dying.claim()
        await dying.world.prepared(claim)

        await killed_in(dying, boundary, claim, dying.world.unprepare)

        await dying.world.prepared(claim)
        await dying.right(claim)
        assert (await dying.world.unprepare(claim))[claim.uid] == "", boundary.__name__
        await dying.only_the_other_share()
