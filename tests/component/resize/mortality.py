"""A process that can end between any two calls to what is outside of it, and does nothing more once it has."""

import inspect


class DeathError(BaseException):
    """The process ends here. No `except Exception` of the driver's sees it."""


class Fate:
    """When a process ends, counted in calls; dead, it passes no boundary any more, whatever cleans up in it."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.dead = False

    def pass_boundary(self) -> None:
        if self.dead:
            raise DeathError
        if self.left is None:
            return
        if self.left == 0:
            self.dead = True
            raise DeathError
        self.left -= 1


class Mortal:
    """Passes every asynchronous call on, with a boundary on either side."""

    def __init__(self, target, fate: Fate) -> None:
        self._target = target
        self._fate = fate

    def __getattr__(self, name):
        value = getattr(self._target, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*arguments, **options):
            self._fate.pass_boundary()
            answer = await value(*arguments, **options)
            self._fate.pass_boundary()
            return answer

        return call
