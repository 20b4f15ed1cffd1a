"""The journal keeps intent before effect, survives what happens to files, and never throws good data away."""

import asyncio
import dataclasses
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims import journal_file
from dra_gpu.claims.journal import FILE_NAME, Journal
from dra_gpu.claims.journal_errors import (
    JournalError,
    JournalFullError,
    JournalTooNewError,
    JournalUnreadableError,
)
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice
from dra_gpu.claims.record import Access, Blocker, DeviceName, Hold, Record, State
from dra_gpu.claims.steps import CdiDevice, SetTimeSlice, WriteCdiSpec
from dra_gpu.inventory.model import View

FIXTURES = Path(__file__).parent / "fixtures"
BOOT = "boot-1"
GPU = "GPU-00000000-0000-0000-0000-000000000000"


def record(uid: str, *, gpu: str = GPU, access: Access = Access.EXCLUSIVE, boot: str = BOOT, share: str = "") -> Record:
    steps = (
        SetTimeSlice(gpu, TimeSliceInterval.LONG, TimeSliceInterval.DEFAULT),
        WriteCdiSpec(uid, f"team/{uid}", (CdiDevice(f"{uid}-gpu-0", "gpu-0", gpu, View.GPU),)),
    )
    return Record(
        ref=ClaimRef("team", uid, uid),
        boot_id=boot,
        state=State.PREPARING,
        devices=(PreparedDevice(("main",), "node-a", "gpu-0", (f"k8s.gpu.nvidia.com/claim={uid}-gpu-0",)),),
        steps=steps,
        holds=(Hold("gpu-0", gpu, access, share),),
        lock_keys=("0000:10:00.0",),
    )


def open_journal(directory: Path, boot: str = BOOT) -> Journal:
    return Journal.open(directory, boot_id=boot, release="0.1.0")


@pytest.fixture
async def journal(tmp_path):
    journal = open_journal(tmp_path)
    yield journal
    await journal.close()


def change(directory: Path, *statements: str) -> None:
    """Do to the file what somebody else would."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


async def test_a_record_is_read_as_it_was_written(journal):
    written = record("u1")
    assert await journal.begin(written) == ()
    found = await journal.load("u1")
    assert found == dataclasses.replace(written, seq=found.seq, writer="0.1.0")


async def test_a_record_outlives_the_process(tmp_path):
    first = open_journal(tmp_path)
    await first.begin(record("u1"))
    await first.mark("u1", State.PREPARED)
    await first.close()
    second = open_journal(tmp_path)
    assert [(found.ref.uid, found.state) for found in await second.records()] == [("u1", State.PREPARED)]
    await second.close()


async def test_the_file_is_for_its_owner_alone(tmp_path):
    directory = tmp_path / "state"
    journal = open_journal(directory)
    await journal.begin(record("u1"))
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    await journal.close()


async def test_of_two_claims_for_one_gpu_the_second_is_told_who_has_it(journal):
    await journal.begin(record("u1"))
    blockers = await journal.begin(record("u2"))
    assert blockers == (Blocker(ClaimRef("team", "u1", "u1"), State.PREPARING, "gpu-0", ""),)
    assert await journal.load("u2") is None


async def test_an_observer_neither_blocks_nor_is_blocked(journal):
    assert await journal.begin(record("watch", access=Access.OBSERVER)) == ()
    assert await journal.begin(record("u1")) == ()
    assert await journal.begin(record("watch-2", access=Access.OBSERVER)) == ()


async def test_shares_of_one_gpu_live_side_by_side_but_not_with_the_whole(journal):
    assert await journal.begin(record("u1", access=Access.SHARED, share="s1")) == ()
    assert await journal.begin(record("u2", access=Access.SHARED, share="s2")) == ()
    assert len(await journal.begin(record("u3"))) == 2
    assert len(await journal.begin(record("u4", access=Access.SHARED, share="s1"))) == 1


async def test_a_record_of_an_earlier_boot_blocks_nobody(tmp_path):
    before = open_journal(tmp_path)
    await before.begin(record("u1"))
    await before.close()
    after = open_journal(tmp_path, "boot-2")
    assert await after.begin(record("u2", boot="boot-2")) == ()
    await after.close()


async def test_two_instances_see_each_others_records_at_once(tmp_path):
    old, new = open_journal(tmp_path), open_journal(tmp_path)
    await old.begin(record("u1"))
    assert (await new.load("u1")).ref.uid == "u1"
    await new.forget("u1")
    assert await old.load("u1") is None
    await old.close()
    await new.close()


async def test_claims_that_wait_together_share_commits(journal):
    gpus = [f"GPU-{number}" for number in range(200)]
    await asyncio.gather(*(journal.begin(record(gpu, gpu=gpu)) for gpu in gpus))
    assert len(await journal.records()) == 200


async def test_one_write_that_fails_takes_no_other_of_its_commit_with_it(journal):
    bad = dataclasses.replace(
        record("bad", gpu="GPU-2"), holds=(Hold("d", "g", Access.SHARED), Hold("d", "h", Access.SHARED))
    )
    results = await asyncio.gather(
        *(journal.begin(item) for item in (record("u1"), bad, record("u2", gpu="GPU-1"))), return_exceptions=True
    )
    assert [type(result).__name__ for result in results] == ["tuple", "JournalError", "tuple"]
    assert [found.ref.uid for found in await journal.records()] == ["u1", "u2"]


async def test_a_looked_up_gpu_costs_no_scan_of_all_records(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT h.uid FROM holds h JOIN claims c ON c.uid = h.uid "
            "WHERE h.gpu = 'g' AND h.access <> 'observer' AND h.uid <> 'u' AND c.boot_id = 'b'"
        ).fetchall()
    assert all("SCAN" not in row[3] for row in plan), plan
    await journal.close()


async def test_names_of_this_boot_are_kept_and_those_of_earlier_boots_dropped(journal):
    await journal.remember_names("boot-0", [DeviceName("0000:10:00.0", "gpu-7", "GPU-a")])
    await journal.remember_names(BOOT, [DeviceName("0000:10:00.0", "gpu-0", "GPU-a")])
    await journal.remember_names(
        BOOT, [DeviceName("0000:10:00.0", "gpu-5", "GPU-a"), DeviceName("x", "gpu-1", "GPU-b")]
    )
    assert await journal.names(BOOT) == {"0000:10:00.0": "gpu-0", "x": "gpu-1"}
    assert await journal.names("boot-0") == {}


@pytest.mark.case("C19")
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda content: content[: len(content) // 2],
        lambda content: bytes(len(content)),
        lambda content: content[:50],
        lambda _: b'{"preparedClaims": {}}' * 100,
        lambda content: content[:4096] + bytes(len(content) - 4096),
    ],
    ids=["empty", "half", "all NUL", "half a header", "JSON", "pages of NUL"],
)
async def test_a_damaged_file_is_kept_aside_and_reported(tmp_path, damage):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    await journal.close()
    path = tmp_path / FILE_NAME
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    journal = open_journal(tmp_path)
    assert journal.recovered is not None
    assert journal.recovered.kept_as.read_bytes() == damaged
    assert str(journal.recovered.kept_as) in str(journal.recovered)
    assert await journal.begin(record("u2")) == ()
    await journal.close()


async def test_a_second_damaged_file_does_not_overwrite_the_first(tmp_path):
    kept = []
    for number in range(2):
        (tmp_path / FILE_NAME).write_bytes(b"garbage %d" % number)
        journal = open_journal(tmp_path)
        kept.append(journal.recovered.kept_as.read_bytes())
        await journal.close()
    assert kept == [b"garbage 0", b"garbage 1"]
    assert len(list(tmp_path.glob("*.damaged-*"))) == 2


@pytest.mark.case("C19")
def test_a_directory_in_the_place_of_the_file_ends_the_start_and_stays(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(JournalUnreadableError, match=r"journal\.db.*left untouched"):
        open_journal(tmp_path)
    assert (tmp_path / FILE_NAME).is_dir()


@pytest.mark.case("C19")
async def test_a_file_that_may_not_be_read_ends_the_start_and_stays(tmp_path, monkeypatch):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    await journal.close()
    content = (tmp_path / FILE_NAME).read_bytes()
    real_open = os.open

    def refuse(path, *rest, **options):
        if str(path).endswith(FILE_NAME):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(JournalUnreadableError, match="Permission denied"):
        open_journal(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


@pytest.mark.case("C19")
async def test_another_programs_database_is_not_touched(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(JournalUnreadableError, match="another program"):
        open_journal(tmp_path)


@pytest.mark.case("C20")
async def test_what_a_newer_minor_release_added_is_ignored_and_survives(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    await journal.close()
    change(
        tmp_path,
        "PRAGMA user_version = 1007",
        "ALTER TABLE claims ADD COLUMN tenant TEXT NOT NULL DEFAULT 'blue'",
        "CREATE TABLE future (thing TEXT) STRICT",
        "UPDATE claims SET payload = json_set(payload, '$.futureThing', json('{\"x\": 1}'), '$.steps[0].hue', 3)",
    )
    journal = open_journal(tmp_path)
    found = await journal.load("u1")
    assert found.fault == ""
    assert found.steps == record("u1").steps
    await journal.mark("u1", State.PREPARED)
    assert await journal.begin(record("u2", gpu="GPU-other")) == ()
    await journal.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1007,)
        [payload] = connection.execute("SELECT payload FROM claims WHERE uid = 'u1' AND tenant = 'blue'").fetchone()
    assert msgspec.json.decode(payload)["futureThing"] == {"x": 1}
    assert msgspec.json.decode(payload)["steps"][0]["hue"] == 3


@pytest.mark.case("C20")
async def test_a_newer_major_format_is_refused_with_its_release_and_left_untouched(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    await journal.close()
    change(tmp_path, "PRAGMA user_version = 2003", "UPDATE meta SET value = '4.5.6' WHERE key = 'release'")
    content = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(JournalTooNewError, match=r"written by >= v4\.5\.6 \(format 2\.3, this release knows 1\.x\)"):
        open_journal(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


async def test_a_step_of_a_newer_release_makes_the_record_faulty_and_no_other(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    await journal.begin(record("u2", gpu="GPU-other"))
    await journal.close()
    change(
        tmp_path,
        "UPDATE claims SET payload = json_set(payload, '$.steps[0].step', 'foldSpace', '$.writer', '9.9.9')"
        " WHERE uid = 'u1'",
    )
    journal = open_journal(tmp_path)
    first, second = await journal.records()
    assert "written by release 9.9.9 has the step 'foldSpace'" in first.fault
    assert not first.undoable
    assert second.fault == ""
    await journal.close()


@pytest.mark.parametrize("payload", ["", "{", "[]", '{"steps": 7}', "[" * 5000, '{"devices": [{"pool": null}]}'])
async def test_a_payload_that_cannot_be_read_is_a_fault_of_its_record_alone(tmp_path, payload):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    await journal.close()
    change(tmp_path, f"UPDATE claims SET payload = '{payload}', state = 'dancing'")
    journal = open_journal(tmp_path)
    found = await journal.load("u1")
    assert "cannot be read" in found.fault
    assert found.state is State.QUARANTINED
    assert found.holds == record("u1").holds
    await journal.close()


async def test_a_payload_that_is_not_text_is_a_fault_of_its_record_alone(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    await journal.close()
    change(tmp_path, "UPDATE claims SET payload = CAST(x'ff00fe' AS TEXT), namespace = CAST(x'ff' AS TEXT)")
    journal = open_journal(tmp_path)
    assert "cannot be read" in (await journal.load("u1")).fault
    await journal.close()


@pytest.mark.case("C32")
async def test_a_full_disk_is_named_and_costs_nothing_written_before(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    pages = await journal._committer.read(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await journal._committer.read(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    many = [record(f"more-{number}", gpu=f"GPU-{number}") for number in range(100)]
    results = await asyncio.gather(*(journal.begin(item) for item in many), return_exceptions=True)
    faults = [result for result in results if isinstance(result, Exception)]
    assert faults
    assert {type(result) for result in faults} == {JournalFullError}
    assert "ENOSPC" in str(faults[0])
    assert "u1" in [found.ref.uid for found in await journal.records()]
    await journal.close()


async def test_a_file_put_in_the_place_of_the_open_one_is_followed(tmp_path):
    journal = open_journal(tmp_path)
    await journal.begin(record("u1"))
    for path in tmp_path.glob(f"{FILE_NAME}*"):
        path.rename(tmp_path / f"away-{path.name}")
    other = open_journal(tmp_path)
    assert await journal.begin(record("u2")) == ()
    assert [found.ref.uid for found in await other.records()] == ["u2"]
    await journal.close()
    await other.close()


def test_a_fixture_of_release_0_1_0_is_read(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.executescript((FIXTURES / "journal-0.1.0.sql").read_text())

    async def read() -> list[Record]:
        journal = open_journal(tmp_path)
        assert journal.recovered is None
        found = await journal.records()
        assert await journal.names(BOOT) == {"0000:10:00.0": "gpu-0"}
        await journal.close()
        return found

    [prepared, preparing] = asyncio.run(read())
    assert prepared == dataclasses.replace(record("u1"), state=State.PREPARED, writer="0.1.0", seq=1)
    assert preparing.state is State.PREPARING
    assert preparing.fault == ""


def test_a_writer_killed_at_any_moment_leaves_a_whole_journal(tmp_path):
    program = (
        "import asyncio, sys, pathlib\n"
        "from tests.unit.claims.test_journal import open_journal, record\n"
        "async def main():\n"
        "    journal = open_journal(pathlib.Path(sys.argv[1]))\n"
        "    for number in range(100000):\n"
        "        await journal.begin(record(f'u{number}', gpu=f'GPU-{number}'))\n"
        "        print(number, flush=True)\n"
        "asyncio.run(main())\n"
    )
    for rounds in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / str(rounds))], stdout=subprocess.PIPE, text=True
        )
        last = -1
        for _ in range(5 + rounds * 3):
            last = int(process.stdout.readline())
        process.kill()
        last = int((process.stdout.read().split() or [last])[-1])
        process.wait()
        process.stdout.close()

        async def count(directory: Path) -> int:
            journal = open_journal(directory)
            assert journal.recovered is None
            found = await journal.records()
            await journal.close()
            return len(found)

        assert asyncio.run(count(tmp_path / str(rounds))) >= last + 1


def test_the_format_is_stated_in_the_file(tmp_path):
    journal_file.ensure(tmp_path / FILE_NAME, "0.1.0")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1003,)
        assert connection.execute("PRAGMA application_id").fetchone() == (journal_file.APPLICATION_ID,)


async def test_a_closed_journal_says_so_instead_of_hanging(tmp_path):
    journal = open_journal(tmp_path)
    await journal.close()
    with pytest.raises(JournalError, match="is closed"):
        await journal.load("u1")
