"""Which requests to reset a GPU have been begun on this node: a small file, so that none is carried out twice.

A request stays in the cluster until its asker takes it away, also over a restart of this process. A reset that was
begun and not ended is not begun again by itself: whoever asked is told, and asks again.
"""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

FILE_NAME = "resets.json"
_KEPT = 64  # the last requests; an asker waits for minutes, and nobody resets so many GPUs meanwhile


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that was begun; one without a reason was not ended.

    Attributes:
        reason: of the Event that answered it.
        note: of that Event.
    """

    reason: str = ""
    note: str = ""


class ResetLog:
    """The file in the state directory. Blocks for some milliseconds a call. One instance of the plugin writes it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def find(self, request: str) -> Entry | None:
        """Return what became of a request; None when it was never begun."""
        return self._read().get(request)

    def note(self, request: str, entry: Entry) -> None:
        """Keep what became of a request, durably.

        Raises:
            OSError: it could not be written; whatever was kept before is intact.
        """
        entries = {**self._read(), request: entry}
        kept = dict(list(entries.items())[-_KEPT:])
        descriptor, name = tempfile.mkstemp(prefix=f"{FILE_NAME}.", dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(kept))
                file.flush()
                os.fsync(file.fileno())
            Path(name).rename(self._path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise

    def _read(self) -> Mapping[str, Entry]:
        """Return all entries; a file that is not there or not readable says nothing."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Entry])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}
