"""Progress lines with the seconds since the command started, so that a hang is seen and can be placed."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Prints one line per step to a stream, each with the seconds since this object was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """Print `text` as a line of its own, at once."""
        print(f"[{self.elapsed():6.1f}s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print `text` before the block and the block's own seconds after it; a failure is named as such."""
        self.say(f"{text} ...")
        began = time.monotonic()
        try:
            yield
        except BaseException:
            self.say(f"{text}: FAILED after {time.monotonic() - began:.1f}s")
            raise
        self.say(f"{text}: done in {time.monotonic() - began:.1f}s")
