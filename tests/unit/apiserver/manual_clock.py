"""A clock that a test moves by hand."""


class ManualClock:
    """Starts at 0 s; sleeping moves it on at once."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
