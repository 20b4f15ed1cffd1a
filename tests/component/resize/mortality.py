"""A process that can end between any two calls to what is outside of it, and does nothing more once it has."""


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
