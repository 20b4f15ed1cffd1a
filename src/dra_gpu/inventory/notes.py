"""What keeps a GPU from being offered in full, said to a person: as an Event of the node, and in the log."""

from collections.abc import Iterator
from dataclasses import dataclass

from dra_gpu.inventory import partitions
from dra_gpu.inventory.model import Gpu
from dra_gpu.inventory.partitions import Offer


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person may have to act on.

    Attributes:
        reason: in the form of an Event's reason.
        text: which GPU, what is the matter, and the remedy.
    """

    reason: str
    text: str


def about(gpu: Gpu, name: str, offer: Offer) -> Iterator[Note]:
    """Yield what is to be said about a GPU; the same facts give the same words."""
    where = f"{name} ({gpu.uuid})"
    if partitions.mode_pending(gpu):
        change = "on" if gpu.mig_pending else "off"
        yield Note(
            "MigModePending",
            f"{where} has MIG mode {change} pending and needs a reset or reboot; until then it takes no new claims",
        )
    unusable = [found for found in offer.foreign if found.placement not in {one.placement for one in offer.partitions}]
    if unusable:
        ids = ", ".join(str(found.gpu_instance) for found in unusable)
        yield Note(
            "MigInstanceNotOffered",
            f"{where} has GPU instances ({ids}) that are not offered: each needs exactly one compute instance that "
            "spans it, and the view `mig` must be published",
        )
    if offer.foreign:
        yield Note(
            "MigInstancesInPlace",
            f"{where} has {len(offer.foreign)} GPU instances that this driver did not make: it is not offered as a "
            "whole or in shares; destroy them (nvidia-smi mig -dci, -dgi) to change that",
        )
    if not offer.whole and not offer.partitions and not unusable:
        yield Note(
            "GpuNotOffered",
            f"{where} is in MIG mode, and no partition of it is published: publish the view `mig` (and profiles that "
            "it has), or switch the mode off",
        )
