"""Names of GPUs: given to a PCI address once per boot, at first sight, and kept; and of their partitions.

A device name must never move to another GPU while it may be allocated: counters are looked up by it. Minor numbers do
move (a driver reload, a GPU lost and found), so the first name a slot got stands until the next boot.

A partition is named by its profile and its place, as NVIDIA's driver does it, whether or not it exists at the moment:
`gpu-0-mig-1g10gb-19-2`. The text of the profile is for people (`+` and dots do not fit into a DNS label, so that `+me`
and `-me` read the same); what tells profiles apart is the id behind it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_gpu.inventory.model import Gpu, MigPlacement, MigProfile

# Leaves room in the 63 characters of a DNS label for the GPU's name, two numbers and what follows.
_MAX_PROFILE_TEXT = 24
_PARTITION = re.compile(
    r"(?P<gpu>[a-z0-9-]+?)-mig-(?P<profile>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)-(?P<id>\d+)-(?P<start>\d+)(?P<shared>-shared)?",
    re.ASCII,
)


def slot(gpu: Gpu) -> str:
    """Return what a name is bound to: the PCI address, or the UUID on a platform without PCI."""
    return gpu.pci_address or gpu.uuid.lower()


def assign(known: Mapping[str, str], gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the name of every slot: those known already as they are, `gpu-<minor>` for the new ones.

    A new slot whose minor number is taken by an earlier one gets the lowest free number.

    Args:
        known: names by slot, as kept since the boot.
        gpus: the GPUs seen now.
    """
    names = dict(known)
    taken = set(names.values())
    for gpu in sorted(gpus, key=lambda gpu: (gpu.index if gpu.minor is None else gpu.minor, slot(gpu))):
        if slot(gpu) in names:
            continue
        number = gpu.index if gpu.minor is None else gpu.minor
        if f"gpu-{number}" in taken:
            number = next(free for free in range(len(taken) + 1) if f"gpu-{free}" not in taken)
        names[slot(gpu)] = f"gpu-{number}"
        taken.add(f"gpu-{number}")
    return names


@dataclass(frozen=True, slots=True)
class PartitionName:
    """What the name of a partition says.

    Attributes:
        gpu: name of its GPU.
        profile: text of its profile, for people.
        profile_id: id by which the driver creates the profile.
        start: first memory unit.
        shared: it is the view of its fractions.
    """

    gpu: str
    profile: str
    profile_id: int
    start: int
    shared: bool = False

    def __str__(self) -> str:
        """Return the name itself."""
        return f"{self.gpu}-mig-{self.profile}-{self.profile_id}-{self.start}{'-shared' if self.shared else ''}"


def partition(gpu_name: str, profile: MigProfile, placement: MigPlacement, *, shared: bool = False) -> str:
    """Return the name of a partition, existing or possible, or of the view of its fractions."""
    text = re.sub(r"[^a-z0-9]+", "-", profile.name.lower().replace(".", ""))[:_MAX_PROFILE_TEXT].strip("-")
    return str(PartitionName(gpu_name, text or "x", profile.profile_id, placement.start, shared))


def parse_partition(name: str) -> PartitionName | None:
    """Return what the name of a partition says; None for a name that is none."""
    match = _PARTITION.fullmatch(name)
    if match is None:
        return None
    return PartitionName(match["gpu"], match["profile"], int(match["id"]), int(match["start"]), bool(match["shared"]))
