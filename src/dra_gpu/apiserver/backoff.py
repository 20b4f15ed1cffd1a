"""How long to wait before trying again."""

import random


class Backoff:
    """Exponential waits with a cap and jitter, so that a thousand nodes do not come back in the same instant.

    Args:
        first: the first wait, in seconds.
        cap: the longest wait, in seconds.
        rng: source of the jitter.
    """

    def __init__(self, first: float, cap: float, rng: random.Random | None = None) -> None:
        self._first = first
        self._cap = cap
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, protects nothing
        self._failures = 0

    @property
    def failures(self) -> int:
        """How many failures in a row there were."""
        return self._failures

    def reset(self) -> None:
        """Start over: something succeeded."""
        self._failures = 0

    def next(self, at_least: float | None = None) -> float:
        """Return the next wait in seconds: between half and all of the present step, never under `at_least`.

        A wait that the server asked for (`at_least`) gets its jitter on top: it is a lower bound.
        """
        step = min(self._cap, self._first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        wait = step * self._rng.uniform(0.5, 1.0)
        if at_least is None or wait >= at_least:
            return wait
        return at_least + self._rng.uniform(0.0, min(1.0, 0.1 * at_least))
