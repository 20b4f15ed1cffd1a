"""Two claims never have the same memory units of a GPU; what the journal keeps of that survives other releases."""

import asyncio
import dataclasses
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_gpu.claims.journal import FILE_NAME, Journal
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.partitions import PartitionHolder
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.claims.steps import CreateMigInstance, SetMigMode
from dra_gpu.inventory.model import MigPlacement
from tests.unit.claims.test_journal import BOOT, FIXTURES, GPU, change, open_journal

WHOLE = Hold("gpu-0", GPU, Access.EXCLUSIVE)
SHARE = Hold("gpu-0-shared", GPU, Access.SHARED, "s1")
WATCH = Hold("gpu-0-monitor", GPU, Access.OBSERVER)


def place(start: int, size: int = 1) -> MigPlacement:
    return MigPlacement(0 if size == 1 else 2, start, size)


def partition(start: int, size: int = 1) -> Hold:
    return Hold(f"gpu-0-mig-{size}-{start}", GPU, Access.PARTITION, units=place(start, size).units)


def part(start: int, share: str, size: int = 1) -> Hold:
    units = place(start, size).units
    return Hold(f"gpu-0-mig-{size}-{start}-shared", GPU, Access.PARTITION_SHARE, share, units)


def record(uid: str, hold: Hold, *, placement: MigPlacement | None = None, boot: str = BOOT, **facts) -> Record:
    steps = ()
    if placement is not None:
        mode = SetMigMode(GPU, enabled=True, claim_uid=uid, former=facts.pop("former", False))
        steps = (mode, CreateMigInstance(GPU, placement, uid, **facts))
    return Record(ref=ClaimRef("team", uid, uid), boot_id=boot, state=State.PREPARED, steps=steps, holds=(hold,))


@pytest.fixture
async def journal(tmp_path):
    journal = open_journal(tmp_path)
    yield journal
    await journal.close()


@pytest.mark.parametrize(
    ("one", "other", "excluded"),
    [
        (partition(0), partition(1), False),
        (partition(0, 4), partition(4, 4), False),
        (partition(0, 4), partition(3), True),
        (partition(2), partition(2), True),
        (partition(2), WHOLE, True),
        (partition(2), SHARE, True),
        (partition(2), WATCH, False),
        (partition(2), part(2, "s1"), True),
        (part(2, "s1"), part(2, "s2"), False),
        (part(2, "s1"), part(2, "s1"), True),
        (part(2, "s1"), part(3, "s1"), False),
        (part(0, "s1", 4), part(3, "s2"), True),
        (part(2, "s1"), WHOLE, True),
        (part(2, "s1"), SHARE, True),
    ],
)
async def test_partitions_exclude_each_other_where_they_overlap_and_the_gpu_as_one(journal, one, other, excluded):
    assert one.excludes(other) is other.excludes(one) is excluded
    await journal.begin(record("u1", one))
    blockers = await journal.begin(record("u2", other))
    assert [str(blocker.ref) for blocker in blockers] == (["team/u1 (u1)"] if excluded else [])


async def test_partitions_of_another_gpu_are_in_nobodys_way(journal):
    await journal.begin(record("u1", partition(2)))
    assert await journal.begin(record("u2", dataclasses.replace(partition(2), gpu="GPU-other"))) == ()


HOLDS = st.one_of(
    st.builds(partition, st.integers(0, 7), st.sampled_from([1, 2, 4, 8])),
    st.builds(part, st.integers(0, 7), st.sampled_from(["s1", "s2", "s3"]), st.sampled_from([1, 2, 4])),
    st.sampled_from([WHOLE, SHARE, WATCH]),
)


@settings(max_examples=40)
@given(st.lists(HOLDS, max_size=8))
def test_whatever_is_asked_for_no_two_claims_hold_the_same_units(tmp_path_factory, holds):
    async def ask() -> list[Hold]:
        journal = open_journal(tmp_path_factory.mktemp("journal"))
        for number, hold in enumerate(holds):
            await journal.begin(record(f"u{number}", hold))
        kept = [hold for found in await journal.records() for hold in found.holds]
        await journal.close()
        return kept

    users = [hold for hold in asyncio.run(ask()) if hold.access is not Access.OBSERVER]
    for number, one in enumerate(users):
        for other in users[:number]:
            parts = Access.PARTITION_SHARE if one.units else Access.SHARED
            together = one.access is other.access is parts and one.device == other.device
            apart = one.units and other.units and not one.units & other.units
            assert apart or (together and one.share_id != other.share_id)


async def test_who_holds_partitions_is_told_with_what_the_last_one_has_to_restore(journal):
    await journal.begin(record("u1", partition(2), placement=place(2), former=False))
    await journal.begin(record("u2", part(3, "s1"), placement=place(3), foreign=True, former=True))
    await journal.begin(record("u3", Hold("gpu-1", "GPU-other", Access.EXCLUSIVE)))
    assert await journal.partition_holders(GPU) == (
        PartitionHolder("u1", GPU, place(2).units, place(2), foreign=False, former_mode=False),
        PartitionHolder("u2", GPU, place(3).units, place(3), foreign=True, former_mode=True),
    )
    assert await journal.partition_holders("GPU-other") == ()
    assert len(await journal.partition_holders()) == 2


async def test_a_partition_of_an_earlier_boot_is_held_by_nobody(journal):
    await journal.begin(record("u1", partition(2), placement=place(2), boot="boot-0"))
    assert await journal.partition_holders() == ()
    assert await journal.begin(record("u2", partition(2))) == ()


async def test_a_partition_whose_record_cannot_be_read_is_held_and_never_ours_to_destroy(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1", partition(2), placement=place(2)))
    change(tmp_path, "UPDATE claims SET payload = '{'")
    assert await journal.partition_holders(GPU) == (PartitionHolder("u1", GPU, place(2).units),)
    assert [blocker.ref.uid for blocker in await journal.begin(record("u2", partition(2)))] == ["u1"]
    await journal.close()


def restored(tmp_path, name: str) -> Journal:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.executescript((FIXTURES / name).read_text())
    return open_journal(tmp_path)


@pytest.mark.case("C20")
@pytest.mark.parametrize("name", ["journal-0.1.0.sql", "journal-0.1.0-format-1.1.sql"])
async def test_a_journal_of_an_earlier_format_keeps_its_records_and_takes_partitions(tmp_path, name):
    journal = restored(tmp_path, name)
    assert journal.recovered is None
    before = await journal.records()
    assert [found.ref.uid for found in before] == ["u1", "u2"]
    assert {hold.units for found in before for hold in found.holds} == {0}
    [blocker] = await journal.begin(record("u3", partition(2)))
    assert blocker.ref.uid == "u1"
    await journal.forget("u1")
    assert await journal.begin(record("u3", partition(2), placement=place(2))) == ()
    assert [holder.uid for holder in await journal.partition_holders()] == ["u3"]
    await journal.close()


@pytest.mark.case("C20")
async def test_an_earlier_release_takes_a_partition_for_the_whole_gpu_and_writes_on(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1", partition(2), placement=place(2)))
    await journal.close()
    known_to_it = {"exclusive", "shared", "observer"}
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        [access] = connection.execute("SELECT access FROM holds").fetchone()
        assert access not in known_to_it  # and so exclusive, as that release reads what it does not know
        connection.execute(
            "INSERT INTO holds (uid, device, share_id, gpu, access) VALUES ('u2', 'd', '', 'g', 'shared')"
        )
        connection.commit()
    journal = open_journal(tmp_path)
    assert (await journal.load("u1")).steps[1] == CreateMigInstance(GPU, place(2), "u1")
    await journal.close()
