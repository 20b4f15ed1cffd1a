"""The journal's file: its schema and format version, how it is made, checked and opened.

A file is either good, or set aside when its content is damaged, or left untouched with an error that ends the process
when it cannot be read or is newer than this release. Whatever is not damaged is never replaced. Everything here blocks.

The format is `MAJOR.minor` in `user_version` (MAJOR x 1000 + minor). A newer minor only adds what older releases may
ignore: columns with defaults, tables, fields of the payload. A newer MAJOR is refused.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from dra_gpu.claims import share_tables
from dra_gpu.claims.journal_errors import (
    CorruptJournal,
    JournalError,
    JournalTooNewError,
    JournalUnreadableError,
    is_corruption,
    translate,
)
from dra_gpu.claims.locks import try_flock
from dra_gpu.claims.resize import table as resize_table

APPLICATION_ID = 0x44524147  # "DRAG"
FORMAT = (1, 3)  # 1.1: the tables of shares; 1.2: the memory units of partitions; 1.3: resizes
_MINORS = 1000
_VERSION = FORMAT[0] * _MINORS + FORMAT[1]
_BUSY_MS = 5_000  # a transaction of the other instance takes milliseconds; five seconds leave a Prepare its deadline
_OPEN_LOCK_S = 10.0  # making and checking a file takes well under a second
_OPEN_LOCK_POLL_S = 0.02
_HEADER = 100  # Source: SQLite file format 1.3: magic at 0, user_version at 60, application_id at 68, big-endian
_MAGIC = b"SQLite format 3\0"

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE claims (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  uid TEXT NOT NULL UNIQUE,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  state TEXT NOT NULL,
  note TEXT NOT NULL DEFAULT '',
  payload TEXT NOT NULL
) STRICT;
CREATE TABLE holds (
  uid TEXT NOT NULL,
  device TEXT NOT NULL,
  share_id TEXT NOT NULL,
  gpu TEXT NOT NULL,
  access TEXT NOT NULL,
  units INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (uid, device, share_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_by_gpu ON holds (gpu) WHERE access <> 'observer';
CREATE TABLE device_names (
  boot_id TEXT NOT NULL,
  pci_address TEXT NOT NULL,
  name TEXT NOT NULL,
  uuid TEXT NOT NULL,
  PRIMARY KEY (boot_id, pci_address)
) STRICT, WITHOUT ROWID;
"""


def ensure(path: Path, release: str) -> CorruptJournal | None:
    """Make sure that a good journal stands at `path`; returns what was set aside for it, if anything.

    Args:
        path: the file; its directory is made with mode 0700, the file has 0600.
        release: version of this program, noted in a new file.

    Raises:
        JournalUnreadableError: something is there that cannot be read, or is no journal of this driver.
        JournalTooNewError: a newer MAJOR format.
        JournalFullError: there is no room for a new one.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opening(path):
            damage = _inspect(path)
            if damage is None:
                path.chmod(0o600)
                _upgrade(path)
                return None
            aside = _set_aside(path, damage) if damage else None
            _create(path, release)
            return aside
    except OSError as error:
        raise _from_os(error, path) from error


def connect(path: Path) -> sqlite3.Connection:
    """Open the journal for the calling thread: WAL, a sync at each commit, explicit transactions.

    Raises:
        JournalError: as for `ensure`.
    """
    connection = None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None)
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise translate(error, path) from error
    return connection


def size(path: Path) -> int:
    """Return the bytes of the file and of those that SQLite keeps beside it; one that is not there has none."""
    total = 0
    for suffix in ("", "-wal", "-shm"):
        try:
            total += Path(f"{path}{suffix}").stat().st_size
        except OSError:
            continue  # they come and go with the connections
    return total


def put_back(connection: sqlite3.Connection, path: Path) -> None:
    """Write what a connection still sees of a deleted journal to its place again; nothing of it is lost.

    A file that another instance has put there meanwhile stays.

    Raises:
        JournalError: it could not be written; the connection still has everything.
        OSError: neither could the directory.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _opening(path):
        if path.exists():
            return
        for suffix in ("-wal", "-shm"):  # of the deleted file: SQLite would take them for parts of the new one
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        try:
            connection.execute("VACUUM INTO ?", (str(fresh),))
        except sqlite3.Error as error:
            fresh.unlink(missing_ok=True)
            raise translate(error, path) from error
        fresh.rename(path)
        _sync_directory(path.parent)


def _inspect(path: Path) -> str | None:
    """Return None for a good file, else what is wrong with it; an empty text when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        header = file.read(_HEADER)
    if len(header) < _HEADER:
        return f"it has {len(header)} bytes"
    if not header.startswith(_MAGIC):
        return "it does not start like a journal"
    _refuse_foreign(path, header)
    try:
        with closing(_read_only(path, immutable=False)) as connection:
            _refuse_newer(path, connection.execute("PRAGMA user_version").fetchone()[0])
            problem: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            connection.execute("SELECT seq, uid, namespace, name, boot_id, state, note FROM claims LIMIT 1")
    except sqlite3.Error as error:
        if is_corruption(error) or "no such" in str(error):
            return str(error)
        raise translate(error, path) from error
    return None if problem == "ok" else problem


def _refuse_foreign(path: Path, header: bytes) -> None:
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise JournalUnreadableError(
            f"{path} is a database of another program: move it away, or give the driver another state directory"
        )
    _refuse_newer(path, int.from_bytes(header[60:64], "big"))


def _refuse_newer(path: Path, version: int) -> None:
    major, minor = divmod(version, _MINORS)
    if major <= FORMAT[0]:
        return
    try:
        with closing(_read_only(path, immutable=True)) as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = 'release'").fetchone()
            writer = f"written by >= v{row[0]}" if row else "written by a newer release"
    except sqlite3.Error:
        writer = "written by a newer release"
    raise JournalTooNewError(
        f"the journal {path} was {writer} (format {major}.{minor}, this release knows {FORMAT[0]}.x) and is left "
        "untouched: install that release or a newer one"
    )


def _read_only(path: Path, *, immutable: bool) -> sqlite3.Connection:
    options = "mode=ro&immutable=1" if immutable else "mode=ro"
    return sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True, timeout=_BUSY_MS / 1000)


def _create(path: Path, release: str) -> None:
    """Make a complete file under another name and rename it: a crash leaves no half-made journal."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            for statement in (*SCHEMA.split(";"), *share_tables.SCHEMA, *resize_table.SCHEMA):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('release', ?)", (release,))
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        fresh.unlink(missing_ok=True)
        raise translate(error, path) from error
    fresh.rename(path)
    _sync_directory(path.parent)


def _upgrade(path: Path) -> None:
    """Add what this release's format has beyond the file's, in one transaction; a newer minor is left as it is."""
    try:
        with closing(connect(path)) as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] >= _VERSION:
                return
            connection.execute("BEGIN IMMEDIATE")
            for statement in (*share_tables.SCHEMA, *resize_table.SCHEMA):
                connection.execute(statement)
            if "units" not in {row[1] for row in connection.execute("PRAGMA table_info(holds)")}:
                connection.execute("ALTER TABLE holds ADD COLUMN units INTEGER NOT NULL DEFAULT 0")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _set_aside(path: Path, reason: str) -> CorruptJournal:
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(kept)
    for suffix in ("-wal", "-shm"):  # SQLite would take them for parts of the new file
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(kept.with_name(kept.name + suffix))
    return CorruptJournal(kept, reason)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Keep other instances from checking and making the file meanwhile."""
    lock = path.with_name(f"{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _OPEN_LOCK_S
        while not try_flock(descriptor):
            if time.monotonic() >= deadline:
                raise JournalError(
                    f"another instance has kept {lock} for {_OPEN_LOCK_S:.0f} s while opening the journal: look for a "
                    "node plugin that hangs"
                )
            time.sleep(_OPEN_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _from_os(error: OSError, path: Path) -> JournalError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = sqlite3.OperationalError(str(error))
        full.sqlite_errorcode = sqlite3.SQLITE_FULL
        return translate(full, path)
    return JournalUnreadableError(
        f"the journal {path} cannot be read ({error.strerror or error}) and is left untouched, since its data may be "
        "good: correct what stands there, its owner or mode, or move it away"
    )
