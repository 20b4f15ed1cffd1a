"""Whole GPUs and partitions that several claims have at once, where the operator wants that (`consumableShares`).

The scheduler counts, and nothing on the node limits anybody; the claim's status says so. All claims on one device must
ask for the same, since a setting of a GPU is one for all. MPS would need limits, and its daemon the whole GPU for those
who take part: whoever wants it takes the view `shared`. Pure.
"""

from collections.abc import Iterable

from dra_gpu.api import quantity
from dra_gpu.api.dra_gpu_v1alpha1 import SharedStrategy
from dra_gpu.claims.items import Item
from dra_gpu.claims.outcome import ClaimRef, RefusedError
from dra_gpu.claims.shares import MEBI, HeldShare
from dra_gpu.inventory import capacities
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.sharing import Mechanism

NOTE = "other claims use the same device: the scheduler counts them, and nothing on the node limits any of them"


def share(ref: ClaimRef, item: Item) -> HeldShare:
    """Return what a claim holds of a device that others have, too.

    Raises:
        RefusedError: its config asks for MPS, or what it consumed is no quantity.
    """
    where = f"claim {ref}: device {item.device.name} of request {item.result.request!r}"
    if item.mps is not None:
        raise RefusedError(
            f"{where} may be used by other claims, too (consumableShares), and then sharing.strategy MPS cannot be "
            "used: leave `sharing` out, or use class shared.gpu.nvidia.com or shared.mig.nvidia.com, whose shares have "
            "limits",
            retryable=False,
        )
    interval = item.time_slice
    return HeldShare(
        device=item.device.name,
        share_id=item.result.share_id or "",
        gpu=item.device.gpu.uuid,
        strategy=SharedStrategy.TIME_SLICING,
        percent=0,
        memory_bytes=_memory(where, item.result.consumed_capacity.get(capacities.MEMORY, "0")),
        compute=Mechanism.ACCOUNTING,
        memory=Mechanism.ACCOUNTING,
        gpu_memory_bytes=_all_memory(item.device),
        notes=(NOTE,),
        placement=item.device.placement,
        counted="without a time slice of their own" if interval is None else f"with the time slice {interval.value}",
    )


def refuse_unequal(ref: ClaimRef, shares: Iterable[HeldShare]) -> None:
    """Refuse several shares of one device with different configs in one claim.

    Raises:
        RefusedError: there are such.
    """
    first: dict[str, HeldShare] = {}
    for one in shares:
        if one.counted is not None and first.setdefault(one.device, one).counted != one.counted:
            raise RefusedError(
                f"claim {ref}: its requests for {one.device} are one {first[one.device].counted} and one "
                f"{one.counted}: give both the same config",
                retryable=False,
            )


def _all_memory(device: PublishedDevice) -> int | None:
    if device.placement is None:
        return device.gpu.memory_bytes
    profile = device.gpu.mig_profile(device.placement)
    return None if profile is None else profile.memory_bytes


def _memory(where: str, text: str) -> int:
    try:
        return quantity.parse_int(text) // MEBI * MEBI
    except quantity.InvalidQuantityError as error:
        raise RefusedError(f"{where}: consumedCapacity.{capacities.MEMORY}: {error}", retryable=False) from error
