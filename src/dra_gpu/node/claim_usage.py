"""Assigns what is used of GPUs to the claims that hold them. Pure.

A process belongs to the claim that has its GPU or its partition alone; else to the share on MPS that it is attached to;
else to the one claim on that GPU which its pod uses. What the driver charges a pod's cgroup is taken before a sum over
processes, unless several claims have to do with that cgroup. What cannot be told is said with its reason: a figure that
is missing must not look like one of nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dra_gpu.claims.record import Access, Hold, Record
from dra_gpu.claims.steps import WriteCdiSpec
from dra_gpu.inventory.model import MigInstance, MigPlacement, View
from dra_gpu.vendors.usage import GpuUsage, UsingProcess

ClaimOnGpu = tuple[str, str, str]
"""Namespace and name of a claim, and the name of the GPU."""


@dataclass(frozen=True, slots=True)
class Known:
    """By what a process is assigned to a claim.

    Attributes:
        pods: by claim UID, the UIDs of the pods that use it, as far as they are known.
        pod_of: returns the pod of a process.
        shares: by name of a share on MPS, the processes attached to it.
        instance_of: returns the GPU instance behind a partition.
    """

    pods: Mapping[str, Collection[str]] = field(default_factory=dict)
    pod_of: Callable[[int], str | None] = lambda _pid: None
    shares: Mapping[str, Collection[int]] = field(default_factory=dict)
    instance_of: Callable[[str, MigPlacement], MigInstance | None] = lambda _gpu, _placement: None


@dataclass(slots=True)
class ClaimUsage:
    """What claims use.

    Attributes:
        memory: bytes, and `cgroup` or `process`.
        sm: share of the time.
        unavailable: what cannot be told (`memory` or `sm`), and why.
        unattributed: bytes by name of the GPU.
    """

    memory: dict[ClaimOnGpu, tuple[float, str]] = field(default_factory=dict)
    sm: dict[ClaimOnGpu, float] = field(default_factory=dict)
    unavailable: set[tuple[str, str, str, str, str]] = field(default_factory=set)
    unattributed: dict[str, float] = field(default_factory=dict)


def usage_of(
    records: Sequence[Record], looks: Mapping[str, GpuUsage | None], names: Mapping[str, str], known: Known
) -> ClaimUsage:
    """Return what each claim uses of each of its GPUs.

    Args:
        records: prepared claims of this boot.
        looks: by UUID what was seen of a GPU; None for one that did not tell.
        names: of the GPUs, by UUID.
        known: by what a process is assigned.
    """
    found = ClaimUsage()
    for uuid, look in looks.items():
        here = [record for record in records if any(_holds(record, uuid))]
        name = names.get(uuid, uuid)
        if look is not None:
            _OneGpu(uuid, name, look, here, known).add_to(found)
            continue
        for record in here:
            found.unavailable |= {(*_key(record, name), what, "gpu") for what in ("memory", "sm")}
    return found


@dataclass(frozen=True, slots=True)
class _OneGpu:
    """A GPU that was looked at, and the claims that hold anything of it."""

    uuid: str
    name: str
    look: GpuUsage
    records: Sequence[Record]
    known: Known

    def add_to(self, found: ClaimUsage) -> None:
        owners = {process.pid: self._owner(process) for process in self.look.processes}
        nobodys = [process for process in self.look.processes if owners[process.pid] is None]
        found.unattributed[self.name] = float(sum(process.memory_bytes or 0 for process in nobodys))
        for record in self.records:
            mine = [process for process in self.look.processes if owners[process.pid] is record]
            key = _key(record, self.name)
            self._add_memory(found, record, key, mine)
            reason = self.look.no_samples.value if self.look.no_samples is not None else self._unassignable(record)
            if reason:
                found.unavailable.add((*key, "sm", reason))
            else:
                found.sm[key] = min(1.0, sum(self.look.sm.get(process.pid, 0.0) for process in mine))

    def _add_memory(self, found: ClaimUsage, record: Record, key: ClaimOnGpu, mine: Sequence[UsingProcess]) -> None:
        charged = self._charged(record)
        reason = self._unassignable(record)
        if charged is not None:
            found.memory[key] = (float(charged), "cgroup")
        elif reason:
            found.unavailable.add((*key, "memory", reason))
        elif any(process.memory_bytes is None for process in mine):
            found.unavailable.add((*key, "memory", "unsupported"))
        else:
            found.memory[key] = (float(sum(process.memory_bytes or 0 for process in mine)), "process")

    def _charged(self, record: Record) -> int | None:
        """Return what the driver charges a claim's cgroups; None where it does not tell, or others are in them too."""
        mine = self._cgroups(record)
        others = {path for other in self.records if other is not record for path in self._cgroups(other)}
        told = [self.look.cgroups[path] for path in mine if path in self.look.cgroups]
        return sum(told) if told and not mine & others else None

    def _cgroups(self, record: Record) -> set[str]:
        return {one.cgroup for one in record.cgroups if one.gpu == self.uuid}

    def _owner(self, process: UsingProcess) -> Record | None:
        for record in self.records:
            if self._has_all(record) or process.gpu_instance in self._instances(record):
                return record
            if any(process.pid in self.known.shares.get(share, ()) for share in record.share_names):
                return record
        pod = self.known.pod_of(process.pid)
        users = [record for record in self.records if pod is not None and pod in self._pods(record)]
        return users[0] if len(users) == 1 else None

    def _unassignable(self, record: Record) -> str:
        """Return why no process can be assigned to a claim; empty when they can."""
        if self._has_all(record) or self._instances(record) or record.share_names & self.known.shares.keys():
            return ""
        pods = self._pods(record)
        if not pods:
            return "unknown-pod"
        return "shared-pod" if any(pods & self._pods(other) for other in self.records if other is not record) else ""

    def _has_all(self, record: Record) -> bool:
        return any(hold.access is Access.EXCLUSIVE for hold in _holds(record, self.uuid))

    def _instances(self, record: Record) -> set[int]:
        """Return the GPU instances that are one claim's alone."""
        devices = (one for step in record.steps if isinstance(step, WriteCdiSpec) for one in step.devices)
        placements = {
            one.placement
            for one in devices
            if one.gpu == self.uuid and one.placement is not None and one.view is View.MIG
        }
        found = (self.known.instance_of(self.uuid, placement) for placement in placements)
        return {instance.gpu_instance for instance in found if instance is not None}

    def _pods(self, record: Record) -> set[str]:
        return set(self.known.pods.get(record.ref.uid, ()))


def _holds(record: Record, uuid: str) -> Iterator[Hold]:
    return (hold for hold in record.holds if hold.gpu == uuid and hold.access is not Access.OBSERVER)


def _key(record: Record, name: str) -> ClaimOnGpu:
    return record.ref.namespace, record.ref.name or record.ref.uid, name
