"""Waiting for what a cluster does by itself. Nothing here measures: a busy machine is no fault of the driver."""

from collections.abc import Callable

from lab import api

#: Seconds within which everything happens that nobody delays on purpose, also on a machine that has more to do; less
#: than the 60 to 90 s after which the kubelet repeats a call that failed: a Prepare that fails is not overlooked.
PATIENCE = 50.0


def wait_until(what: str, check: Callable[[], bool], seconds: float = PATIENCE, *, every: float = 0.1) -> None:
    """Poll `check` until it holds, for `seconds` or longer: no wait is shorter than `PATIENCE`.

    Raises:
        TimeoutError: it does not hold; the text names `what`.
    """
    api.wait_until(what, check, max(seconds, PATIENCE), every=every)
