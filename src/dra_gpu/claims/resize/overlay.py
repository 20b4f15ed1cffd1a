"""What a record says once its shares have been resized: the journal keeps what was planned, and what is in force. Pure.

Shares have what is accounted for (L); steps, cgroups and files have what is to be enforced (the goal).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dra_gpu.claims.resize import settings
from dra_gpu.claims.resize.state import Kept, Resize, Settings
from dra_gpu.claims.shares import MEBI, HeldShare, MpsShare, share_name
from dra_gpu.claims.steps import ShareOnMps, Step, WriteCdiSpec
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.inventory.sharing import Mechanism
from dra_gpu.mps.service import Limits


@dataclass(frozen=True, slots=True)
class Overlay:
    """What became of one claim, over what was planned.

    Attributes:
        planned: its shares as they were planned.
        kept: what the journal keeps of resizes.
    """

    planned: Sequence[HeldShare]
    kept: Sequence[Kept]

    @property
    def shares(self) -> tuple[HeldShare, ...]:
        """The shares as they are accounted for."""
        return tuple(_sized(share, self._of(share)) for share in self.planned)

    def steps(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        """Return steps that enforce the goals."""
        found = tuple(steps)
        for one in self.kept:
            if isinstance(one, Settings):
                found = settings.over(found, one)
        by_name = {share_name(share.share_id): share for share in self.planned if self._of(share) is not None}
        return tuple(self._step(step, by_name) for step in found) if by_name else found

    def enforced_memory(self, gpu: str) -> int:
        """Return the bytes to which all shares of the claim on a GPU are limited together."""
        return sum(self._enforced(share) for share in self.planned if share.gpu == gpu)

    def _step(self, step: Step, by_name: Mapping[str, HeldShare]) -> Step:
        if isinstance(step, ShareOnMps) and step.share.name in by_name:
            return replace(step, share=self._mps(step.share, by_name[step.share.name]))
        if isinstance(step, WriteCdiSpec):
            devices = tuple(
                one
                if one.share is None or one.share.name not in by_name
                else replace(one, share=self._mps(one.share, by_name[one.share.name]))
                for one in step.devices
            )
            return replace(step, devices=devices)
        return step

    def _mps(self, mps: MpsShare, share: HeldShare) -> MpsShare:
        resize = self._of(share)
        assert resize is not None
        former = mps.limits if resize.mps is None else resize.mps
        return replace(mps, limits=mps_limits(share, mps.limits, resize.goal), former=former)

    def _enforced(self, share: HeldShare) -> int:
        resize = self._of(share)
        return share.memory_bytes if resize is None else resize.goal.memory // MEBI * MEBI

    def _of(self, share: HeldShare) -> Resize | None:
        if share.counted is not None:
            return None
        key = (share.device, share.share_id)
        resizes = (one for one in self.kept if isinstance(one, Resize))
        return next((one for one in resizes if (one.device, one.share_id) == key), None)


def mps_limits(share: HeldShare, planned: Limits, goal: Amounts) -> Limits:
    """Return the limits on MPS for a goal.

    Where the driver limits the memory of the pod, MPS' limit for each process is only for those that it does not know
    yet: it never falls, so that memory can change while clients are attached.
    """
    memory = goal.memory // MEBI * MEBI
    if share.memory is Mechanism.CGROUP and planned.memory_bytes is not None:
        memory = max(memory, planned.memory_bytes)
    return replace(planned, compute_percent=goal.compute_percent, memory_bytes=memory)


def _sized(share: HeldShare, resize: Resize | None) -> HeldShare:
    if resize is None:
        return share
    limit = resize.limit
    return replace(
        share,
        percent=limit.compute_percent,
        memory_bytes=limit.memory // MEBI * MEBI,
        clients=None if share.clients is None else limit.clients,
        nvlink_bandwidth=None if share.nvlink_bandwidth is None else limit.nvlink_bandwidth,
    )
