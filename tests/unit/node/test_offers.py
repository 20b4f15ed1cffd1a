"""What is published beyond the hardware: when it is offered, and when the server is known to have it."""

import asyncio
from contextlib import asynccontextmanager

from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.resize.state import ShareKey
from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.inventory.model import Scan
from dra_gpu.kubelet.registration import RegistrationReport
from dra_gpu.node import publishing as module
from dra_gpu.node.publishing import Publishing
from tests.unit.inventory.builders import gpu

GPUS = [gpu(0)]
HARDWARE = slices.arrange(views.build(Scan(gpus=tuple(GPUS)), naming.assign({}, GPUS)))
KEY, OTHER = ShareKey("c", "gpu-0-shared", "s"), ShareKey("d", "gpu-0-shared", "t")
PATIENCE = 20.0


class Publisher:
    """Remembers what is wanted; the server has it when the test says so."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self.wanted = None
        self.withdrawn = ""

    def publish(self, contents) -> None:
        if contents != self.wanted:
            self.wanted = contents
            self.settled.clear()

    def withdraw(self, reason) -> None:
        self.withdrawn = reason
        self.settled.clear()

    def set_registered(self, registered) -> None:
        pass

    def wake(self) -> None:
        pass


class Lock:
    """A lock that this instance gets at once, until somebody wants it."""

    def __init__(self) -> None:
        self.held = False
        self.had = asyncio.Event()
        self.is_wanted = asyncio.Event()

    def registered(self) -> None:
        pass

    async def acquire(self) -> None:
        self.held = True
        self.had.set()

    async def wanted(self) -> None:
        await self.is_wanted.wait()

    def release(self) -> None:
        self.held = False

    def close(self) -> None:
        pass


@asynccontextmanager
async def in_charge(offered=None, failures=0):
    """An instance that publishes the hardware and what the journal offers."""
    publisher, lock, loads = Publisher(), Lock(), []

    async def load():
        loads.append(1)
        if len(loads) <= failures:
            raise JournalError("busy")
        return offered or {}

    made = Publishing(publisher, lock, load)
    made.set_contents(HARDWARE)
    made.set_master(None)
    made.set_registration(RegistrationReport(registered=True))
    holding = asyncio.create_task(made.hold_lock())
    async with asyncio.timeout(PATIENCE):
        while not made.in_charge:
            await asyncio.sleep(0.001)
    made.test = publisher, lock
    try:
        yield made
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


def acknowledge(made) -> None:
    publisher, _ = made.test
    publisher.settled.set()
    made.acknowledged(publisher.wanted)


def percent(made) -> str:
    [device] = [one for piece in made.test[0].wanted for one in piece.devices if one.name == "gpu-0-shared"]
    return device.capacity["computePercent"].value


async def test_what_the_journal_offers_is_in_the_first_slices_that_are_written():
    async with in_charge({KEY: Amounts(30), OTHER: Amounts(5)}) as made:
        assert percent(made) == "135"


async def test_nothing_is_published_before_the_journal_could_be_read(monkeypatch):
    monkeypatch.setattr(module, "LOCK_RETRY_SECONDS", 0.001)
    async with in_charge({KEY: Amounts(30)}, failures=2) as made:
        assert percent(made) == "130"


async def test_the_server_has_what_is_offered_only_when_it_holds_exactly_that():
    async with in_charge() as made:
        acknowledge(made)
        assert made.at_server(KEY) == NOTHING
        before = made.test[0].wanted

        made.offer(KEY, Amounts(30))
        assert made.at_server(KEY) is None
        made.acknowledged(before)
        assert made.at_server(KEY) is None
        acknowledge(made)

        assert made.at_server(KEY) == Amounts(30)
        assert made.at_server(OTHER) == NOTHING


async def test_whoever_waits_is_told_once_when_the_server_has_it():
    async with in_charge() as made:
        told = []
        made.on_acknowledged = lambda: told.append(1)
        made.offer(KEY, Amounts(30))

        acknowledge(made)
        acknowledge(made)

        assert told == [1]


async def test_an_offer_of_what_is_not_published_is_known_to_the_server_at_once():
    async with in_charge() as made:
        acknowledge(made)

        made.offer(ShareKey("c", "gpu-7-shared", "s"), Amounts(30))

        assert made.at_server(ShareKey("c", "gpu-7-shared", "s")) == Amounts(30)


async def test_while_another_master_has_the_node_the_server_has_nothing():
    async with in_charge({KEY: Amounts(30)}) as made:
        made.set_master("somebody")
        made.test[0].settled.set()
        made.acknowledged(())

        assert made.at_server(KEY) == NOTHING


async def test_an_instance_that_is_not_in_charge_offers_nothing():
    async with in_charge({KEY: Amounts(30)}) as made:
        publisher, lock = made.test
        lock.acquire = asyncio.Event().wait
        lock.is_wanted.set()
        async with asyncio.timeout(PATIENCE):
            while made.in_charge:
                await asyncio.sleep(0.001)
        before = publisher.wanted

        made.offer(KEY, Amounts(5))

        assert publisher.wanted is before
        assert made.at_server(KEY) is None
