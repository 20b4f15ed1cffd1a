"""A bound on requests per second."""

from dra_gpu.apiserver.clock import Clock


class RateLimit:
    """A token bucket: `burst` at once, then `per_second`.

    Waiting callers are served in order; each reserves its slot at once, so a burst of callers spreads out.
    """

    def __init__(self, clock: Clock, per_second: float, burst: int) -> None:
        self._clock = clock
        self._interval = 1.0 / per_second
        self._allowance = (burst - 1) * self._interval
        self._next_free = clock.now() - self._allowance

    async def acquire(self) -> None:
        """Return when the next request may be sent."""
        now = self._clock.now()
        self._next_free = max(self._next_free, now - self._allowance)
        wait = self._next_free - now
        self._next_free += self._interval
        if wait > 0:
            await self._clock.sleep(wait)
