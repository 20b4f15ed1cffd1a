"""The journal's table of resizes, and what of them stands in the tables of shares.

A row outlives its claim's record. While there is one, the tables of shares say what is in force of it, so that "what is
promised of a GPU never exceeds it" stays one question in one transaction.
"""

import sqlite3
from collections.abc import Sequence

from dra_gpu.claims import share_tables
from dra_gpu.claims.resize.overlay import Overlay
from dra_gpu.claims.resize.state import Kept, Resize, ShareKey, decode, encode
from dra_gpu.claims.share_tables import Shortage
from dra_gpu.claims.shares import HeldShare

SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS resizes (
  uid TEXT NOT NULL,
  device TEXT NOT NULL,
  share_id TEXT NOT NULL,
  payload TEXT NOT NULL,
  PRIMARY KEY (uid, device, share_id)
) STRICT, WITHOUT ROWID
""",
)


def every(connection: sqlite3.Connection) -> tuple[Kept, ...]:
    """Return everything that this release understands."""
    return _decoded(connection.execute("SELECT payload FROM resizes").fetchall())


def of_claim(connection: sqlite3.Connection, uid: str) -> tuple[Kept, ...]:
    """Return what is kept of a claim's devices."""
    return _decoded(connection.execute("SELECT payload FROM resizes WHERE uid = ?", (uid,)).fetchall())


def keep(connection: sqlite3.Connection, resize: Kept, planned: Sequence[HeldShare]) -> None:
    """Write a resize, and what it makes of the claim's shares and their cgroups.

    Args:
        connection: in a transaction.
        resize: what is to be known.
        planned: the shares of the claim's record as they were planned; none where there is no record.
    """
    connection.execute(
        "INSERT INTO resizes (uid, device, share_id, payload) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (uid, device, share_id) DO UPDATE SET payload = excluded.payload",
        (resize.uid, resize.device, resize.key.share_id, encode(resize)),
    )
    if planned:
        mirror(connection, resize.uid, planned)


def mirror(connection: sqlite3.Connection, uid: str, planned: Sequence[HeldShare]) -> None:
    """Bring the tables of shares in line with a claim's resizes."""
    overlay = Overlay(planned, of_claim(connection, uid))
    connection.executemany(
        "UPDATE shares SET percent = ?, memory_bytes = ? WHERE uid = ? AND device = ? AND share_id = ?",
        [(share.percent, share.memory_bytes, uid, share.device, share.share_id) for share in overlay.shares],
    )
    connection.executemany(
        "UPDATE memory_cgroups SET memory_bytes = ? WHERE uid = ? AND gpu = ?",
        [(overlay.enforced_memory(gpu), uid, gpu) for gpu in {share.gpu for share in planned}],
    )


def shortage(
    connection: sqlite3.Connection, resize: Resize, planned: Sequence[HeldShare], boot_id: str
) -> Shortage | None:
    """Return what leaves no room for the limit of a resize beside the shares of other claims."""
    others = [one for one in of_claim(connection, resize.uid) if one.key != resize.key]
    return share_tables.shortage(connection, resize.uid, Overlay(planned, (*others, resize)).shares, boot_id)


def drop(connection: sqlite3.Connection, key: ShareKey, planned: Sequence[HeldShare]) -> None:
    """Forget a resize: the share is again as it was planned."""
    connection.execute(
        "DELETE FROM resizes WHERE uid = ? AND device = ? AND share_id = ?", (key.uid, key.device, key.share_id)
    )
    if planned:
        mirror(connection, key.uid, planned)


def _decoded(rows: Sequence[tuple[str]]) -> tuple[Kept, ...]:
    found = (decode(row[0]) for row in rows)
    return tuple(one for one in found if one is not None)
