"""When the wall clock was set, by comparison with one that nobody sets.

Faults carry times of the wall clock, since they outlive process and boot. Were it set forward by an hour, each hold-off
would be over at once; set back, it would last an hour longer.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

SMALLEST = timedelta(seconds=5)
"""A clock that is steered runs fast or slow by far less between two looks."""


class Jumps:
    """Notices that the wall clock was set.

    Args:
        steady: seconds of a clock that nobody sets.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._last: tuple[datetime, float] | None = None

    def until(self, now: datetime) -> timedelta:
        """Return by how much the clock was set between the last call and this one, forward or back; mostly nothing."""
        steady, last = self._steady(), self._last
        self._last = now, steady
        if last is None:
            return timedelta()
        jump = now - last[0] - timedelta(seconds=steady - last[1])
        return jump if abs(jump) >= SMALLEST else timedelta()
