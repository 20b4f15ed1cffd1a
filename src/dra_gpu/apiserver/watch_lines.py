"""Lines of a watch: bytes in as the network cuts them, whole JSON lines out. Pure."""

from collections.abc import Iterator


class LineTooLongInWatchError(ValueError):
    """A line grew over the limit before its end came."""


class LineSplitter:
    """Split a byte stream at newlines, without re-scanning what was already seen.

    Args:
        limit: longest line in bytes. An object in etcd is at most 1.5 MB, so a longer line is a fault and not an
        object.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that `data` completes; empty lines are dropped.

        Raises:
            LineTooLongInWatchError: the present line is over the limit.
        """
        *ends, rest = data.split(b"\n")
        for end in ends:
            line = b"".join((*self._pieces, end))
            self._pieces.clear()
            self._size = 0
            if len(line) > self._limit:
                raise LineTooLongInWatchError(f"a line of {len(line)} bytes; the limit is {self._limit}")
            if line.strip():
                yield line
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise LineTooLongInWatchError(f"a line of more than {self._limit} bytes")
