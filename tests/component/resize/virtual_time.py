"""An event loop whose time passes only when nobody has anything to do: hours of a protocol in seconds.

Nothing of it depends on how fast the machine is: what a thread would do is done at once, and whoever waits for a time
gets it as soon as all others wait too.
"""

import asyncio
import selectors
from typing import Any


class NothingToWaitForError(RuntimeError):
    """Every task waits for another one, and none for a time: without an event from outside it is the end."""


class _Idle(selectors.DefaultSelector):
    """Waits for nothing: lets the loop's time pass instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise NothingToWaitForError("all tasks wait for each other")
        if not ready and timeout and timeout > 0:
            self.loop.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `asyncio.Runner(loop_factory=VirtualLoop)`."""

    def __init__(self) -> None:
        idle = _Idle()
        idle.loop = self
        self.passed = 0.0
        super().__init__(idle)

    def time(self) -> float:
        return self.passed

    def run_in_executor(self, _executor, func, *args):
        """Do it at once; the outcome is there when anybody asks."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        return future
