"""Partitions of this node's GPUs as the vendor makes them, and what is known of them without asking a GPU.

What this process has made or seen is remembered, so that preparing a claim again asks no GPU. It is looked at again
when somebody doubts it: reconciliation, from time to time.
"""

from collections.abc import Callable

from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement
from dra_gpu.vendors.base import FailureKind, Vendor, VendorError


class NodePartitions:
    """The partitions.

    Args:
        vendor: makes them.
        gpu: returns a working GPU by its UUID; raises VendorError where there is none.
        on_destroyed: told each partition that is there no more: the next one at its place is another one.
    """

    def __init__(
        self,
        vendor: Vendor,
        gpu: Callable[[str], Gpu],
        on_destroyed: Callable[[str, MigPlacement], None] = lambda _gpu, _placement: None,
    ) -> None:
        self._vendor = vendor
        self._gpu = gpu
        self._on_destroyed = on_destroyed
        self._instances: dict[tuple[str, MigPlacement], MigInstance] = {}
        self._modes: dict[str, bool] = {}
        self._doubted: set[str] = set()

    def in_mig_mode(self, gpu: Gpu) -> bool:
        """Tell whether a GPU is known to be in MIG mode.

        A look at all GPUs may be older than the last change. To think it is in the mode costs a look; to miss it
        would give a container a GPU that it cannot use.
        """
        return bool(gpu.mig_enabled) or self._modes.get(gpu.uuid, False)

    def known(self, gpu: str, placement: MigPlacement) -> MigInstance | None:
        """Return the instance of a partition as it was last seen; None where that was never."""
        return self._instances.get((gpu, placement))

    def doubt(self, gpu: str) -> None:
        """Ask the GPU when its partitions or its mode are next wanted."""
        self._doubted.add(gpu)
        self._instances = {key: value for key, value in self._instances.items() if key[0] != gpu}

    async def mode(self, gpu: str) -> bool:
        """Tell whether a GPU is in MIG mode now.

        Raises:
            VendorError: the GPU is gone, or it cannot be read.
        """
        return self._noted(gpu, await self._vendor.mig_mode(self._gpu(gpu)))

    async def has_mode(self, gpu: str, *, enabled: bool) -> bool:
        """Tell whether a GPU is in that mode, from what is known if it is not doubted.

        Raises:
            VendorError: as for `mode`.
        """
        known = None if gpu in self._doubted else self._modes.get(gpu)
        return (await self.mode(gpu) if known is None else known) is enabled

    async def set_mode(self, gpu: str, *, enabled: bool) -> None:
        """Put a GPU into MIG mode, or out of it.

        One that is known to be in it is not asked: had somebody changed that, the partition would not be made, and
        the GPU doubted. One that is known to be out of it is asked all the same: a container would not tell.

        Raises:
            VendorError: the GPU is gone, or cannot; see `Vendor.set_mig_mode`.
        """
        if enabled:
            if self._modes.get(gpu) and gpu not in self._doubted:
                return
            self._modes[gpu] = True  # it may be, whatever becomes of the call
            self._doubted.add(gpu)
        await self._vendor.set_mig_mode(self._gpu(gpu), enabled=enabled)
        self._noted(gpu, enabled)

    async def lies(self, gpu: str, placement: MigPlacement) -> bool:
        """Tell whether anything lies at that place now.

        Raises:
            VendorError: the GPU is gone, or it cannot be read.
        """
        return await self._look(gpu, placement) is not None

    async def whole(self, gpu: str, placement: MigPlacement) -> MigInstance | None:
        """Return the instance at that place if a container can be given it; what is known is not asked for.

        Raises:
            VendorError: the GPU is gone, or it cannot be read.
        """
        known = self._instances.get((gpu, placement))
        found = known or await self._look(gpu, placement)
        return found if found is not None and found.uuid is not None else None

    async def instance(self, gpu: str, placement: MigPlacement) -> MigInstance:
        """Return the instance of a partition that must be there.

        Raises:
            VendorError: it is not; or as for `whole`.
        """
        found = await self.whole(gpu, placement)
        if found is None:
            raise VendorError(
                FailureKind.REFUSED,
                f"GPU {gpu} has no partition of {placement.size} memory units from {placement.start}: somebody has "
                "destroyed it; it is made again within minutes if no process is in the way",
            )
        return found

    async def make(self, gpu: str, placement: MigPlacement) -> None:
        """Have a partition.

        Raises:
            VendorError: the GPU is gone, or cannot; see `Vendor.create_mig_instance`.
        """
        self._instances.pop((gpu, placement), None)
        try:
            self._instances[gpu, placement] = await self._vendor.create_mig_instance(self._gpu(gpu), placement)
        except VendorError:
            self._doubted.add(gpu)
            raise

    async def destroy(self, gpu: str, placement: MigPlacement) -> None:
        """Destroy a partition; one that is not there is as good.

        Raises:
            VendorError: the GPU is gone, or the partition in use; see `Vendor.destroy_mig_instance`.
        """
        self._instances.pop((gpu, placement), None)
        await self._vendor.destroy_mig_instance(self._gpu(gpu), placement)
        self._on_destroyed(gpu, placement)

    async def _look(self, gpu: str, placement: MigPlacement) -> MigInstance | None:
        found = await self._vendor.mig_instance(self._gpu(gpu), placement)
        if found is None or found.uuid is None:
            self._instances.pop((gpu, placement), None)
        else:
            self._instances[gpu, placement] = found
        return found

    def _noted(self, gpu: str, enabled: bool) -> bool:  # noqa: FBT001 - the mode is what is noted
        self._modes[gpu] = enabled
        self._doubted.discard(gpu)
        return enabled
