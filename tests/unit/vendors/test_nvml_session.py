"""A hold of NVML that several share."""

import asyncio
import threading

import pytest

from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia.session import Session
from dra_gpu.vendors.watchdog import Watchdog

SECONDS = 20


class FakeNvml:
    """Opens when a test lets it, and counts."""

    def __init__(self):
        self.users = 0
        self.most = 0
        self.opening = threading.Event()
        self.may_open = threading.Event()
        self.refusals = []

    def open(self):
        self.opening.set()
        assert self.may_open.wait(SECONDS)
        if self.refusals:
            raise self.refusals.pop()
        self.users += 1
        self.most = max(self.most, self.users)

    def close(self):
        self.users -= 1


@pytest.fixture
def nvml():
    return FakeNvml()


@pytest.fixture
def session(nvml):
    return Session(nvml, Watchdog())


async def use(session, nvml, leave):
    async with session.opened():
        assert nvml.users
        await leave.wait()
        assert nvml.users


async def test_two_who_come_while_it_opens_have_it_opened_once_and_closed_behind_the_last(session, nvml):
    leave = [asyncio.Event(), asyncio.Event()]
    users = [asyncio.create_task(use(session, nvml, one)) for one in leave]
    async with asyncio.timeout(SECONDS):
        await asyncio.to_thread(nvml.opening.wait)
        nvml.may_open.set()
        leave[0].set()
        await users[0]

        assert nvml.users == 1
        leave[1].set()
        await users[1]

    assert (nvml.users, nvml.most) == (0, 1)


async def test_who_comes_after_all_have_left_opens_it_again(session, nvml):
    nvml.may_open.set()
    for _ in range(3):
        async with session.opened():
            assert nvml.users == 1
        assert nvml.users == 0


async def test_one_who_may_not_open_it_costs_the_next_nothing(session, nvml):
    nvml.may_open.set()
    nvml.refusals = [VendorError(FailureKind.TRANSIENT, "no driver")]

    with pytest.raises(VendorError, match="no driver"):
        async with session.opened():
            pass
    async with session.opened():
        assert nvml.users == 1

    assert nvml.users == 0
