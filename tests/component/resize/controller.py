"""One replica of the controller in virtual time, as far as resizes go: the leader's loops of controller/app.py."""

from collections.abc import Callable

from dra_gpu.controller.resizes.resizer import Resizer
from dra_gpu.controller.resizes.starting import Rules
from tests.component.resize.memory_api import MemoryApi
from tests.component.resize.mortality import DeathError, Fate


class ControllerProcess:
    """The replica that leads, from its start to its death.

    Args:
        make_api: makes a client of the API server with boundaries.
        beyond: claims may have more than they were allocated.
    """

    def __init__(self, make_api: Callable[[Callable[[], None]], MemoryApi], *, beyond: bool) -> None:
        self.fate = Fate()
        api = make_api(self.fate.pass_boundary)
        rules = Rules(frozenset({"gpu.nvidia.com"}), beyond=beyond)
        self.resizer = Resizer(api, rules, "image", lambda: not self.fate.dead)

    async def run(self) -> None:
        """Lead until it dies or is cancelled."""
        try:
            await self.resizer.run()
        except* DeathError:
            self.fate.dead = True

    def close(self) -> None:
        """Have nothing that the kernel would have to free."""
