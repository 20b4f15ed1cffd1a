"""Who has which partition of a GPU, as far as other claims need to know. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gpu.inventory.model import MigPlacement


@dataclass(frozen=True, slots=True)
class PartitionHolder:
    """A claim of this boot that holds a partition, whole or a share of it.

    Attributes:
        uid: of the claim.
        gpu: UUID of the GPU.
        units: memory units of the partition, as a bit mask.
        placement: the partition; None where the claim's record cannot be read.
        foreign: the partition is not this driver's to destroy: it was there before, or nobody can tell.
        former_mode: MIG mode of the GPU before the first claim changed it; None where the claim does not know.
    """

    uid: str
    gpu: str
    units: int
    placement: MigPlacement | None = None
    foreign: bool = True
    former_mode: bool | None = None


def made_by_us(holders: Iterable[PartitionHolder]) -> frozenset[tuple[str, MigPlacement]]:
    """Return, by GPU UUID, the partitions that this driver has made for claims, or is about to make."""
    return frozenset(
        (holder.gpu, holder.placement) for holder in holders if holder.placement is not None and not holder.foreign
    )
