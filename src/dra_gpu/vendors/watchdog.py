"""Blocking calls with a deadline: each runs in a thread of its own, and one that hangs costs that thread alone.

A vendor library can block for ever on a dead GPU, and no Python thread can be stopped. So no pool is used, where a hung
call would eat a slot: a call gets a fresh daemon thread (about 50 microseconds), and while one on a given subject has
not returned, further calls on that subject are refused at once.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dra_gpu.vendors.base import FailureKind, VendorError

T = TypeVar("T")


class Watchdog:
    """Runs blocking calls by deadline and remembers which subjects do not answer."""

    def __init__(self) -> None:
        self._stuck: dict[str, tuple[str, float]] = {}

    @property
    def stuck(self) -> frozenset[str]:
        """Subjects with a call that has not returned."""
        return frozenset(self._stuck)

    async def call(self, subject: str, what: str, function: Callable[[], T], deadline: float) -> T:
        """Run `function` in a thread and return its result.

        Args:
            subject: what the call is about, such as a PCI address; one that hangs is refused until it returns.
            what: the name of the call, for messages.
            function: the blocking call. An exception of its own is raised here.
            deadline: seconds that the call may take.

        Raises:
            VendorError: UNRESPONSIVE, when this call or an earlier one on the subject did not return in time.
        """
        if subject in self._stuck:
            earlier, since = self._stuck[subject]
            raise VendorError(
                FailureKind.UNRESPONSIVE,
                f"{subject} does not answer: {earlier} has not returned for {time.monotonic() - since:.0f} s; "
                "reset the GPU or reboot the node",
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        started = time.monotonic()
        threading.Thread(target=_run, args=(function, loop, future), name=f"{what} {subject}", daemon=True).start()
        try:
            done, _ = await asyncio.wait({future}, timeout=deadline)
        except BaseException:
            self._abandon(subject, what, started, future)
            raise
        if done:
            return future.result()
        self._abandon(subject, what, started, future)
        raise VendorError(
            FailureKind.UNRESPONSIVE,
            f"{subject} does not answer: {what} did not return within {deadline:g} s; "
            "reset the GPU or reboot the node if it stays so",
        )

    def _abandon(self, subject: str, what: str, started: float, future: asyncio.Future[T]) -> None:
        self._stuck[subject] = (what, started)
        future.add_done_callback(lambda late: self._returned(subject, late))

    def _returned(self, subject: str, late: asyncio.Future[T]) -> None:
        self._stuck.pop(subject, None)
        if not late.cancelled():
            late.exception()


def _run(function: Callable[[], T], loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]") -> None:
    result: T
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller, not to this thread
        _deliver(loop, future, error=error)
    else:
        _deliver(loop, future, result=result)


def _deliver(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[T]",
    *,
    result: T | None = None,
    error: BaseException | None = None,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the loop has closed: nobody waits any more
