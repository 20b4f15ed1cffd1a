"""The journal's tables of shares: how much each takes of its GPU or partition, and which cgroups are limited for it.

They stand beside the records so that "what is promised of a GPU never exceeds it" is one question in the transaction
that writes a record. The column `gpu` names what a share is a part of (`HeldShare.part_of`). They follow the records by
a trigger, also when a release that does not know them deletes one.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_gpu.api import quantity
from dra_gpu.claims.shares import WHOLE_PERCENT, HeldShare, MemoryBudget, MemoryCgroup

_SHARES = """
CREATE TABLE IF NOT EXISTS shares (
  uid TEXT NOT NULL,
  device TEXT NOT NULL,
  share_id TEXT NOT NULL,
  gpu TEXT NOT NULL,
  strategy TEXT NOT NULL,
  percent INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  PRIMARY KEY (uid, device, share_id)
) STRICT, WITHOUT ROWID
"""
_CGROUPS = """
CREATE TABLE IF NOT EXISTS memory_cgroups (
  uid TEXT NOT NULL,
  gpu TEXT NOT NULL,
  cgroup TEXT NOT NULL,
  memory_bytes INTEGER NOT NULL,
  PRIMARY KEY (uid, gpu, cgroup)
) STRICT, WITHOUT ROWID
"""
_TRIGGER = """
CREATE TRIGGER IF NOT EXISTS shares_follow_claims AFTER DELETE ON claims BEGIN
  DELETE FROM shares WHERE uid = OLD.uid;
  DELETE FROM memory_cgroups WHERE uid = OLD.uid;
END
"""
SCHEMA = (
    _SHARES,
    "CREATE INDEX IF NOT EXISTS shares_by_gpu ON shares (gpu)",
    _CGROUPS,
    "CREATE INDEX IF NOT EXISTS memory_cgroups_by_place ON memory_cgroups (gpu, cgroup)",
    _TRIGGER,
)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A GPU or partition that has not enough left for a share.

    Attributes:
        text: what is wanted and what is free.
        holders: UIDs of the claims that have the rest.
    """

    text: str
    holders: tuple[str, ...]


def insert(connection: sqlite3.Connection, uid: str, shares: Iterable[HeldShare]) -> None:
    """Write what a claim takes of its GPUs."""
    connection.executemany(
        "INSERT INTO shares (uid, device, share_id, gpu, strategy, percent, memory_bytes) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(uid, it.device, it.share_id, it.part_of, it.manner, it.percent, it.memory_bytes) for it in shares],
    )


def insert_cgroups(connection: sqlite3.Connection, uid: str, cgroups: Iterable[MemoryCgroup]) -> None:
    """Write which cgroups are limited for a claim; those that are known stay."""
    connection.executemany(
        "INSERT INTO memory_cgroups (uid, gpu, cgroup, memory_bytes) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(uid, it.gpu, it.cgroup, it.limit) for it in cgroups],
    )


def cgroups(connection: sqlite3.Connection, uid: str) -> tuple[MemoryCgroup, ...]:
    """Return the cgroups that are limited for a claim."""
    query = "SELECT gpu, cgroup, memory_bytes FROM memory_cgroups WHERE uid = ?"
    return tuple(MemoryCgroup(*row) for row in connection.execute(query, (uid,)))


def budgets(connection: sqlite3.Connection, uid: str, gpu: str, boot_id: str) -> tuple[MemoryBudget, ...]:
    """Return the limits that a claim's cgroups should have on a GPU, with what other claims of this boot add."""
    query = (
        "SELECT m.cgroup, m.memory_bytes, COALESCE((SELECT SUM(o.memory_bytes) FROM memory_cgroups o "
        "JOIN claims c ON c.uid = o.uid "
        "WHERE o.gpu = m.gpu AND o.cgroup = m.cgroup AND o.uid <> m.uid AND c.boot_id = ?), 0) "
        "FROM memory_cgroups m WHERE m.uid = ? AND m.gpu = ?"
    )
    return tuple(MemoryBudget(*row) for row in connection.execute(query, (boot_id, uid, gpu)))


def shortage(connection: sqlite3.Connection, uid: str, shares: Sequence[HeldShare], boot_id: str) -> Shortage | None:
    """Return what cannot take all of a claim's shares beside those of other claims of this boot, the first such.

    A claim that was taken over from a lost journal has a share of which only the claim itself tells how much it is:
    until then nothing new is promised beside it. A claim that has its share already is in nobody's way by being known.
    """
    unknown = _unknown(connection, uid, shares, boot_id)
    if unknown:
        text = "the journal was lost, and how much others have of it is not known until the API server tells"
        return Shortage(text, unknown)
    for whole in dict.fromkeys(share.part_of for share in shares):
        wanted = [share for share in shares if share.part_of == whole]
        others = "FROM shares s JOIN claims c ON c.uid = s.uid WHERE s.gpu = ? AND s.uid <> ? AND c.boot_id = ?"
        sums = f"SELECT COALESCE(SUM(s.percent), 0), COALESCE(SUM(s.memory_bytes), 0), MIN(s.strategy) {others}"
        text = _shortage(wanted, *connection.execute(sums, (whole, uid, boot_id)).fetchone())
        if text:
            rows = connection.execute(f"SELECT DISTINCT s.uid {others}", (whole, uid, boot_id)).fetchall()
            return Shortage(text, tuple(row[0] for row in rows))
    return None


def _unknown(connection: sqlite3.Connection, uid: str, shares: Sequence[HeldShare], boot_id: str) -> tuple[str, ...]:
    """Return other claims that hold shares of the same devices, of a size that nobody knows."""
    mine = "SELECT 1 FROM holds WHERE uid = ? AND device = ? AND share_id = ?"
    others = (
        "SELECT DISTINCT h.uid FROM holds h JOIN claims c ON c.uid = h.uid "
        "WHERE h.device = ? AND h.uid <> ? AND h.access = 'shared' AND c.boot_id = ? AND NOT EXISTS "
        "(SELECT 1 FROM shares s WHERE s.uid = h.uid AND s.device = h.device AND s.share_id = h.share_id)"
    )
    found: dict[str, None] = {}
    for share in shares:
        if connection.execute(mine, (uid, share.device, share.share_id)).fetchone() is None:
            found |= dict.fromkeys(row[0] for row in connection.execute(others, (share.device, uid, boot_id)))
    return tuple(found)


def _shortage(wanted: Sequence[HeldShare], used_percent: int, used_memory: int, strategy: str | None) -> str:
    """Say what is missing; empty when nothing is. All shares of a GPU have one strategy, so that any of them tells."""
    first = wanted[0]
    if strategy is not None and strategy != first.manner:
        return f"it is shared by {strategy} now, and {first.manner} cannot be mixed with that"
    percent, memory = sum(share.percent for share in wanted), sum(share.memory_bytes for share in wanted)
    if percent > WHOLE_PERCENT - used_percent:
        return f"{percent} % of its SMs are wanted, {max(0, WHOLE_PERCENT - used_percent)} % are free"
    if first.gpu_memory_bytes is not None and memory > first.gpu_memory_bytes - used_memory:
        free = quantity.format_bytes(max(0, first.gpu_memory_bytes - used_memory))
        return f"{quantity.format_bytes(memory)} of its memory are wanted, {free} are free"
    return ""
