"""What a claim's status says about each of its devices: how much of it there is, and what enforces that. Pure.

Everything is taken from the record, so that the same can be said again after a restart. For each capacity: what was
requested, what is effective, the mechanism, what it counts (`process`, `pod`, `partition` or `gpu`), and whether a
container can lift it. A capacity that nothing on the node limits has the mechanism `accounting` and no scope.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from dra_gpu.api import quantity
from dra_gpu.api.claim_status_v1 import MAX_DATA_BYTES, AllocatedDeviceStatus, Condition
from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.outcome import PreparedDevice
from dra_gpu.claims.record import Access, Record
from dra_gpu.claims.shares import HeldShare
from dra_gpu.claims.steps import CdiDevice, SetTimeSlice, WriteCdiSpec
from dra_gpu.health.state import PartHealth, Verdict
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, MigProfile, View
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol
from dra_gpu.mps.service import Limits

_SCOPES = {
    Mechanism.HARDWARE: "gpu",
    Mechanism.CGROUP: "pod",
    Mechanism.NAMESPACE: "process",
    Mechanism.COOPERATIVE: "process",
    Mechanism.TIME_SLICE: "gpu",
    Mechanism.ACCOUNTING: None,
}
_BY_PROTOCOL = {MpsProtocol.NAMESPACE: Mechanism.NAMESPACE, MpsProtocol.CLASSIC: Mechanism.COOPERATIVE}
_SMS_PER_TPC = 2
_PERCENT = 100
_MAX_MESSAGE = 1024


class CapacityStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One capacity of a device.

    Attributes:
        mechanism: what enforces it.
        requested: quantity that the claim was allocated of it.
        effective: quantity that is in force, which is another one where capacity was moved; absent where nothing limits
            it.
        scope: what the limit counts: each `process`, all of a `pod`, or all that is on a `partition` or the `gpu`.
        lifted: a container can lift it.
    """

    mechanism: Mechanism
    requested: str | None = None
    effective: str | None = None
    scope: str | None = None
    lifted: bool | None = None


class DeviceData(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands in `status.devices[].data`.

    Attributes:
        gpu: UUID of the GPU.
        view: how the GPU is used.
        mig: UUID of the MIG device, where it is a partition; absent until it has been seen.
        profile: name of its profile.
        strategy: `MPS` or `TimeSlicing`, where it is shared.
        admin: it was given for watching; it counts for nothing.
        capacities: by name.
        multiprocessors: SMs that a process can use at once.
        notes: what else to know.
    """

    gpu: str
    view: View
    mig: str | None = None
    profile: str | None = None
    strategy: str | None = None
    admin: bool = False
    capacities: dict[str, CapacityStatus] = {}
    multiprocessors: int | None = None
    notes: tuple[str, ...] = ()


def statuses(
    record: Record,
    driver: str,
    gpu_of: Callable[[str], Gpu | None],
    instance_of: Callable[[str, MigPlacement], MigInstance | None] = lambda _gpu, _placement: None,
    health_of: Callable[[str, MigPlacement | None], PartHealth | None] = lambda _gpu, _placement: None,
) -> tuple[AllocatedDeviceStatus, ...]:
    """Return the status of each device of a prepared claim.

    Args:
        record: the claim.
        driver: our driver name.
        gpu_of: returns the GPU of a UUID; None where it does not work now.
        instance_of: returns the instance of a partition; None where it has not been seen.
        health_of: returns how well a GPU or partition is; None where nothing is known of it.
    """
    devices = {cdi.cdi_name: cdi for step in record.steps if isinstance(step, WriteCdiSpec) for cdi in step.devices}
    by_key: dict[tuple[str, str | None], AllocatedDeviceStatus] = {}
    for prepared in record.devices:
        cdi = devices.get(prepared.cdi_ids[0].partition("=")[2]) if prepared.cdi_ids else None
        if cdi is not None:
            instance = None if cdi.placement is None else instance_of(cdi.gpu, cdi.placement)
            data = _data(record, prepared, _Device(cdi, gpu_of(cdi.gpu), instance))
            by_key.setdefault(
                (prepared.device, prepared.share_id),
                AllocatedDeviceStatus(
                    driver,
                    prepared.pool,
                    prepared.device,
                    prepared.share_id,
                    [_ready(record), _enforced(data), *_healthy(health_of(cdi.gpu, cdi.placement))],
                    msgspec.Raw(_encoded(data)),
                ),
            )
    return tuple(by_key.values())


@dataclass(frozen=True, slots=True)
class _Device:
    """A device as the claim has it, and what is known of the hardware behind it."""

    cdi: CdiDevice
    gpu: Gpu | None
    instance: MigInstance | None

    @property
    def profile(self) -> MigProfile | None:
        if self.gpu is None or self.cdi.placement is None:
            return None
        return self.gpu.mig_profile(self.cdi.placement)

    @property
    def memory_bytes(self) -> int | None:
        """All the memory of the GPU or partition."""
        has = self.gpu if self.cdi.placement is None else self.profile
        return None if has is None else has.memory_bytes

    @property
    def multiprocessors(self) -> int | None:
        """All the SMs of the GPU or partition."""
        has = self.gpu if self.cdi.placement is None else self.profile
        return None if has is None else has.multiprocessors

    def data(self, **facts: Any) -> DeviceData:
        """Return the data with what says which device it is."""
        return DeviceData(
            self.cdi.gpu,
            self.cdi.view,
            mig=None if self.instance is None else self.instance.uuid,
            profile=None if self.profile is None else self.profile.name,
            **facts,
        )


def effective_multiprocessors(total: int, percent: int) -> int:
    """Return the SMs that MPS gives a process: rounded down, and then to whole TPCs.

    Source: measured on a board of 188 SMs (10 % are 18, 25 % are 46); other boards may round otherwise.
    """
    return max(_SMS_PER_TPC, total * percent // _PERCENT // _SMS_PER_TPC * _SMS_PER_TPC)


def _data(record: Record, prepared: PreparedDevice, device: _Device) -> DeviceData:
    if _is_observer(record, prepared):
        return device.data(admin=True)
    share = next((one for one in record.shares if _is_of(one, prepared)), None)
    if share is not None:
        planned = next((one for one in record.planned if _is_of(one, prepared)), share)
        return _share(share, planned, device)
    slices = (step.interval for step in record.steps if isinstance(step, SetTimeSlice) and step.gpu == device.cdi.gpu)
    return _whole(device, next(slices, None))


def _counted(share: HeldShare, device: _Device) -> DeviceData:
    """Return what is said of a device that several claims have at once, each as a whole."""
    return device.data(
        capacities={"memory": _capacity(share.memory, quantity.format_bytes(share.memory_bytes))},
        multiprocessors=device.multiprocessors,
        notes=share.notes,
    )


def _share(share: HeldShare, planned: HeldShare, device: _Device) -> DeviceData:
    """Return what is said of a part: requested is what was allocated, effective what is left of it, or more."""
    if share.counted is not None:
        return _counted(share, device)
    sms = device.multiprocessors
    memory, had = quantity.format_bytes(share.memory_bytes), quantity.format_bytes(planned.memory_bytes)
    capacities = {
        "computePercent": _capacity(share.compute, str(share.percent), str(planned.percent)),
        "memory": _capacity(share.memory, memory, had),
    }
    if share.clients is not None:
        capacities["clients"] = _capacity(Mechanism.ACCOUNTING, str(share.clients), str(planned.clients))
    if share.nvlink_bandwidth is not None:
        bandwidth, had = str(share.nvlink_bandwidth), str(planned.nvlink_bandwidth)
        capacities["nvlinkBandwidth"] = _capacity(Mechanism.ACCOUNTING, bandwidth, had)
    if sms is not None and device.cdi.share is not None:
        sms = effective_multiprocessors(sms, share.percent)
    return device.data(strategy=share.strategy.value, capacities=capacities, multiprocessors=sms, notes=share.notes)


def _whole(device: _Device, interval: TimeSliceInterval | None) -> DeviceData:
    """Return what is said of a whole GPU or partition, which the claim may share among its own containers."""
    memory, sms = device.memory_bytes, device.multiprocessors
    capacities = {}
    if memory is not None:
        whole = _capacity(Mechanism.HARDWARE, quantity.format_bytes(memory))
        capacities["memory"] = whole if device.cdi.placement is None else replace(whole, scope="partition")
    share = device.cdi.share
    if interval is not None:
        capacities["computePercent"] = _capacity(Mechanism.TIME_SLICE, str(_PERCENT))
        notes = (f"its containers take turns on the GPU (time slice {interval.value}), nothing keeps them apart",)
        return device.data(strategy="TimeSlicing", capacities=capacities, multiprocessors=sms, notes=notes)
    if share is None:
        return device.data(capacities=capacities, multiprocessors=sms)
    limits, mechanism = share.limits, _BY_PROTOCOL[share.protocol]
    if limits.compute_percent is not None:
        capacities["computePercent"] = _capacity(mechanism, str(limits.compute_percent))
        sms = None if sms is None else effective_multiprocessors(sms, limits.compute_percent)
    if limits.memory_bytes is not None:
        # A container can lift MPS' limit on memory with either protocol, by naming a GPU that it cannot see.
        capacities["memory"] = _capacity(Mechanism.COOPERATIVE, quantity.format_bytes(limits.memory_bytes))
    return device.data(strategy="MPS", capacities=capacities, multiprocessors=sms, notes=_within_claim(limits))


def _within_claim(limits: Limits) -> tuple[str, ...]:
    fault = "a fatal GPU fault of one process ends the processes of all containers of this claim"
    none = "no limits were asked for: each process may use all of the device"
    return (fault,) if limits != Limits() else (fault, none)


def _capacity(mechanism: Mechanism, amount: str, requested: str | None = None) -> CapacityStatus:
    asked = amount if requested is None else requested
    limited = mechanism not in (Mechanism.ACCOUNTING, Mechanism.TIME_SLICE) or amount != asked
    return CapacityStatus(mechanism, asked, amount if limited else None, _SCOPES[mechanism], not mechanism.binds)


def _ready(record: Record) -> Condition:
    return Condition("Ready", "True", "Prepared", f"prepared on this node for {record.ref.namespace}/{record.ref.name}")


def _enforced(data: DeviceData) -> Condition:
    if data.admin:
        return Condition("Enforced", "True", "AdminAccess", "given for watching; there is nothing to limit")
    weak = {name: one for name, one in data.capacities.items() if one.mechanism in _LIMITLESS or one.lifted}
    if not weak:
        return Condition("Enforced", "True", "LimitsBind", "no container can lift the limits of this device")
    text = "; ".join(f"{name}: {_WORTH[one.mechanism]}" for name, one in sorted(weak.items()))
    counted = all(one.mechanism is Mechanism.ACCOUNTING for one in weak.values())
    main = {"computePercent", "memory"} & weak.keys()
    if counted and not main:
        return Condition("Enforced", "True", "LimitsBind", f"SMs and memory are limited; {text}"[:_MAX_MESSAGE])
    reason = "Cooperative" if any(weak[name].mechanism is Mechanism.COOPERATIVE for name in main) else "NotLimited"
    return Condition("Enforced", "False", reason, text[:_MAX_MESSAGE])


def _healthy(part: PartHealth | None) -> tuple[Condition, ...]:
    if part is None:
        return ()
    text = part.reason or ("nothing is known to be wrong" if part.verdict is Verdict.HEALTHY else "not looked at yet")
    return (Condition("Healthy", _HEALTHY[part.verdict], part.verdict.value, text[:_MAX_MESSAGE]),)


_HEALTHY = {Verdict.HEALTHY: "True", Verdict.UNHEALTHY: "False", Verdict.UNKNOWN: "Unknown"}
_LIMITLESS = (Mechanism.ACCOUNTING, Mechanism.TIME_SLICE)
_WORTH = {
    Mechanism.HARDWARE: "the hardware limits it",
    Mechanism.CGROUP: "the driver limits the pod",
    Mechanism.NAMESPACE: "MPS limits each process",
    Mechanism.COOPERATIVE: "MPS limits each process, and a container can lift it",
    Mechanism.TIME_SLICE: "processes take turns, nothing limits them",
    Mechanism.ACCOUNTING: "the scheduler counts it, nothing limits it",
}


def _is_observer(record: Record, prepared: PreparedDevice) -> bool:
    share_id = prepared.share_id or ""
    hold = next((one for one in record.holds if (one.device, one.share_id) == (prepared.device, share_id)), None)
    return hold is not None and hold.access is Access.OBSERVER


def _is_of(share: HeldShare, prepared: PreparedDevice) -> bool:
    return share.device == prepared.device and share.share_id == (prepared.share_id or "")


def _encoded(data: DeviceData) -> bytes:
    """Return the JSON, without its notes should they be too long for a claim's status."""
    raw = msgspec.json.encode(data)
    return raw if len(raw) <= MAX_DATA_BYTES else msgspec.json.encode(msgspec.structs.replace(data, notes=()))
