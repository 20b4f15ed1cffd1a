"""Shares of this node's GPUs and partitions on the MPS service.

The service knows a device by its UUID: that of the GPU, or that of the partition.
"""

from dra_gpu.claims.shares import MpsShare
from dra_gpu.mps.service import MpsError, MpsErrorKind, MpsService, Share
from dra_gpu.vendors.base import ShareEdits


class NodeShares:
    """The shares.

    Args:
        mps: the MPS service; None where sharing by MPS is not enabled.
    """

    def __init__(self, mps: MpsService | None) -> None:
        self._mps = mps
        self._made: dict[tuple[str, str], Share] = {}

    @property
    def served(self) -> bool:
        """Whether there is an MPS service to ask."""
        return self._mps is not None

    async def have(self, device: str, share: MpsShare) -> None:
        """Have a share.

        Raises:
            MpsError: the service refused, or its daemon limits clients in another way than was planned.
        """
        made = await self._service(device).share(device, share.name, share.limits)
        if made.protocol is not share.protocol:  # the step has failed, and undoing it gives the share up
            raise MpsError(
                MpsErrorKind.UNSUPPORTED,
                f"the MPS daemon of GPU {device} works with protocol `{made.protocol.value}`, but its driver offers "
                f"`{share.protocol.value}`: install `dra-gpu mps` and the node plugin in the same release, and restart "
                "the daemon once its GPU is free",
            )
        self._made[device, share.name] = made

    async def there(self, device: str, share: MpsShare) -> bool:
        """Tell whether a share is there with its limits.

        Raises:
            MpsError: the service did not answer.
        """
        for known in await self._service(device).clients(device):
            for one in known.shares:
                if known.daemon.gpu == device and one.name == share.name:
                    self._made[device, share.name] = one
                    return one.limits in (share.limits, share.former)
        return False

    async def resize(self, device: str, share: MpsShare) -> None:
        """Give a share other limits; one that is not there is made.

        Raises:
            MpsError: BUSY while clients are attached that the limits of before are for; or as for `have`.
        """
        self._made.pop((device, share.name), None)
        await self.have(device, share)

    async def clients(self, device: str, name: str) -> tuple[int, ...]:
        """Return the processes that are attached to a share.

        Raises:
            MpsError: the service, or the daemon, did not answer.
        """
        for known in await self._service(device).clients(device):
            if known.daemon.gpu == device and known.problem:
                raise MpsError(MpsErrorKind.TRANSIENT, f"GPU {device}, MPS: {known.problem}")
            for one in known.shares:
                if known.daemon.gpu == device and one.name == name:
                    return one.clients
        return ()

    async def give_up(self, device: str, name: str) -> None:
        """Give a share up; one that is not there is as good.

        Raises:
            MpsError: it may still be there.
        """
        self._made.pop((device, name), None)
        if self._mps is not None:  # a service that was taken away has ended its daemons itself
            await self._mps.stop(device, name)

    async def all(self) -> tuple[tuple[str, str], ...]:
        """Return all shares by device and name; none where there is no service.

        Raises:
            MpsError: the service did not answer.
        """
        if self._mps is None:
            return ()
        return tuple((known.daemon.gpu, one.name) for known in await self._mps.clients() for one in known.shares)

    async def edits(self, device: str, share: MpsShare, partition: str | None = None) -> ShareEdits:
        """Return what containers need to know of a share, which is made where it is not there.

        Args:
            device: UUID of the GPU or partition.
            share: its name and limits.
            partition: UUID of the partition, where it is one.

        Raises:
            MpsError: it is not to be had.
        """
        if (device, share.name) not in self._made and not await self.there(device, share):
            await self.have(device, share)
        known = self._made[device, share.name]
        limits = share.limits
        return ShareEdits(
            known.pipe_directory,
            known.shm_directory,
            share.protocol,
            limits.compute_percent,
            limits.memory_bytes,
            limits.low_priority,
            partition,
        )

    def _service(self, device: str) -> MpsService:
        if self._mps is None:
            raise MpsError(
                MpsErrorKind.UNAVAILABLE,
                f"GPU {device} is shared by MPS, but this node plugin runs without the MPS service (`dra-gpu mps`): "
                "enable it again until no claim uses it",
            )
        return self._mps
