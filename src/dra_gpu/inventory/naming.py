"""Names of GPUs: given to a PCI address once per boot, at first sight, and kept.

A device name must never move to another GPU while it may be allocated: counters are looked up by it. Minor numbers do
move (a driver reload, a GPU lost and found), so the first name a slot got stands until the next boot.
"""

from collections.abc import Iterable, Mapping

from dra_gpu.inventory.model import Gpu


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
