"""What has to happen for a claim: its steps, its answer, the GPUs to lock. Pure.

Admin access is given what a container needs to see the GPU (its device node and the control nodes, without which no
tool can query it), is never counted as a holder, and never changes a setting. The common edits of a vendor already tell
its container runtime to add nothing of its own accord (`NVIDIA_VISIBLE_DEVICES=void`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_gpu.api.dra_gpu_v1alpha1 import SharedGpuConfig
from dra_gpu.api.nvidia_v1beta1 import GpuConfig, MpsConfig, SharingStrategy, TimeSliceInterval
from dra_gpu.api.opaque import OpaqueConfig
from dra_gpu.api.resource_v1 import AllocationResult, DeviceRequestAllocationResult
from dra_gpu.claims import allocation as allocations
from dra_gpu.claims import sharing
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice, Refusal, RefusedError, can_stand_in_names
from dra_gpu.claims.record import Access, Hold
from dra_gpu.claims.shares import HeldShare, MemoryCgroup
from dra_gpu.claims.sharing import Sharing
from dra_gpu.claims.steps import CdiDevice, LimitMemory, SetTimeSlice, ShareOnMps, Step, WriteCdiSpec, cdi_kind
from dra_gpu.inventory import naming
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import View

_SERVED = (View.GPU, View.SHARED, View.MONITOR)


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
        return any(isinstance(step, SetTimeSlice) for step in self.steps)


@dataclass(frozen=True, slots=True)
class _Item:
    """One of our results with the device behind it."""

    result: DeviceRequestAllocationResult
    device: PublishedDevice
    config: OpaqueConfig | None

    @property
    def observer(self) -> bool:
        return bool(self.result.admin_access)


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
        around: what the node can do for shares.
    """
    try:
        configs = allocations.own_configs(ref, allocation, driver)
        items = []
        for result in allocations.own_results(allocation, driver, pool):
            device = _device(ref, result, inventory)
            config = allocations.config_for(ref, result, device.view, configs)
            items.append(_Item(result, device, config))
        _refuse_twice(ref, items)
        return _plan(ref, items, driver, _sharing(ref, items, around))
    except RefusedError as error:
        return error.refusal


def _plan(ref: ClaimRef, items: list[_Item], driver: str, shared: dict[str, Sharing]) -> Plan:
    used = {item.device.gpu.uuid: item.device.gpu for item in items if not item.observer}
    order = sorted(used.values(), key=naming.slot)
    settings = _settings(ref, items, shared)
    steps = [step for gpu in order for step in settings if step.gpu == gpu.uuid]
    cdi: tuple[Step, ...] = ()
    if items:
        cdi_devices = {_cdi_name(ref, item): _cdi_device(ref, item, shared) for item in items}
        cdi = (WriteCdiSpec(ref.uid, f"{ref.namespace}/{ref.name}", tuple(cdi_devices.values())),)
    return Plan(
        ref=ref,
        steps=(*steps, *cdi),
        devices=tuple(_answer(ref, item, driver) for item in items),
        holds=_holds(items),
        lock_keys=tuple(naming.slot(gpu) for gpu in order),
        shares=tuple(one.held for one in shared.values() if one.held is not None),
        cgroups=_summed(cgroup for one in shared.values() for cgroup in one.cgroups),
    )


def _sharing(ref: ClaimRef, items: Sequence[_Item], around: Surroundings) -> dict[str, Sharing]:
    """Return how devices are shared, by CDI name; those that are not shared or only watched are left out."""
    shared: dict[str, Sharing] = {}
    on_mps: dict[str, PublishedDevice] = {}
    for item in items:
        name = _cdi_name(ref, item)
        if item.observer or name in shared:
            continue
        mps = _mps(item)
        if item.device.view is View.SHARED:
            config = item.config if isinstance(item.config, SharedGpuConfig) else None
            shared[name] = sharing.share_of_gpu(ref, item.result, item.device, config, around)
        elif mps is not None:
            governed = {it.device.name: it.device for it in items if it.config is item.config and not it.observer}
            shared[name] = sharing.whole_gpu(ref, item.device, mps, tuple(governed.values()), around)
        if name in shared and shared[name].mps is not None:
            on_mps[name] = item.device
    sharing.refuse_several_pipes(ref, tuple(on_mps.values()))
    sharing.refuse_mixed_strategies(ref, [one.held for one in shared.values() if one.held is not None])
    return shared


def _summed(cgroups: Iterable[MemoryCgroup]) -> tuple[MemoryCgroup, ...]:
    """Return one entry for each cgroup and GPU, with all that the claim may use there."""
    sums: dict[tuple[str, str], int] = {}
    for one in cgroups:
        sums[one.gpu, one.cgroup] = sums.get((one.gpu, one.cgroup), 0) + one.limit
    return tuple(MemoryCgroup(gpu, cgroup, limit) for (gpu, cgroup), limit in sums.items())


def _settings(
    ref: ClaimRef, items: Sequence[_Item], shared: dict[str, Sharing]
) -> list[SetTimeSlice | ShareOnMps | LimitMemory]:
    """Return the steps that change GPUs, each kind once for a GPU."""
    steps: dict[tuple[type[Step], str], SetTimeSlice | ShareOnMps | LimitMemory] = {}
    for item in items:
        if item.observer:
            continue
        uuid = item.device.gpu.uuid
        interval = _time_slice(item)
        if interval is not None:
            steps[SetTimeSlice, uuid] = SetTimeSlice(uuid, interval)
        one = shared.get(_cdi_name(ref, item))
        if one is not None and one.mps is not None:
            steps[ShareOnMps, uuid] = ShareOnMps(uuid, one.mps)
        if one is not None and one.cgroups:
            steps[LimitMemory, uuid] = LimitMemory(uuid, ref.uid)
    return list(steps.values())


def _device(ref: ClaimRef, result: DeviceRequestAllocationResult, inventory: Inventory) -> PublishedDevice:
    device = inventory.devices.get(result.device)
    if device is None:
        sick = "; ".join(f"{gpu.where}: {gpu.reason}" for gpu in inventory.sick)
        raise RefusedError(
            f"claim {ref}: device {result.device[:80]!r} of request {result.request!r} is not among the working "
            f"devices of this node{f' ({sick[:400]})' if sick else ''}: recreate the pod, so that the scheduler "
            "chooses from what the node has now",
            retryable=True,
        )
    if device.view not in _SERVED:
        raise RefusedError(
            f"claim {ref}: device {device.name} is of the view `{device.view.value}`, which this release does not "
            "prepare: use the class gpu.nvidia.com, or a release that offers the view",
            retryable=False,
        )
    if device.view is View.MONITOR and not result.admin_access:
        raise RefusedError(
            f"claim {ref}: device {device.name} of request {result.request!r} is a `monitor` view, which is for "
            "watching a GPU that others use: set adminAccess: true on the request (and the label "
            'resource.kubernetes.io/admin-access: "true" on the namespace), or use the class gpu.nvidia.com',
            retryable=False,
        )
    if result.share_id and device.view in (View.GPU, View.MONITOR) and not can_stand_in_names(result.share_id):
        raise RefusedError(
            f"claim {ref}: the share {result.share_id[:80]!r} of device {device.name} is not made of 1 to 63 letters, "
            "digits and inner dashes, which CDI devices could be named after: recreate the claim",
            retryable=False,
        )
    return device


def _refuse_twice(ref: ClaimRef, items: list[_Item]) -> None:
    """Refuse a GPU that is given to two requests whole: each of them was promised one of its own."""
    users: dict[str, str] = {}
    for item in items:
        if item.observer or not item.device.exclusive:
            continue
        first = users.get(item.device.name)
        users[item.device.name] = item.result.request
        if first is not None:
            raise RefusedError(
                f"claim {ref}: device {item.device.name} is allocated twice, to the requests {first[:80]!r} and "
                f"{item.result.request[:80]!r}: recreate the claim, and see what wrote its allocation",
                retryable=False,
            )


def _time_slice(item: _Item) -> TimeSliceInterval | None:
    """Return the time slice that the config of a whole GPU asks for; None when it asks for none."""
    if not isinstance(item.config, GpuConfig) or item.config.sharing is None:
        return None
    chosen = item.config.sharing
    if chosen.strategy is not SharingStrategy.TIME_SLICING:
        return None
    return (chosen.time_slicing_config.interval if chosen.time_slicing_config else None) or TimeSliceInterval.DEFAULT


def _mps(item: _Item) -> MpsConfig | None:
    """Return the limits when the config of a whole GPU asks for MPS; None when it does not."""
    if not isinstance(item.config, GpuConfig) or item.config.sharing is None:
        return None
    chosen = item.config.sharing
    return (chosen.mps_config or MpsConfig()) if chosen.strategy is SharingStrategy.MPS else None


def _cdi_name(ref: ClaimRef, item: _Item) -> str:
    share = f"-{item.result.share_id}" if item.result.share_id else ""
    return f"{ref.uid}-{item.device.name}{share}"


def _cdi_device(ref: ClaimRef, item: _Item, shared: dict[str, Sharing]) -> CdiDevice:
    name = _cdi_name(ref, item)
    share = shared[name].mps if name in shared else None
    return CdiDevice(name, item.device.name, item.device.gpu.uuid, item.device.view, share)


def _answer(ref: ClaimRef, item: _Item, driver: str) -> PreparedDevice:
    return PreparedDevice(
        request_names=(allocations.main_request(item.result.request),),
        pool=item.result.pool,
        device=item.device.name,
        cdi_ids=(f"{cdi_kind(driver)}={_cdi_name(ref, item)}",),
        share_id=item.result.share_id,
    )


def _holds(items: list[_Item]) -> tuple[Hold, ...]:
    """Return one hold for each device and share; using a device outweighs observing it."""
    holds: dict[tuple[str, str], Hold] = {}
    for item in sorted(items, key=lambda item: item.observer):
        hold = _hold(item)
        holds.setdefault((hold.device, hold.share_id), hold)
    return tuple(holds.values())


def _hold(item: _Item) -> Hold:
    using = Access.EXCLUSIVE if item.device.exclusive else Access.SHARED
    access = Access.OBSERVER if item.observer else using
    return Hold(item.device.name, item.device.gpu.uuid, access, item.result.share_id or "")
