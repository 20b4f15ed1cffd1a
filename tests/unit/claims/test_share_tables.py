"""The journal knows what is promised of each GPU, and which cgroups are limited for whom."""

import asyncio
import dataclasses
import sqlite3
from contextlib import closing

import pytest

from dra_gpu.api.dra_gpu_v1alpha1 import SharedStrategy
from dra_gpu.claims.journal import FILE_NAME
from dra_gpu.claims.record import Access, Record
from dra_gpu.claims.shares import HeldShare, MemoryBudget, MemoryCgroup
from dra_gpu.inventory.sharing import Mechanism
from tests.unit.claims.test_journal import FIXTURES, GPU, change, open_journal, record


@pytest.fixture
async def journal(tmp_path):
    journal = open_journal(tmp_path)
    yield journal
    await journal.close()


def held(number: int, *, percent: int = 60, memory: int = 2**30, gpu: str = GPU, strategy=SharedStrategy.MPS):
    return HeldShare(
        device="gpu-0-shared",
        share_id=f"share-{number}",
        gpu=gpu,
        strategy=strategy,
        percent=percent,
        memory_bytes=memory,
        compute=Mechanism.NAMESPACE,
        memory=Mechanism.CGROUP,
        gpu_memory_bytes=80 * 2**30,
    )


def sharing(number: int, **facts) -> Record:
    one = held(number, **facts)
    return dataclasses.replace(
        record(f"u{number}", gpu=one.gpu, access=Access.SHARED, share=one.share_id),
        shares=(one,),
        cgroups=(MemoryCgroup(one.gpu, "/kubepods/pod", one.memory_bytes),),
    )


async def test_a_share_is_read_as_it_was_written(journal):
    await journal.begin(sharing(1))
    found = await journal.load("u1")
    assert (found.shares, found.cgroups) == (sharing(1).shares, sharing(1).cgroups)
    assert await journal.records() == [found]


async def test_beside_a_share_of_unknown_size_nothing_new_is_promised_and_what_was_there_is_known_again(journal):
    """Of a claim that was taken over from a lost journal only the claim itself tells how much it has."""

    def of(number: int, **facts) -> Record:
        one = sharing(number, **facts)
        return dataclasses.replace(one, holds=tuple(dataclasses.replace(it, device=held(1).device) for it in one.holds))

    for number in (1, 2):
        assert await journal.begin(dataclasses.replace(of(number), shares=(), cgroups=(), adopted=True)) == ()

    [first, second] = await journal.begin(of(3, percent=1))
    assert {first.ref.uid, second.ref.uid} == {"u1", "u2"}
    assert "the journal was lost" in first.shortage

    assert await journal.begin(of(1, percent=50)) == ()
    assert await journal.begin(of(2, percent=40)) == ()
    assert await journal.begin(of(3, percent=10)) == ()


@pytest.mark.case("C94")
async def test_shares_that_wait_for_one_commit_together_never_exceed_the_gpu(journal):
    answers = await asyncio.gather(*(journal.begin(sharing(number, percent=7)) for number in range(20)))
    assert sum(not blockers for blockers in answers) == 14
    [shortage] = {blockers[0].shortage for blockers in answers if blockers}
    assert shortage == "7 % of its SMs are wanted, 2 % are free"


async def test_a_share_written_anew_is_not_counted_twice(journal):
    await journal.begin(sharing(1, percent=100))
    assert await journal.begin(sharing(1, percent=100)) == ()


async def test_shares_of_another_gpu_and_of_an_earlier_boot_are_not_counted(tmp_path):
    before = open_journal(tmp_path, "boot-0")
    await before.begin(dataclasses.replace(sharing(1, percent=100), boot_id="boot-0"))
    await before.close()
    journal = open_journal(tmp_path)
    await journal.begin(sharing(2, percent=100, gpu="GPU-other"))
    assert await journal.begin(sharing(3, percent=100)) == ()
    assert await journal.memory_budgets("u3", GPU) == (MemoryBudget("/kubepods/pod", 2**30, 0),)
    await journal.close()


async def test_a_cgroup_has_a_budget_from_each_claim_of_its_pod(journal):
    await journal.begin(sharing(1, percent=10, memory=3))
    await journal.begin(sharing(2, percent=10, memory=5))
    assert await journal.memory_budgets("u1", GPU) == (MemoryBudget("/kubepods/pod", 3, 5),)
    await journal.forget("u2")
    assert await journal.memory_budgets("u1", GPU) == (MemoryBudget("/kubepods/pod", 3, 0),)


async def test_a_pod_that_joins_a_forgotten_claim_leaves_nothing(journal):
    await journal.add_cgroups("u9", [MemoryCgroup(GPU, "/kubepods/pod", 1)])
    await journal.begin(sharing(9))
    assert len((await journal.load("u9")).cgroups) == 1


async def test_a_release_that_knows_no_shares_deletes_them_with_their_record(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(sharing(1))
    change(tmp_path, "DELETE FROM holds", "DELETE FROM claims")
    assert await journal.memory_budgets("u1", GPU) == ()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT count(*) FROM shares").fetchone() == (0,)
    await journal.close()


async def test_a_share_that_a_newer_release_describes_otherwise_still_counts(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(sharing(1))
    await journal.close()
    change(tmp_path, "UPDATE claims SET payload = json_set(payload, '$.shares[0].compute', 'quantum')")
    journal = open_journal(tmp_path)
    found = await journal.load("u1")
    assert (found.fault, found.shares) == ("", ())
    [blocker] = await journal.begin(sharing(2))
    assert "60 % of its SMs are wanted, 40 % are free" in blocker.shortage
    await journal.close()


@pytest.mark.case("C20")
def test_a_journal_of_format_1_0_is_brought_to_this_one_and_keeps_its_records(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.executescript((FIXTURES / "journal-0.1.0.sql").read_text())

    async def use() -> None:
        journal = open_journal(tmp_path)
        assert journal.recovered is None
        assert [found.ref.uid for found in await journal.records()] == ["u1", "u2"]
        assert await journal.begin(sharing(3, gpu="GPU-other")) == ()
        await journal.close()

    asyncio.run(use())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1003,)
