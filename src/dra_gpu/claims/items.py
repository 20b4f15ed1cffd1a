"""The devices that a claim was given, each with the config that governs it: what may be had, and what it means.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dra_gpu.api.nvidia_v1beta1 import (
    GpuConfig,
    GpuSharing,
    MigDeviceConfig,
    MigDeviceSharing,
    MpsConfig,
    SharingStrategy,
    TimeSliceInterval,
)
from dra_gpu.api.opaque import OpaqueConfig
from dra_gpu.api.resource_v1 import AllocationResult, DeviceRequestAllocationResult
from dra_gpu.claims import allocation as allocations
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice, RefusedError, can_stand_in_names
from dra_gpu.claims.record import Access, Hold
from dra_gpu.claims.steps import cdi_kind
from dra_gpu.inventory import partitions
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import View

_SERVED = (View.GPU, View.SHARED, View.MIG, View.SHARED_MIG, View.MONITOR)
_SHARED = (View.SHARED, View.SHARED_MIG)
_WHOLE = (View.GPU, View.MIG)
_PARTITIONS = (View.MIG, View.SHARED_MIG)


@dataclass(frozen=True, slots=True)
class Item:
    """One of our results of an allocation, with the device behind it.

    Attributes:
        result: the scheduler's decision.
        device: what is published under its name.
        config: what the claim or its class says about it.
    """

    result: DeviceRequestAllocationResult
    device: PublishedDevice
    config: OpaqueConfig | None

    @property
    def observer(self) -> bool:
        """Whether it is only watched."""
        return bool(self.result.admin_access)

    @property
    def shared(self) -> bool:
        """Whether it is a part of what other claims use, too."""
        return self.device.view in _SHARED

    @property
    def counted(self) -> bool:
        """Whether it is had whole by several claims at once, which the scheduler counts (`consumableShares`)."""
        return self.device.view in _WHOLE and self.result.share_id is not None

    @property
    def hold(self) -> Hold:
        """What having it means for other claims."""
        return hold_of(self.device, self.result.share_id or "", observer=self.observer)

    @property
    def time_slice(self) -> TimeSliceInterval | None:
        """The time slice that the config of a whole GPU asks for. A partition has none of its own to set."""
        chosen = self.config.sharing if isinstance(self.config, GpuConfig) else None
        if chosen is None or chosen.strategy is not SharingStrategy.TIME_SLICING:
            return None
        return (
            chosen.time_slicing_config.interval if chosen.time_slicing_config else None
        ) or TimeSliceInterval.DEFAULT

    @property
    def mps(self) -> MpsConfig | None:
        """The limits by MPS that the config of a device had whole asks for; None when it asks for no MPS."""
        chosen = self._sharing
        if chosen is None or chosen.strategy is not SharingStrategy.MPS:
            return None
        return chosen.mps_config or MpsConfig()

    @property
    def _sharing(self) -> GpuSharing | MigDeviceSharing | None:
        return self.config.sharing if isinstance(self.config, (GpuConfig, MigDeviceConfig)) else None

    def cdi_name(self, ref: ClaimRef) -> str:
        """Return its name in the claim's CDI file."""
        share = f"-{self.result.share_id}" if self.result.share_id else ""
        return f"{ref.uid}-{self.device.name}{share}"

    def answer(self, ref: ClaimRef, driver: str) -> PreparedDevice:
        """Return what the kubelet is told about it."""
        return PreparedDevice(
            request_names=(allocations.main_request(self.result.request),),
            pool=self.result.pool,
            device=self.device.name,
            cdi_ids=(f"{cdi_kind(driver)}={self.cdi_name(ref)}",),
            share_id=self.result.share_id,
        )


def items_of(
    ref: ClaimRef, allocation: AllocationResult, *, driver: str, pool: str, inventory: Inventory
) -> tuple[Item, ...]:
    """Return what a claim was given of ours, in the order of the allocation.

    Args:
        ref: the claim.
        allocation: the scheduler's decision.
        driver: our driver name.
        pool: our pool on this node.
        inventory: what the node offers now.

    Raises:
        RefusedError: something of it cannot be had, or not together.
    """
    configs = allocations.own_configs(ref, allocation, driver)
    items = []
    for result in allocations.own_results(allocation, driver, pool):
        device = _device(ref, result, inventory)
        items.append(Item(result, device, allocations.config_for(ref, result, device.view, configs)))
    _refuse_what_excludes_itself(ref, items)
    return tuple(items)


def hold_of(device: PublishedDevice, share_id: str, *, observer: bool) -> Hold:
    """Return what having a device, or a share of it, means for other claims."""
    if observer:
        access = Access.OBSERVER
    elif device.placement is not None:
        access = Access.PARTITION_SHARE if device.view in _SHARED or share_id else Access.PARTITION
    else:
        access = Access.EXCLUSIVE if device.exclusive and not share_id else Access.SHARED
    units = 0 if device.placement is None else device.placement.units
    return Hold(device.name, device.gpu.uuid, access, share_id, units)


def holds(items: Sequence[Item]) -> tuple[Hold, ...]:
    """Return one hold for each device and share; using a device outweighs observing it."""
    found: dict[tuple[str, str], Hold] = {}
    for item in sorted(items, key=lambda item: item.observer):
        hold = item.hold
        found.setdefault((hold.device, hold.share_id), hold)
    return tuple(found.values())


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
    if device.gpu.uuid in inventory.lost:
        reason = next((gpu.reason for gpu in inventory.sick if gpu.uuid == device.gpu.uuid), "it does not answer")
        raise RefusedError(
            f"claim {ref}: the GPU of device {device.name} of request {result.request!r} cannot be used: "
            f"{reason[:400]}; recreate the pod, so that the scheduler chooses another one",
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
    _refuse_in_vain(ref, result, device)
    if result.share_id and device.view not in _SHARED and not can_stand_in_names(result.share_id):
        raise RefusedError(
            f"claim {ref}: the share {result.share_id[:80]!r} of device {device.name} is not made of 1 to 63 letters, "
            "digits and inner dashes, which CDI devices could be named after: recreate the claim",
            retryable=False,
        )
    return device


def _refuse_in_vain(ref: ClaimRef, result: DeviceRequestAllocationResult, device: PublishedDevice) -> None:
    """Refuse what the node cannot give although it is published."""
    if device.view in _PARTITIONS and result.admin_access:
        raise RefusedError(
            f"claim {ref}: device {device.name} of request {result.request!r} is a partition, which is only there "
            "while a claim uses it, so that there is nothing to watch: use the class monitor.nvidia.com, which shows "
            "the whole GPU",
            retryable=False,
        )
    if device.view is not View.MONITOR and partitions.mode_pending(device.gpu):
        wanted = "into" if device.gpu.mig_pending else "out of"
        raise RefusedError(
            f"claim {ref}: device {device.name}: GPU {device.gpu.uuid} waits for a reset to go {wanted} MIG mode, and "
            "nobody is given it until then: reset the GPU or reboot the node, or take the change back",
            retryable=True,
        )


def _refuse_what_excludes_itself(ref: ClaimRef, items: Sequence[Item]) -> None:
    """Refuse what was given to two requests at once: each of them was promised one of its own."""
    used = [item for item in items if not item.observer]
    for number, item in enumerate(used):
        for other in used[:number]:
            if not item.hold.excludes(other.hold):
                continue
            what = f"device {item.device.name} is allocated twice"
            if item.device.name != other.device.name:
                what = f"devices {other.device.name} and {item.device.name} cannot exist at once, but are allocated"
            raise RefusedError(
                f"claim {ref}: {what}, to the requests {other.result.request[:80]!r} and "
                f"{item.result.request[:80]!r}: recreate the claim, and see what wrote its allocation",
                retryable=False,
            )
