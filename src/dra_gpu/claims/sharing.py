"""What sharing adds to a claim's plan: a part of a device that others use too, or a whole one shared within the claim.

The device is a GPU or a partition of it.
A share's size is what the scheduler says it consumed, never what the claim asked for. Memory is counted in whole MiB,
the unit of MPS. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_gpu.api import nvidia_v1beta1, quantity
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.dra_gpu_v1alpha1 import ClientPriority, SharedGpuConfig
from dra_gpu.api.nvidia_v1beta1 import MpsConfig
from dra_gpu.api.resource_v1 import DeviceRequestAllocationResult
from dra_gpu.claims.enforcement import Surroundings, protocol_of, terms_of, why_no_mps
from dra_gpu.claims.outcome import ClaimRef, RefusedError
from dra_gpu.claims.shares import (
    MEBI,
    WHOLE_PERCENT,
    HeldShare,
    MemoryCgroup,
    MpsShare,
    claim_share_name,
    is_share_id,
    share_name,
)
from dra_gpu.inventory import capacities
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.sharing import Mechanism
from dra_gpu.mps.service import Limits


@dataclass(frozen=True, slots=True)
class Sharing:
    """How one device of a claim is shared.

    Attributes:
        mps: the share on MPS; None with time slices.
        held: what it takes of what other claims use, too; None where the device is the claim's alone.
        cgroups: where the driver limits its memory.
    """

    mps: MpsShare | None
    held: HeldShare | None = None
    cgroups: tuple[MemoryCgroup, ...] = ()


def share_of(
    ref: ClaimRef,
    result: DeviceRequestAllocationResult,
    device: PublishedDevice,
    config: SharedGpuConfig | None,
    around: Surroundings,
) -> Sharing:
    """Return how a part of a GPU, or of a partition, is had.

    Args:
        ref: the claim, for messages.
        result: the scheduler's decision about the device.
        device: of the `shared` or the `shared-mig` view.
        config: what the claim says about it; None is the same as an empty one.
        around: what the node can do.

    Raises:
        RefusedError: the allocation is no share, or its limits cannot be kept as the claim demands.
    """
    where = f"claim {ref}: device {device.name} of request {result.request!r}"
    if result.share_id is None:
        raise RefusedError(
            f"{where} was allocated without a share id, so that the cluster takes it for one device: enable the "
            "feature gate DRAConsumableCapacity, or use the class gpu.nvidia.com or mig.nvidia.com",
            retryable=False,
        )
    if not is_share_id(result.share_id):
        raise RefusedError(
            f"{where} has the share id {result.share_id[:80]!r}, which is no UUID: recreate the claim", retryable=False
        )
    wanted = config or SharedGpuConfig()
    percent = _amount(where, result.consumed_capacity, capacities.COMPUTE_PERCENT)
    memory = _amount(where, result.consumed_capacity, capacities.MEMORY) // MEBI * MEBI
    if not 1 <= percent <= WHOLE_PERCENT or memory < MEBI:
        raise RefusedError(
            f"{where} was allocated with {capacities.COMPUTE_PERCENT} {percent} and {memory} bytes of memory: a share "
            "has 1 to 100 percent and at least 1Mi; recreate the claim",
            retryable=False,
        )
    gpu = device.gpu
    terms = terms_of(where, device, wanted, around)
    mps = None
    if terms.protocol is not None:
        low = wanted.client_priority is ClientPriority.BELOW_NORMAL
        mps = MpsShare(share_name(result.share_id), terms.protocol, Limits(percent, memory, low))
    held = HeldShare(
        device=device.name,
        share_id=result.share_id,
        gpu=gpu.uuid,
        strategy=terms.strategy,
        percent=percent,
        memory_bytes=memory,
        compute=terms.compute,
        memory=terms.memory,
        clients=_optional(where, result.consumed_capacity, capacities.CLIENTS),
        nvlink_bandwidth=_optional(where, result.consumed_capacity, capacities.NVLINK_BANDWIDTH),
        gpu_memory_bytes=_memory_of(device),
        notes=terms.notes,
        placement=device.placement,
    )
    limited = terms.cgroups if terms.memory is Mechanism.CGROUP else ()
    return Sharing(mps, held, tuple(MemoryCgroup(gpu.uuid, cgroup, memory) for cgroup in limited))


def within_claim(
    ref: ClaimRef, device: PublishedDevice, config: MpsConfig, governed: Sequence[PublishedDevice], around: Surroundings
) -> Sharing:
    """Return how a GPU or partition is shared by MPS among the containers of the claim that has all of it.

    Args:
        ref: the claim.
        device: of the `gpu` or the `mig` view.
        config: limits of each process.
        governed: the claim's devices to which the config applies, in the order of the allocation; limits by index
            count among them.
        around: what the node can do.

    Raises:
        RefusedError: MPS cannot serve the GPU, or a limit names another device or more than the GPU has.
    """
    where = f"claim {ref}: device {device.name}"
    protocol = protocol_of(device, around)
    if protocol is None:
        raise RefusedError(
            f"{where}: sharing.strategy MPS cannot be used on GPU {device.gpu.uuid}: {why_no_mps(device, around)}; "
            "write strategy TimeSlicing, leave `sharing` out, or choose another GPU by a selector",
            retryable=False,
        )
    try:
        memory = _pinned(where, device, config, governed)
    except InvalidConfigError as error:
        raise RefusedError(f"{where}: {error}", retryable=False) from error
    limits = Limits(config.default_active_thread_percentage, memory)
    return Sharing(MpsShare(claim_share_name(ref.uid), protocol, limits))


def refuse_several_pipes(ref: ClaimRef, devices: Sequence[PublishedDevice]) -> None:
    """Refuse a claim with several devices on MPS: a container follows one MPS daemon and would not see the others.

    Raises:
        RefusedError: there are several.
    """
    if len(devices) > 1:
        names = ", ".join(device.name for device in devices)
        raise RefusedError(
            f"claim {ref}: the devices {names[:200]} are shared by MPS, and a container follows one MPS daemon only: "
            "make a claim of its own for each (count: 1, one request) and give each container one of them, or share "
            "by strategy TimeSlicing",
            retryable=False,
        )


def refuse_mixed_strategies(ref: ClaimRef, shares: Sequence[HeldShare]) -> None:
    """Refuse shares of one device by different strategies: under MPS nobody else is let onto it.

    Raises:
        RefusedError: there are such.
    """
    strategies: dict[str, HeldShare] = {}
    for share in shares:
        other = strategies.setdefault(share.part_of, share)
        if other.strategy is not share.strategy:
            raise RefusedError(
                f"claim {ref}: its shares of {share.device} have the strategies {other.strategy.value} and "
                f"{share.strategy.value}, which cannot be mixed on one device: give both the same",
                retryable=False,
            )


def refuse_more_than_there_is(ref: ClaimRef, shares: Sequence[HeldShare]) -> None:
    """Refuse shares that would not fit if nobody else had anything: no waiting helps them.

    Raises:
        RefusedError: there are such.
    """
    for whole in dict.fromkeys(share.part_of for share in shares):
        wanted = [share for share in shares if share.part_of == whole]
        first = wanted[0]
        percent, memory = sum(share.percent for share in wanted), sum(share.memory_bytes for share in wanted)
        if percent <= WHOLE_PERCENT and (first.gpu_memory_bytes is None or memory <= first.gpu_memory_bytes):
            continue
        has = "unknown" if first.gpu_memory_bytes is None else quantity.format_bytes(first.gpu_memory_bytes)
        raise RefusedError(
            f"claim {ref}: its part of {first.device} is {percent} % of the SMs and {quantity.format_bytes(memory)} of "
            f"memory, and all that there is now is {WHOLE_PERCENT} % and {has}: recreate the claim, so that the "
            "scheduler chooses from what the node has",
            retryable=False,
        )


def _pinned(where: str, device: PublishedDevice, config: MpsConfig, governed: Sequence[PublishedDevice]) -> int | None:
    """Return the memory limit of a device: the one by its UUID or index, else the default; None for no limit."""
    limit = None
    if config.default_pinned_device_memory_limit is not None:
        field = nvidia_v1beta1.DEFAULT_LIMIT_FIELD
        limit = _within(where, field, config.default_pinned_device_memory_limit, device)
    names = {name: one for index, one in enumerate(governed) for name in _names(index, one)}
    own = {}
    for key, text in config.default_per_device_pinned_memory_limit.items():
        field = nvidia_v1beta1.per_device_field(key)
        one = names.get(key)
        if one is None:
            known = ", ".join(" or ".join(_names(index, one)) for index, one in enumerate(governed))
            raise RefusedError(
                f"{where}: {field} names no device that this config governs: write {known[:400]}", retryable=False
            )
        amount = _within(where, field, text, one)
        if one.name == device.name:
            own[key] = amount
    if len(set(own.values())) > 1:
        fields = nvidia_v1beta1.per_device_field(", ".join(own))
        raise RefusedError(
            f"{where}: {fields} give different limits for the same device: keep one",
            retryable=False,
        )
    return next(iter(own.values()), limit)


def _within(where: str, field: str, text: str, device: PublishedDevice) -> int:
    limit = nvidia_v1beta1.pinned_limit(field, text)
    has = _memory_of(device)
    if has is not None and limit > has:
        raise RefusedError(
            f"{where}: {field} is {text[:40]}, but {device.name} has {quantity.format_bytes(has)}: write at most that",
            retryable=False,
        )
    return limit


def _names(index: int, device: PublishedDevice) -> tuple[str, ...]:
    """Return what a limit may call a device: a partition that a claim makes has no UUID that a user could know."""
    return (str(index), device.gpu.uuid) if device.placement is None else (str(index),)


def _memory_of(device: PublishedDevice) -> int | None:
    """Return all the memory of a device in bytes; None where that is not known."""
    if device.placement is None:
        return device.gpu.memory_bytes
    profile = device.gpu.mig_profile(device.placement)
    return None if profile is None else profile.memory_bytes


def _amount(where: str, consumed: Mapping[str, str], name: str) -> int:
    value = _optional(where, consumed, name)
    if value is None:
        raise RefusedError(
            f"{where} was allocated without {name}, so that its size is not known: recreate the claim",
            retryable=False,
        )
    return value


def _optional(where: str, consumed: Mapping[str, str], name: str) -> int | None:
    text = consumed.get(name)
    try:
        return None if text is None else quantity.parse_int(text)
    except quantity.InvalidQuantityError as error:
        raise RefusedError(f"{where}: consumedCapacity.{name}: {error}", retryable=False) from error
