"""What is remembered of GPUs from one look to the next: who they were, and what must not move with every look. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dra_gpu.inventory.model import Gpu, SickGpu


@dataclass(frozen=True, slots=True)
class Failed:
    """A GPU that did not tell who it is.

    Attributes:
        index: where NVML lists it.
        reason: what NVML answered.
    """

    index: int
    reason: str


class Memory:
    """Remembers every GPU that has answered, and which of them there were at the last look."""

    def __init__(self) -> None:
        """Start without a memory."""
        self._seen: dict[str, Gpu] = {}
        self._there: frozenset[str] = frozenset()
        self._sick: frozenset[str] = frozenset()

    def completed(self, gpu: Gpu) -> Gpu:
        """Return a GPU with what it did not tell this time and cannot have lost."""
        before = self._seen.get(gpu.uuid)
        if before is None:
            return gpu
        return _with_links(before, _with_bandwidth(before, _with_partitions(before, gpu)))

    def sick(
        self, working: Sequence[Gpu], failed: Sequence[Failed], bound: Callable[[str], bool]
    ) -> tuple[SickGpu, ...]:
        """Take a look, and return those that are there and do not work, as far as it is known who they are.

        NVML may stop listing a GPU that was lost. One that the kernel driver still has is there; one that it gave up
        while it worked was taken away; one that was lost before stays lost until it comes back or the node reboots.

        Args:
            working: those that answered.
            failed: those that NVML lists and that did not.
            bound: tells whether the kernel driver has the device at a PCI address.
        """
        now = {gpu.uuid for gpu in working}
        addresses = {gpu.pci_address for gpu in working}
        missing = {uuid: self._seen[uuid] for uuid in sorted(self._there - now)}
        found = []
        for one in failed:
            last = _who(one, missing)
            if last is not None:
                del missing[last.uuid]
            where = (last.pci_address if last else None) or f"index {one.index}"
            found.append(SickGpu(where, one.reason, last.uuid if last else None, last))
        for uuid, last in missing.items():
            address = last.pci_address
            if address is not None and address not in addresses and (bound(address) or uuid in self._sick):
                reason = "NVML does not list it any more: it has fallen off the bus; reset it or reboot the node"
                found.append(SickGpu(address, reason, uuid, last))
        self._seen.update((gpu.uuid, gpu) for gpu in working)
        self._sick = frozenset(one.uuid for one in found if one.uuid is not None)
        self._there = frozenset(now) | self._sick
        return tuple(found)


def _who(failed: Failed, missing: dict[str, Gpu]) -> Gpu | None:
    """Return the GPU that was at this index, if it is missing; else the only one that is."""
    same = next((gpu for gpu in missing.values() if gpu.index == failed.index), None)
    return same or (next(iter(missing.values())) if len(missing) == 1 else None)


def _with_bandwidth(before: Gpu, gpu: Gpu) -> Gpu:
    """Return a GPU with the most NVLink bandwidth it has told since the start.

    Links come up late, and a link that goes down now and then is a matter of health: what shares were given of the
    bandwidth does not move with it.
    """
    most = max((one for one in (before.nvlink_bandwidth, gpu.nvlink_bandwidth) if one is not None), default=None)
    return replace(gpu, nvlink_bandwidth=most)


def _with_partitions(before: Gpu, gpu: Gpu) -> Gpu:
    """Return a GPU that did not tell its partitions this time with those of the last: it has not lost them.

    What it offers is the same in every mode; what it has is not.
    """
    if gpu.mig_profiles or not gpu.mig_capable:
        return gpu
    instances = before.mig_instances if before.mig_enabled == gpu.mig_enabled else ()
    return replace(gpu, mig_profiles=before.mig_profiles, mig_instances=instances)


def _with_links(before: Gpu, gpu: Gpu) -> Gpu:
    """Return a GPU that is in MIG mode for a while with the links that it had before.

    Partitions have no NVLink (MIG User Guide r580), whether the links rest or not. Where they lead to matters to who
    wants the GPU as a whole, and must not change with every claim of a partition.
    """
    if not (gpu.mig_live and gpu.mig_enabled):
        return gpu
    if sum(link.active for link in gpu.nvlinks) < sum(link.active for link in before.nvlinks):
        gpu = replace(gpu, nvlinks=before.nvlinks)
    if before.fabric_registered and not gpu.fabric_registered:
        gpu = replace(gpu, fabric=before.fabric, fabric_registered=True)
    return gpu
