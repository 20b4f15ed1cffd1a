"""Which partition an error belongs to: from the ids of a MIG instance to where it lies."""

import time
from collections.abc import Callable, Iterator

from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement

KnownInstance = Callable[[str, MigPlacement], MigInstance | None]
STALE_SECONDS = 150.0
"""A look at all GPUs that still shows an instance which was destroyed is older than this at most."""


class Instances:
    """The instances that exist now, as far as is known without asking a GPU.

    What claims have made is known at once, what an administrator made from the last look at all GPUs.

    Args:
        inventory: returns the last look.
        known: returns the instance of a partition that claims have made or seen.
        clock: monotonic time.
    """

    def __init__(
        self,
        inventory: Callable[[], Inventory],
        known: KnownInstance,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inventory = inventory
        self._known = known
        self._clock = clock
        self._destroyed: dict[tuple[str, MigPlacement], float] = {}

    def destroyed(self, gpu: str, placement: MigPlacement) -> None:
        """Take note of an instance that was destroyed: the last look may show it yet."""
        now = self._clock()
        self._destroyed = {key: until for key, until in self._destroyed.items() if until > now}
        self._destroyed[gpu, placement] = now + STALE_SECONDS

    def find(self, uuid: str, gpu_instance: int, compute_instance: int | None) -> MigPlacement | None:
        """Return where the instance of these ids lies; None where there is none.

        Args:
            uuid: of the GPU.
            gpu_instance: id of the GPU instance.
            compute_instance: id of the compute instance; None for whichever.
        """
        gpu = self._inventory().known_gpu(uuid)
        if gpu is None:
            return None
        for found in self._existing(gpu):
            same = compute_instance is None or found.compute_instance in (None, compute_instance)
            if found.gpu_instance == gpu_instance and same:
                return found.placement
        return None

    def _existing(self, gpu: Gpu) -> Iterator[MigInstance]:
        for profile in gpu.mig_profiles:
            for placement in profile.placements:
                known = self._known(gpu.uuid, placement)
                if known is not None:
                    yield known
        now = self._clock()
        for seen in gpu.mig_instances:
            if self._destroyed.get((gpu.uuid, seen.placement), now) <= now:
                yield seen
