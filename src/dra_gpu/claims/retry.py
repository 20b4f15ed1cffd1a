"""Repeating what may succeed in a moment, with a pause that grows, until a moment on the monotonic clock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_FIRST_PAUSE_S = 0.1  # a driver that restarts or an API server that sheds load needs about that
_LONGEST_PAUSE_S = 2.0  # a Prepare has at most 40 s: the last attempt should not be long before its end


async def retrying(attempt: Callable[[], Awaitable[T]], transient: Callable[[Exception], bool], until: float) -> T:
    """Return the first success; raise the last error once it is not transient or the next pause would end too late.

    Args:
        attempt: what to do; it ends by itself.
        transient: whether an error may be gone at the next attempt.
        until: no attempt starts after this moment of the loop's clock.
    """
    loop = asyncio.get_running_loop()
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except Exception as error:
            if not transient(error) or loop.time() + pause > until:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
