import asyncio
from contextlib import asynccontextmanager

import pytest

from dra_gpu.vendors.nvidia.gate import Gate, StillInUseError

LONG = 20.0


@asynccontextmanager
async def using(gate):
    """Somebody who uses it until the block ends, or until asked to leave."""
    inside = asyncio.Event()

    async def use():
        async with gate.use():
            inside.set()
            await gate.wait_closing()

    task = asyncio.create_task(use())
    await inside.wait()
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_many_use_it_at_once():
    gate = Gate()

    async with gate.use(), gate.use():
        assert not gate.closing


async def test_who_closes_it_waits_until_those_who_were_asked_have_left():
    gate = Gate()

    async with using(gate) as first, using(gate) as second, gate.closed(LONG):
        assert (first.done(), second.done()) == (True, True)


async def test_who_comes_while_it_is_closed_waits_until_it_is_open_again():
    gate = Gate()
    async with gate.closed(LONG):
        use = gate.use()
        coming = asyncio.create_task(use.__aenter__())
        done, _ = await asyncio.wait({coming}, timeout=0.01)
        assert not done

    await asyncio.wait_for(coming, LONG)
    await use.__aexit__(None, None, None)


async def test_one_who_does_not_leave_ends_the_wait_and_others_come_in_again():
    gate = Gate()

    async with gate.use():
        with pytest.raises(StillInUseError, match="1 uses of it did not end within"):
            async with gate.closed(0.01):
                pass
        async with asyncio.timeout(LONG), gate.use():
            assert not gate.closing


async def test_two_close_it_one_after_the_other():
    gate = Gate()
    async with gate.closed(LONG):
        other = gate.closed(LONG)
        second = asyncio.create_task(other.__aenter__())
        done, _ = await asyncio.wait({second}, timeout=0.01)
        assert not done

    await asyncio.wait_for(second, LONG)
    assert gate.closing
    await other.__aexit__(None, None, None)
