"""Locks are fair within an instance, hold between instances, end with their process, and name who has them."""

import asyncio
import subprocess
import sys

import pytest

from dra_gpu.claims.locks import ClaimLocks, GpuLocks, LockTimeoutError
from dra_gpu.claims.publisher_lock import PublisherLock
from tests.unit.claims.world import PATIENCE

HOLDER = """
import asyncio, pathlib, sys
from dra_gpu.claims.locks import ClaimLocks, GpuLocks
async def main():
    kind = {"gpu": GpuLocks, "claim": ClaimLocks}[sys.argv[2]](pathlib.Path(sys.argv[1]))
    key = ["0000:10:00.0"] if sys.argv[2] == "gpu" else "u1"
    async with kind.hold(key, "team/other (u9)", asyncio.get_running_loop().time() + 30):
        print("held", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def other_instance(tmp_path):
    """Start another instance that holds a lock; returns its process."""
    started = []

    def start(kind: str) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path, kind], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def soon(seconds: float = PATIENCE) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_locks_are_served_in_the_order_of_asking(tmp_path):
    locks = GpuLocks(tmp_path)
    order = []

    async def use(number: int) -> None:
        async with locks.hold(["0000:10:00.0"], str(number), soon()):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(number) for number in range(20)))
    assert order == list(range(20))
    locks.close()


async def test_claims_on_different_gpus_do_not_wait_for_each_other(tmp_path):
    locks = GpuLocks(tmp_path)
    async with locks.hold(["a"], "one", soon()), locks.hold(["b"], "two", soon()):
        pass
    locks.close()


async def test_overlapping_sets_in_any_order_never_deadlock(tmp_path):
    locks = GpuLocks(tmp_path)

    async def use(keys: list[str]) -> None:
        for _ in range(20):
            async with locks.hold(keys, "x", soon()):
                await asyncio.sleep(0)

    await asyncio.gather(use(["a", "b", "c"]), use(["c", "a"]), use(["b", "a"]), use(["c", "b"]))
    locks.close()


@pytest.mark.case("C13")
async def test_a_wait_that_ends_by_its_deadline_names_the_lock_and_the_holder(tmp_path):
    locks = GpuLocks(tmp_path)
    async with locks.hold(["0000:10:00.0"], "team/first (u1)", soon()):
        with pytest.raises(LockTimeoutError, match=r"GPU 0000:10:00\.0 is held by team/first \(u1\)"):
            async with locks.hold(["0000:10:00.0"], "team/second (u2)", soon(0.05)):
                pytest.fail("two holders")
    async with locks.hold(["0000:10:00.0"], "team/third (u3)", soon()):
        pass
    locks.close()


@pytest.mark.case("C13")
async def test_a_lock_of_another_instance_is_waited_for_and_its_holder_named(tmp_path, other_instance):
    process = other_instance("gpu")
    locks = GpuLocks(tmp_path)
    with pytest.raises(LockTimeoutError, match=rf"process {process.pid} for claim team/other \(u9\)"):
        async with locks.hold(["0000:10:00.0"], "mine", soon(0.1)):
            pytest.fail("two holders")
    locks.close()


async def test_a_killed_instance_lets_go_of_its_gpus(tmp_path, other_instance):
    process = other_instance("gpu")
    locks = GpuLocks(tmp_path)
    process.kill()
    async with locks.hold(["0000:10:00.0"], "mine", soon()):
        pass
    locks.close()


async def test_a_killed_instance_lets_go_of_its_claims(tmp_path, other_instance):
    process = other_instance("claim")
    locks = ClaimLocks(tmp_path)
    with pytest.raises(LockTimeoutError, match="claim u1 is held by another instance"):
        async with locks.hold("u1", "mine", soon(0.05)):
            pytest.fail("two holders")
    async with locks.hold("u2", "mine", soon()):
        pass
    process.kill()
    async with locks.hold("u1", "mine", soon()):
        pass
    locks.close()


async def test_claim_locks_leave_one_file_whatever_the_number_of_claims(tmp_path):
    locks = ClaimLocks(tmp_path)
    for number in range(100):
        async with locks.hold(f"u{number}", "x", soon()):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["claims.lock"]
    assert not locks.is_wanted("u1")
    locks.close()


async def test_a_slot_never_becomes_a_path(tmp_path):
    locks = GpuLocks(tmp_path / "locks")
    async with locks.hold(["../../x"], "x", soon()):
        pass
    assert [path.name for path in (tmp_path / "locks").iterdir()] == [".._.._x.lock"]
    locks.close()


async def test_a_cancelled_wait_leaves_the_lock_to_the_next(tmp_path):
    locks = GpuLocks(tmp_path)
    entered = asyncio.Event()

    async def wait() -> None:
        entered.set()
        async with locks.hold(["a"], "waiter", soon()):
            pytest.fail("cancelled before")

    async with locks.hold(["a"], "first", soon()):
        waiter = asyncio.create_task(wait())
        await entered.wait()
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
    async with locks.hold(["a"], "next", soon()):
        pass
    locks.close()


async def test_the_instance_that_registered_last_publishes(tmp_path):
    old, new = PublisherLock(tmp_path, "old"), PublisherLock(tmp_path, "new")
    await old.acquire()
    taking = asyncio.create_task(new.acquire())
    async with asyncio.timeout(PATIENCE):
        await old.wanted()
        assert old.held
        assert not new.held
        old.release()
        await taking
    assert (old.held, new.held) == (False, True)
    old.close()
    new.close()


async def test_an_older_instance_does_not_ask_a_newer_one_to_yield(tmp_path):
    old, new = PublisherLock(tmp_path, "old"), PublisherLock(tmp_path, "new")
    await new.acquire()
    waiting = asyncio.create_task(old.acquire())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(new.wanted(), 0.6)
    assert not old.held
    new.close()
    async with asyncio.timeout(PATIENCE):
        await waiting
    assert old.held
    old.close()


async def test_an_instance_that_registers_again_is_the_newest(tmp_path):
    first, second = PublisherLock(tmp_path, "first"), PublisherLock(tmp_path, "second")
    await second.acquire()
    first.registered()
    taking = asyncio.create_task(first.acquire())
    async with asyncio.timeout(PATIENCE):
        await second.wanted()
        second.release()
        await taking
    first.close()
    second.close()


async def test_the_older_instance_publishes_again_when_the_newer_one_dies(tmp_path):
    program = (
        "import asyncio, pathlib, sys\n"
        "from dra_gpu.claims.publisher_lock import PublisherLock\n"
        "async def main():\n"
        "    await PublisherLock(pathlib.Path(sys.argv[1]), 'new').acquire()\n"
        "    print('held', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    old = PublisherLock(tmp_path, "old")
    await old.acquire()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        await old.wanted()
        old.release()
        again = asyncio.create_task(old.acquire())
        assert await process.stdout.readline() == b"held\n"
        assert not old.held
        process.kill()
        await process.wait()
        await again
    assert old.held
    old.close()


def test_lock_files_are_for_their_owner_alone(tmp_path):
    async def use() -> None:
        locks = GpuLocks(tmp_path / "locks")
        async with locks.hold(["a"], "x", soon()):
            pass
        locks.close()

    asyncio.run(use())
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "locks" / "a.lock").stat().st_mode & 0o777 == 0o600
