"""The journal: which claims this node serves, written before anything is done for them.

One SQLite file (WAL, synchronous=FULL) that two instances of the plugin may use at once. Each call reads what is on the
disk at that moment; a method that writes returns when the disk has it. The blocking work runs on a thread of the
journal's own (`committer`), where writes that wait together share a commit.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_gpu.claims import journal_file, share_tables
from dra_gpu.claims.committer import Committer
from dra_gpu.claims.journal_errors import CorruptJournal
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.partitions import PartitionHolder
from dra_gpu.claims.record import (
    PARTITIONED,
    Access,
    Blocker,
    DeviceName,
    Hold,
    Record,
    State,
    decode_payload,
    encode_payload,
)
from dra_gpu.claims.resize import table as resize_table
from dra_gpu.claims.resize.overlay import Overlay
from dra_gpu.claims.resize.state import Kept, Resize, ShareKey
from dra_gpu.claims.share_tables import Shortage
from dra_gpu.claims.shares import HeldShare, MemoryBudget, MemoryCgroup
from dra_gpu.claims.steps import SetTimeSlice
from dra_gpu.claims.time_slices import TimeSliceHolder

FILE_NAME = "journal.db"
_COLUMNS = "seq, uid, namespace, name, boot_id, state, note, CAST(payload AS BLOB)"
_AT_ONCE = 500  # parameters of one query; SQLite takes 32766


class Journal:
    """The records of this node's claims.

    Use `Journal.open`. It belongs to the event loop that calls it; `close` it before the loop ends.

    Attributes:
        recovered: the damaged file that was set aside at opening; its claims have to be adopted.
    """

    def __init__(
        self, path: Path, committer: Committer, boot_id: str, release: str, recovered: CorruptJournal | None
    ) -> None:
        self._path = path
        self._committer = committer
        self._boot_id = boot_id
        self._release = release
        self.recovered = recovered

    @classmethod
    def open(cls, directory: Path, *, boot_id: str, release: str) -> "Journal":
        """Open or make the journal in the state directory. Blocks for some milliseconds; meant for the start.

        Args:
            directory: the state directory, on a local disk (WAL needs shared memory).
            boot_id: identity of this boot; holds of another boot block nobody.
            release: version of this program, noted in what it writes.

        Raises:
            JournalUnreadableError: it is there and cannot be read; nothing was changed.
            JournalTooNewError: a newer release wrote it; nothing was changed.
            JournalFullError: there is no room to make it.
        """
        path = directory / FILE_NAME
        recovered = journal_file.ensure(path, release)
        return cls(path, Committer(path), boot_id, release, recovered)

    @property
    def boot_id(self) -> str:
        """The boot for which it was opened."""
        return self._boot_id

    async def close(self) -> None:
        """Finish what waits and close the file."""
        await self._committer.close()

    async def check(self) -> None:
        """Find out whether it can be written: takes the file's lock as a write does, and changes nothing.

        Raises:
            JournalError: it cannot be written now.
        """
        await self._committer.write(lambda connection: connection.execute("UPDATE claims SET note = note WHERE 0"))

    async def size(self) -> int:
        """Return how many bytes its files have, those that SQLite keeps beside it included."""
        return await self._committer.read(lambda _connection: journal_file.size(self._path))

    async def load(self, uid: str) -> Record | None:
        """Return a claim's record."""
        return await self._committer.read(lambda connection: _load(connection, uid))

    async def known(self, uids: Sequence[str]) -> frozenset[str]:
        """Return those of the claims that have a record."""
        return await self._committer.read(lambda connection: _known(connection, uids))

    async def records(self) -> list[Record]:
        """Return every record, oldest first."""
        return await self._committer.read(_records)

    async def blockers(self, uid: str, holds: Sequence[Hold], shares: Sequence[HeldShare] = ()) -> tuple[Blocker, ...]:
        """Return the claims of this boot that hold what the claim wants, or so much of it that the rest is too little.

        Args:
            uid: the claim.
            holds: what it wants to hold.
            shares: which of it are parts of GPUs.
        """
        return await self._committer.read(lambda connection: self._blockers(connection, uid, holds, shares))

    async def partition_holders(self, gpu: str = "") -> tuple[PartitionHolder, ...]:
        """Return who holds partitions in this boot, of one GPU or of all."""
        return await self._committer.read(lambda connection: _partition_holders(connection, gpu, self._boot_id))

    async def time_slice_holders(self, gpu: str) -> tuple[TimeSliceHolder, ...]:
        """Return the claims of this boot that have set the time slice of a GPU which several claims have at once."""
        return await self._committer.read(lambda connection: _time_slice_holders(connection, gpu, self._boot_id))

    async def memory_budgets(self, uid: str, gpu: str) -> tuple[MemoryBudget, ...]:
        """Return the memory limits that the cgroups of a claim's pods should have on a GPU."""
        return await self._committer.read(lambda connection: share_tables.budgets(connection, uid, gpu, self._boot_id))

    async def add_cgroups(self, uid: str, cgroups: Sequence[MemoryCgroup]) -> None:
        """Add cgroups of pods that have joined a claim; nothing if the claim has no record any more."""
        await self._committer.write(lambda connection: _add_cgroups(connection, uid, cgroups))

    async def begin(self, record: Record) -> tuple[Blocker, ...]:
        """Write a record, in the place of an earlier one of the same claim, unless somebody holds what it needs.

        Both in one transaction: two claims can never hold the same device. Returns who is in the way; empty when the
        record is written.
        """
        return await self._committer.write(lambda connection: self._begin(connection, record))

    async def mark(self, uid: str, state: State, note: str = "") -> None:
        """Change a record's state; everything else in it stays as it was written."""
        await self._committer.write(lambda connection: _mark(connection, uid, state, note))

    async def forget(self, uid: str) -> None:
        """Delete a record; one that is not there is as good."""
        await self._committer.write(lambda connection: _forget(connection, uid))

    async def resizes(self) -> tuple[Resize, ...]:
        """Return all resizes of shares, also those of claims that are not prepared."""
        return tuple(one for one in await self.kept() if isinstance(one, Resize))

    async def resizes_of(self, uid: str) -> tuple[Resize, ...]:
        """Return the resizes of a claim's shares."""
        return tuple(one for one in await self.kept_of(uid) if isinstance(one, Resize))

    async def kept(self) -> tuple[Kept, ...]:
        """Return what is kept of resizes, and of other settings of what is had whole."""
        return await self._committer.read(resize_table.every)

    async def kept_of(self, uid: str) -> tuple[Kept, ...]:
        """Return the same of one claim."""
        return await self._committer.read(lambda connection: resize_table.of_claim(connection, uid))

    async def keep_resize(self, resize: Kept) -> None:
        """Write how far a resize has come, and what it makes of the claim's shares."""
        await self._committer.write(
            lambda connection: resize_table.keep(connection, resize, _planned(connection, resize.uid))
        )

    async def raise_limit(self, resize: Resize) -> tuple[Blocker, ...]:
        """Write a resize whose limit is higher than before, unless other claims of this boot leave no room for it.

        Both in one transaction. Returns who has the rest; empty when it is written.
        """
        return await self._committer.write(lambda connection: self._raise_limit(connection, resize))

    async def drop_resize(self, key: ShareKey) -> None:
        """Forget a resize; one that is not there is as good."""
        await self._committer.write(
            lambda connection: resize_table.drop(connection, key, _planned(connection, key.uid))
        )

    async def names(self, boot_id: str) -> dict[str, str]:
        """Return the names given to slots in that boot (see `inventory.naming`)."""
        query = "SELECT pci_address, name FROM device_names WHERE boot_id = ?"
        return await self._committer.read(lambda connection: dict(connection.execute(query, (boot_id,)).fetchall()))

    async def remember_names(self, boot_id: str, names: Iterable[DeviceName]) -> None:
        """Keep new names of this boot and drop those of earlier ones. A slot that has a name keeps it."""
        rows = [(boot_id, name.slot, name.name, name.uuid) for name in names]
        await self._committer.write(lambda connection: _remember(connection, boot_id, rows))

    def _begin(self, connection: sqlite3.Connection, record: Record) -> tuple[Blocker, ...]:
        ref = record.ref
        planned = record.planned or record.shares
        blockers = self._blockers(connection, ref.uid, record.holds, planned)
        if blockers:
            return blockers
        _forget(connection, ref.uid)
        connection.execute(
            "INSERT INTO claims (uid, namespace, name, boot_id, state, note, payload) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                ref.uid,
                ref.namespace,
                ref.name,
                record.boot_id,
                record.state.value,
                record.note,
                encode_payload(record, self._release).decode(),
            ),
        )
        connection.executemany(
            "INSERT INTO holds (uid, device, share_id, gpu, access, units) VALUES (?, ?, ?, ?, ?, ?)",
            [(ref.uid, it.device, it.share_id, it.gpu, it.access.value, it.units) for it in record.holds],
        )
        if planned:
            share_tables.insert(connection, ref.uid, planned)
            share_tables.insert_cgroups(connection, ref.uid, record.cgroups)
            if resize_table.of_claim(connection, ref.uid):
                resize_table.mirror(connection, ref.uid, planned)
        return ()

    def _raise_limit(self, connection: sqlite3.Connection, resize: Resize) -> tuple[Blocker, ...]:
        planned = _planned(connection, resize.uid)
        shortage = resize_table.shortage(connection, resize, planned, self._boot_id)
        if shortage is not None:
            return _holders(connection, shortage, resize.device)
        resize_table.keep(connection, resize, planned)
        return ()

    def _blockers(
        self, connection: sqlite3.Connection, uid: str, holds: Sequence[Hold], shares: Sequence[HeldShare]
    ) -> tuple[Blocker, ...]:
        query = (
            "SELECT c.uid, c.namespace, c.name, c.state, c.note, h.device, h.gpu, h.access, h.share_id, h.units "
            "FROM holds h JOIN claims c ON c.uid = h.uid "
            "WHERE h.gpu = ? AND h.access <> 'observer' AND h.uid <> ? AND c.boot_id = ? "
            "AND (h.access <> 'shared' OR h.device <> ? OR h.share_id = ? OR ?)"
        )
        found: dict[str, Blocker] = {}
        for hold in holds:
            if hold.access is Access.OBSERVER:
                continue
            # Dozens of other shares of a device are in nobody's way: they are not even looked at.
            alone = hold.access is not Access.SHARED
            values = (hold.gpu, uid, self._boot_id, hold.device, hold.share_id, alone)
            for row in connection.execute(query, values):
                held = Hold(row[5], row[6], _access(row[7]), row[8], row[9])
                if hold.excludes(held):
                    found[row[0]] = Blocker(ClaimRef(row[1], row[2], row[0]), _state(row[3]), held.device, row[4])
        if found or not shares:
            return tuple(found.values())
        wanted = Overlay(shares, resize_table.of_claim(connection, uid)).shares
        shortage = share_tables.shortage(connection, uid, wanted, self._boot_id)
        return () if shortage is None else _holders(connection, shortage, shares[0].device)


def _holders(connection: sqlite3.Connection, shortage: Shortage, device: str) -> tuple[Blocker, ...]:
    query = "SELECT uid, namespace, name, state, note FROM claims WHERE uid = ?"
    rows = [connection.execute(query, (holder,)).fetchone() for holder in shortage.holders]
    return tuple(
        Blocker(ClaimRef(row[1], row[2], row[0]), _state(row[3]), device, row[4], shortage.text) for row in rows
    )


def _planned(connection: sqlite3.Connection, uid: str) -> tuple[HeldShare, ...]:
    """Return a claim's shares as they were planned; none without a record."""
    row = connection.execute("SELECT CAST(payload AS BLOB) FROM claims WHERE uid = ?", (uid,)).fetchone()
    return () if row is None else decode_payload(row[0]).shares


def _add_cgroups(connection: sqlite3.Connection, uid: str, cgroups: Sequence[MemoryCgroup]) -> None:
    if connection.execute("SELECT 1 FROM claims WHERE uid = ?", (uid,)).fetchone() is not None:
        share_tables.insert_cgroups(connection, uid, cgroups)


def _load(connection: sqlite3.Connection, uid: str) -> Record | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM claims WHERE uid = ?", (uid,)).fetchone()  # noqa: S608 - constant
    if row is None:
        return None
    query = "SELECT uid, device, gpu, access, share_id, units FROM holds WHERE uid = ?"
    return _record(connection, row, [_hold(hold) for hold in connection.execute(query, (uid,))])


def _records(connection: sqlite3.Connection) -> list[Record]:
    connection.execute("BEGIN")  # both queries see one moment
    try:
        holds: Mapping[str, list[Hold]] = defaultdict(list)
        for row in connection.execute("SELECT uid, device, gpu, access, share_id, units FROM holds"):
            holds[row[0]].append(_hold(row))
        rows = connection.execute(f"SELECT {_COLUMNS} FROM claims ORDER BY seq").fetchall()  # noqa: S608 - constant
        return [_record(connection, row, holds.get(row[1], [])) for row in rows]
    finally:
        connection.execute("COMMIT")


def _partition_holders(connection: sqlite3.Connection, gpu: str, boot_id: str) -> tuple[PartitionHolder, ...]:
    query = (
        "SELECT DISTINCT c.uid FROM claims c JOIN holds h ON h.uid = c.uid "
        "WHERE c.boot_id = ? AND h.access IN (?, ?) AND (h.gpu = ? OR ?)"
    )
    kinds = (access.value for access in PARTITIONED)
    uids = [row[0] for row in connection.execute(query, (boot_id, *kinds, gpu, not gpu))]
    records = (_load(connection, uid) for uid in uids)
    return tuple(
        holder for record in records if record is not None for holder in record.partitions if gpu in ("", holder.gpu)
    )


def _time_slice_holders(connection: sqlite3.Connection, gpu: str, boot_id: str) -> tuple[TimeSliceHolder, ...]:
    query = (
        "SELECT DISTINCT c.uid FROM claims c JOIN holds h ON h.uid = c.uid "
        "WHERE c.boot_id = ? AND h.gpu = ? AND h.access = 'shared' AND instr(c.payload, ?)"
    )
    tag = str(SetTimeSlice.__struct_config__.tag)
    records = (_load(connection, row[0]) for row in connection.execute(query, (boot_id, gpu, tag)).fetchall())
    return tuple(
        TimeSliceHolder(record.ref.uid, step.former)
        for record in records
        if record is not None
        for step in record.steps
        if isinstance(step, SetTimeSlice) and step.gpu == gpu and step.claim_uid
    )


def _known(connection: sqlite3.Connection, uids: Sequence[str]) -> frozenset[str]:
    found: set[str] = set()
    for start in range(0, len(uids), _AT_ONCE):
        some = uids[start : start + _AT_ONCE]
        query = f"SELECT uid FROM claims WHERE uid IN ({', '.join('?' * len(some))})"  # noqa: S608 - only placeholders
        found.update(row[0] for row in connection.execute(query, some))
    return frozenset(found)


def _mark(connection: sqlite3.Connection, uid: str, state: State, note: str) -> None:
    connection.execute("UPDATE claims SET state = ?, note = ? WHERE uid = ?", (state.value, note, uid))


def _forget(connection: sqlite3.Connection, uid: str) -> None:
    connection.execute("DELETE FROM holds WHERE uid = ?", (uid,))
    connection.execute("DELETE FROM claims WHERE uid = ?", (uid,))


def _remember(connection: sqlite3.Connection, boot_id: str, rows: list[tuple[str, str, str, str]]) -> None:
    connection.execute("DELETE FROM device_names WHERE boot_id <> ?", (boot_id,))
    connection.executemany(
        "INSERT INTO device_names (boot_id, pci_address, name, uuid) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", rows
    )


def _record(connection: sqlite3.Connection, row: tuple[Any, ...], holds: list[Hold]) -> Record:
    seq, uid, namespace, name, boot_id, state, note, payload = row
    content = decode_payload(payload)
    planned = content.shares
    overlay = Overlay(planned, resize_table.of_claim(connection, uid))
    return Record(
        ref=ClaimRef(namespace, name, uid),
        boot_id=boot_id,
        state=_state(state),
        devices=content.payload.devices,
        steps=overlay.steps(content.steps),
        holds=tuple(holds),
        shares=overlay.shares,
        planned=planned,
        resizes=overlay.kept,
        cgroups=share_tables.cgroups(connection, uid) if planned else (),
        lock_keys=content.payload.lock_keys,
        adopted=content.payload.adopted,
        writer=content.payload.writer,
        fault=content.fault,
        undoable=content.undoable,
        note=note,
        seq=seq,
    )


def _hold(row: tuple[Any, ...]) -> Hold:
    return Hold(row[1], row[2], _access(row[3]), row[4], row[5])


def _access(text: str) -> Access:
    """Return the access; one that a newer release invented excludes everybody, which is safe."""
    try:
        return Access(text)
    except ValueError:
        return Access.EXCLUSIVE


def _state(text: str) -> State:
    """Return the state; one that a newer release invented is nothing to work with."""
    try:
        return State(text)
    except ValueError:
        return State.QUARANTINED
