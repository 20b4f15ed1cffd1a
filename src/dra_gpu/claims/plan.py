"""What has to happen for a claim: its steps, its answer, the GPUs to lock. Pure.

Admin access is given what a container needs to see the GPU (its device node and the control nodes, without which no
tool can query it), is never counted as a holder, and never changes a setting. The common edits of a vendor already tell
its container runtime to add nothing of its own accord (`NVIDIA_VISIBLE_DEVICES=void`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_gpu.api.dra_gpu_v1alpha1 import SharedGpuConfig
from dra_gpu.api.resource_v1 import AllocationResult
from dra_gpu.claims import counted, sharing
from dra_gpu.claims import items as allocated
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.items import Item
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice, Refusal, RefusedError
from dra_gpu.claims.record import Hold
from dra_gpu.claims.shares import HeldShare, MemoryCgroup
from dra_gpu.claims.sharing import Sharing
from dra_gpu.claims.steps import (
    CdiDevice,
    CreateMigInstance,
    LimitMemory,
    SetMigMode,
    SetTimeSlice,
    ShareOnMps,
    Step,
    WriteCdiSpec,
)
from dra_gpu.inventory import naming
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import Gpu

_REPLACING = (SetTimeSlice, SetMigMode, CreateMigInstance)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is done for a claim, in order.

    Attributes:
        ref: the claim.
        steps: to be applied first to last and undone last to first; empty when no device is ours.
        devices: the answer once all steps are applied.
        holds: what the claim holds from then on.
        lock_keys: the GPUs (by slot, in PCI order) to lock while steps are applied or undone.
        shares: which of the holds are parts of GPUs, and how much.
        cgroups: where the driver limits the memory of those.
    """

    ref: ClaimRef
    steps: tuple[Step, ...]
    devices: tuple[PreparedDevice, ...]
    holds: tuple[Hold, ...]
    lock_keys: tuple[str, ...]
    shares: tuple[HeldShare, ...] = ()
    cgroups: tuple[MemoryCgroup, ...] = ()

    @property
    def replaces_settings(self) -> bool:
        """Whether a step has to look at what it replaces on a GPU."""
        return any(isinstance(step, _REPLACING) for step in self.steps)


def make_plan(
    ref: ClaimRef, allocation: AllocationResult, *, driver: str, pool: str, inventory: Inventory, around: Surroundings
) -> Plan | Refusal:
    """Return what to do for a claim, or why it cannot be done.

    Args:
        ref: the claim; its UID is valid.
        allocation: the scheduler's decision.
        driver: our driver name.
        pool: our pool on this node.
        inventory: what the node offers now.
        around: what the node can do for shares, and what mode its GPUs are in.
    """
    try:
        items = allocated.items_of(ref, allocation, driver=driver, pool=pool, inventory=inventory)
        shared = _sharing(ref, items, around)
    except RefusedError as error:
        return error.refusal
    used = {item.device.gpu.uuid: item.device.gpu for item in items if not item.observer}
    order = sorted(used.values(), key=naming.slot)
    settings = [*_modes(ref, items, around), *_partitions(ref, items), *_settings(ref, items, shared)]
    steps = [step for gpu in order for step in settings if gpu.uuid in step.gpus]
    return Plan(
        ref=ref,
        steps=(*steps, *_file(ref, items, shared)),
        devices=tuple(item.answer(ref, driver) for item in items),
        holds=allocated.holds(items),
        lock_keys=tuple(naming.slot(gpu) for gpu in order),
        shares=tuple(one.held for one in shared.values() if one.held is not None),
        cgroups=_summed(cgroup for one in shared.values() for cgroup in one.cgroups),
    )


def _sharing(ref: ClaimRef, items: Sequence[Item], around: Surroundings) -> dict[str, Sharing]:
    """Return how devices are shared, by CDI name; those that are not shared or only watched are left out."""
    shared: dict[str, Sharing] = {}
    on_mps: dict[str, PublishedDevice] = {}
    for item in items:
        name = item.cdi_name(ref)
        if item.observer or name in shared:
            continue
        mps = item.mps
        if item.counted:
            shared[name] = Sharing(None, counted.share(ref, item))
        elif item.shared:
            config = item.config if isinstance(item.config, SharedGpuConfig) else None
            shared[name] = sharing.share_of(ref, item.result, item.device, config, around)
        elif mps is not None:
            governed = {it.device.name: it.device for it in items if it.config is item.config and not it.observer}
            shared[name] = sharing.within_claim(ref, item.device, mps, tuple(governed.values()), around)
        if name in shared and shared[name].mps is not None:
            on_mps[name] = item.device
    sharing.refuse_several_pipes(ref, tuple(on_mps.values()))
    held = [one.held for one in shared.values() if one.held is not None]
    sharing.refuse_mixed_strategies(ref, held)
    counted.refuse_unequal(ref, held)
    sharing.refuse_more_than_there_is(ref, held)
    return shared


def _summed(cgroups: Iterable[MemoryCgroup]) -> tuple[MemoryCgroup, ...]:
    """Return one entry for each cgroup and GPU, with all that the claim may use there."""
    sums: dict[tuple[str, str], int] = {}
    for one in cgroups:
        sums[one.gpu, one.cgroup] = sums.get((one.gpu, one.cgroup), 0) + one.limit
    return tuple(MemoryCgroup(gpu, cgroup, limit) for (gpu, cgroup), limit in sums.items())


def _modes(ref: ClaimRef, items: Sequence[Item], around: Surroundings) -> Iterable[SetMigMode]:
    """Return the steps that bring GPUs into the mode they are used in, one for a GPU.

    A GPU whose mode changes only with a reset is published as what it can be used for now. One that is not in MIG mode
    as far as anybody knows is not asked.
    """
    modes: dict[str, SetMigMode] = {}
    for item in items:
        gpu: Gpu = item.device.gpu
        partitioned = item.device.placement is not None
        if item.observer or not gpu.mig_live:
            continue
        if partitioned or around.in_mig_mode(gpu):
            modes[gpu.uuid] = SetMigMode(gpu.uuid, partitioned, ref.uid)
    return modes.values()


def _partitions(ref: ClaimRef, items: Sequence[Item]) -> Iterable[CreateMigInstance]:
    """Return the steps that make partitions, one for each, however many shares of it the claim has."""
    placed = {
        (item.device.gpu.uuid, item.device.placement)
        for item in items
        if not item.observer and item.device.placement is not None
    }
    ordered = sorted(placed, key=lambda one: (one[0], one[1].start))
    return [CreateMigInstance(gpu, placement, ref.uid) for gpu, placement in ordered]


def _settings(
    ref: ClaimRef, items: Sequence[Item], shared: dict[str, Sharing]
) -> Iterable[SetTimeSlice | ShareOnMps | LimitMemory]:
    """Return the steps that change how GPUs are used, each kind once for a GPU."""
    steps: dict[tuple[type[Step], str], SetTimeSlice | ShareOnMps | LimitMemory] = {}
    for item in items:
        if item.observer:
            continue
        uuid = item.device.gpu.uuid
        interval = item.time_slice
        if interval is not None:
            steps[SetTimeSlice, uuid] = SetTimeSlice(uuid, interval, claim_uid=ref.uid if item.counted else "")
        one = shared.get(item.cdi_name(ref))
        if one is not None and one.mps is not None:
            steps[ShareOnMps, uuid] = ShareOnMps(uuid, one.mps, item.device.placement)
        if one is not None and one.cgroups:
            steps[LimitMemory, uuid] = LimitMemory(uuid, ref.uid)
    return steps.values()


def _file(ref: ClaimRef, items: Sequence[Item], shared: dict[str, Sharing]) -> tuple[WriteCdiSpec, ...]:
    """Return the step that writes the claim's CDI file; none where nothing is ours."""
    if not items:
        return ()
    devices = {item.cdi_name(ref): item.device for item in items}
    entries = tuple(
        CdiDevice(
            name,
            device.name,
            device.gpu.uuid,
            device.view,
            shared[name].mps if name in shared else None,
            device.placement,
        )
        for name, device in devices.items()
    )
    return (WriteCdiSpec(ref.uid, f"{ref.namespace}/{ref.name}", entries),)
