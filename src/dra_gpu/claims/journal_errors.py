"""Faults of the journal, told apart by what somebody has to do about them."""

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

_PRIMARY_CODE = 0xFF  # SQLite's extended codes carry the primary one in their lowest byte
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BY_FULL_DISK = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


class JournalError(Exception):
    """The journal did not do what was asked; the message names the file, the reason and the remedy."""


class JournalFullError(JournalError):
    """The disk is full. Everything written before is intact."""


class JournalUnreadableError(JournalError):
    """The file is there but cannot be opened; it may hold good data, so that nothing is done without it."""


class JournalTooNewError(JournalError):
    """A newer release wrote the file in a format that this release would damage."""


@dataclass(frozen=True, slots=True)
class CorruptJournal:
    """A damaged journal was set aside, and an empty one took its place.

    Attributes:
        kept_as: where the damaged file is now.
        reason: what is wrong with it.
    """

    kept_as: Path
    reason: str

    def __str__(self) -> str:
        return (
            f"the journal was damaged ({self.reason}) and is kept as {self.kept_as}; a new one is filled from the CDI "
            "files on this node and the API server. Nothing needs to be done; report it if no power loss explains it"
        )


def is_corruption(error: sqlite3.Error) -> bool:
    """Tell whether the content of the file is damaged, as against a file that cannot be reached."""
    return _code(error) in _CORRUPT


def translate(error: sqlite3.Error, path: Path) -> JournalError:
    """Return the typed error for one of SQLite's."""
    match _code(error):
        # Where SQLite cannot make its shared memory on a full disk, it speaks of an I/O error.
        case code if code == sqlite3.SQLITE_FULL or (code in _BY_FULL_DISK and _is_full(path)):
            return JournalFullError(
                f"no space left on device (ENOSPC) for the journal {path}: free space on that file system; "
                "the kubelet tries again by itself"
            )
        case sqlite3.SQLITE_BUSY:
            return JournalError(f"the journal {path} is kept busy by another instance: the kubelet tries again")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_IOERR:
            return JournalUnreadableError(
                f"the journal {path} cannot be used ({error}): check that it is a file, its owner and mode, and the "
                "disk under it"
            )
        case _:
            return JournalError(f"the journal {path}: {error}; restart the node plugin, which checks the file")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", -1) & _PRIMARY_CODE


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free == 0
    except OSError:
        return False
