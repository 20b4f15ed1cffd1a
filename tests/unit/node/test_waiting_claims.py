"""Who waits for a device hears when a claim that held it is gone."""

import pytest

from dra_gpu.claims.outcome import ClaimRef, Refusal, RefusalKind
from dra_gpu.node import waiting_claims
from dra_gpu.node.waiting_claims import WaitingClaims

WAITS = ClaimRef("team-a", "next", "u2")


class Journal:
    def __init__(self, *uids: str) -> None:
        self.uids = set(uids)
        self.asked = 0

    async def known(self, uids):
        self.asked += 1
        return frozenset(self.uids.intersection(uids))


@pytest.fixture
def told() -> list[ClaimRef]:
    return []


def held(*holders: str) -> Refusal:
    return Refusal("held", retryable=True, kind=RefusalKind.HELD, holders=frozenset(holders))


async def test_more_claims_than_can_be_remembered_are_counted(told, monkeypatch):
    monkeypatch.setattr(waiting_claims, "_MOST", 2)
    waiting = WaitingClaims(Journal("u0").known, told.append)

    for number in range(5):
        waiting.refused(ClaimRef("team-a", f"c{number}", f"c{number}"), held("u0"))
    waiting.refused(ClaimRef("team-a", "c0", "c0"), held("u0"))

    assert waiting.dropped == 3


async def test_a_claim_is_told_once_when_one_of_its_holders_has_gone(told):
    journal = Journal("u0", "u1")
    waiting = WaitingClaims(journal.known, told.append)
    waiting.refused(WAITS, held("u0", "u1"))
    await waiting.look()
    assert told == []
    journal.uids.discard("u0")
    await waiting.look()
    await waiting.look()

    assert told == [WAITS]


async def test_nobody_is_told_of_a_refusal_that_no_leaving_would_change(told):
    journal = Journal()
    waiting = WaitingClaims(journal.known, told.append)
    waiting.refused(WAITS, Refusal("no such device", retryable=False))
    await waiting.look()

    assert told == []
    assert journal.asked == 0


async def test_a_claim_that_was_prepared_or_given_back_waits_no_longer(told):
    journal = Journal("u0")
    waiting = WaitingClaims(journal.known, told.append)
    waiting.refused(WAITS, held("u0"))
    waiting.answered(WAITS)
    journal.uids.clear()
    await waiting.look()

    assert told == []
