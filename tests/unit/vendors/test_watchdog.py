import asyncio
import threading

import pytest

from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.watchdog import Watchdog


async def test_a_call_that_returns_gives_its_result():
    assert await Watchdog().call("GPU 0", "read", lambda: 7, 5) == 7


async def test_an_error_of_the_call_is_raised_to_the_caller():
    def fail():
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        await Watchdog().call("GPU 0", "read", fail, 5)


async def test_a_call_that_hangs_ends_at_its_deadline_and_marks_only_its_subject():
    watchdog, release = Watchdog(), threading.Event()

    with pytest.raises(VendorError) as caught:
        await watchdog.call("GPU 0", "read", release.wait, 0.01)

    assert caught.value.kind is FailureKind.UNRESPONSIVE
    assert watchdog.stuck == {"GPU 0"}
    assert await watchdog.call("GPU 1", "read", lambda: 1, 5) == 1
    release.set()


async def test_while_a_call_hangs_the_next_on_its_subject_is_refused_without_a_thread():
    watchdog, release = Watchdog(), threading.Event()
    with pytest.raises(VendorError):
        await watchdog.call("GPU 0", "read", release.wait, 0.01)
    before = threading.active_count()

    with pytest.raises(VendorError, match="read has not returned"):
        await watchdog.call("GPU 0", "reset", lambda: None, 5)

    assert threading.active_count() <= before  # threads of earlier tests may end meanwhile
    release.set()


async def test_a_subject_is_free_again_when_its_call_returns_late():
    watchdog, release = Watchdog(), threading.Event()
    with pytest.raises(VendorError):
        await watchdog.call("GPU 0", "read", release.wait, 0.01)

    release.set()
    async with asyncio.timeout(30):
        while watchdog.stuck:
            await asyncio.sleep(0)

    assert await watchdog.call("GPU 0", "read", lambda: 2, 5) == 2


async def test_a_cancelled_caller_leaves_the_subject_marked_until_the_call_returns():
    watchdog, release = Watchdog(), threading.Event()
    task = asyncio.create_task(watchdog.call("GPU 0", "read", release.wait, 60))
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert watchdog.stuck == {"GPU 0"}
    release.set()
