"""What follows from what a vendor reports: one GPU's faults before, something reported, its faults afterwards. Pure.

An event adds what happened; a look adds what is wrong now, and is what a recovery needs. A workload's own errors never
hide a GPU's, and the last thing reported never wins over a graver one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dra_gpu.health.faults import Fault, FaultKind, GpuFaults, Instance, Part
from dra_gpu.health.recovery import RecoveryRules
from dra_gpu.health.xids import Severity, XidRules, describe
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.vendors.health import HealthEvent, HealthEventKind, HealthProbe, RecoveryAction

NOTICE_STANDS = timedelta(minutes=1)
"""A notice is not replaced by another one for so long: a workload that fails in many ways must not rewrite slices."""
DOUBTFUL_LOOKS = 2
"""So many looks in a row without an answer, or with something that is wrong, are a fault; one may be a busy node."""
_ACTIONS = {
    RecoveryAction.RESET: (Severity.FATAL, "reset the GPU"),
    RecoveryAction.REBOOT: (Severity.FATAL, "reboot the node"),
    RecoveryAction.DRAIN_P2P: (Severity.CORDON, "let its peers' workloads end, then restart what uses NVLink"),
    RecoveryAction.DRAIN_AND_RESET: (Severity.CORDON, "let its workloads end, then reset the GPU"),
    RecoveryAction.RECOVER_IMEX: (Severity.CORDON, "let the workloads of its IMEX domain end, then restart the domain"),
}


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The policy of a node.

    Attributes:
        xids: how XIDs are judged.
        recovery: when a GPU is well again.
    """

    xids: XidRules = field(default_factory=XidRules)
    recovery: RecoveryRules = field(default_factory=RecoveryRules)

    def happened(self, gpu: GpuFaults, event: HealthEvent, placement: MigPlacement | None, now: datetime) -> GpuFaults:
        """Return a GPU after an event.

        Args:
            gpu: how it was before.
            event: what happened.
            placement: where the instance lies that the event is confined to; None for an event of the whole GPU.
            now: the present.
        """
        fault = self._of_event(event, gpu.epoch, now)
        if fault is None:
            return gpu
        if placement is None or event.gpu_instance is None or fault.severity is Severity.LOST:
            lost = gpu.lost or (fault.kind is FaultKind.LOST and event.count > 0)  # else the last look has seen it
            return replace(gpu, whole=self._worse(gpu.whole, fault, now), lost=lost)
        known = next((one for one in gpu.instances if one.placement == placement), None)
        part = known.part if known is not None and known.gpu_instance == event.gpu_instance else Part()
        others = tuple(one for one in gpu.instances if one.placement != placement)
        instance = Instance(placement, event.gpu_instance, self._worse(part, fault, now))
        return replace(gpu, instances=tuple(sorted((*others, instance), key=_place)))

    def looked(self, gpu: GpuFaults, probe: HealthProbe, boot: str, now: datetime, *, current: bool) -> GpuFaults:
        """Return a GPU after a look.

        Args:
            gpu: how it was before.
            probe: what was found.
            boot: id of this boot.
            now: the present.
            current: nothing was reported since the look began; otherwise it proves nothing good.
        """
        is_back = gpu.gone and not (probe.lost or probe.unresponsive)
        was_reset = is_back or bool(gpu.boot and boot != gpu.boot) or probe.reset_since(gpu.reset_mark, gpu.counter)
        epoch = gpu.epoch + was_reset
        seen = replace(
            gpu.each(lambda part: part.not_after(now)),
            epoch=epoch,
            boot=boot,
            reset_mark=probe.reset_mark or gpu.reset_mark,
            counter=gpu.counter if probe.counter is None else probe.counter,
            seen=True,
            gone=probe.lost or (gpu.gone and probe.unresponsive),
            doubtful=gpu.doubtful + 1 if probe.unresponsive or probe.problem else 0,
            lost=probe.lost if current else gpu.lost or probe.lost,
        )
        if current:
            seen = seen.each(lambda part: _settled(part, epoch))
        whole = seen.whole if seen.whole.since is not None else replace(seen.whole, since=now)
        for fault in _of_probe(probe, epoch, now, doubtful=seen.doubtful):
            whole = self._worse(whole, fault, now)
        seen = replace(seen, whole=whole)
        if current and probe.good:
            seen = seen.each(lambda part: self.recovery.recovered(part, epoch, now))
        return seen.each(lambda part: self.recovery.faded(part, epoch, now))

    def monitored(self, gpu: GpuFaults, now: datetime, *, by_events: bool) -> GpuFaults:
        """Return a GPU of which it is known whether its events are seen."""
        if by_events:
            return replace(gpu, whole=gpu.whole.without(lambda fault: fault.kind is FaultKind.UNMONITORED))
        text = "what happens to this GPU is not reported, only noticed by looking at it every few seconds"
        fault = Fault(FaultKind.UNMONITORED, Severity.NOTICE, "", text, _whole_seconds(now), now, gpu.epoch)
        known = gpu.whole.fault(FaultKind.UNMONITORED)
        return gpu if known is not None else replace(gpu, whole=gpu.whole.having(fault))

    def cleared(self, gpu: GpuFaults, now: datetime) -> GpuFaults:
        """Return a GPU that a person calls well: what is still wrong is found again by the next look."""

        def well(part: Part) -> Part:
            since = now if part.serious else part.since
            return Part(part.without(lambda fault: fault.kind is not FaultKind.UNMONITORED).faults, since=since)

        return replace(gpu.each(well), lost=False)

    def without_instance(self, gpu: GpuFaults, placement: MigPlacement) -> GpuFaults:
        """Return a GPU of which an instance was destroyed: the next one there is another one."""
        return replace(gpu, instances=tuple(one for one in gpu.instances if one.placement != placement))

    def _of_event(self, event: HealthEvent, epoch: int, now: datetime) -> Fault | None:
        detail = f" ({event.detail})" if event.detail else ""
        match event.kind:
            case HealthEventKind.XID if event.xid is not None:
                severity = self.xids.severity(event.xid)
                if severity is None:
                    return None
                kind = FaultKind.XID if severity > Severity.NOTICE else FaultKind.XID_NOTICE
                value, text = str(event.xid), describe(event.xid) + detail
            case HealthEventKind.LOST:
                kind, severity, value = FaultKind.LOST, Severity.LOST, ""
                text = f"the GPU is lost{detail}: reset it, or reboot the node"
            case HealthEventKind.ECC:
                # What follows from it is said by the XID that comes with it, and by the recovery action.
                kind, severity, value = FaultKind.MEMORY, Severity.NOTICE, ""
                text = f"an uncorrectable memory error{detail}"
            case _:
                return None  # a changed recovery action is found by the look that follows
        # A lost GPU comes back by nothing but a reset, so that one which has been found since was reset afterwards.
        provisional = severity in (Severity.CORDON, Severity.FATAL)
        return Fault(kind, severity, value, text, _whole_seconds(now), now, epoch, provisional)

    def _worse(self, part: Part, fault: Fault, now: datetime) -> Part:
        """Return a part with one more fault; of two of a kind the graver stays, and of two as grave the first."""
        known = part.fault(fault.kind)
        if known is not None and not _replaces(fault, known):
            fault = replace(known, last=now, epoch=fault.epoch, provisional=fault.provisional)
        worse = part.having(fault)
        return self.recovery.sickened(worse, now) if worse.serious and not part.serious else worse


def _replaces(fault: Fault, known: Fault) -> bool:
    if fault.severity != known.severity:
        return fault.severity > known.severity or fault.kind is FaultKind.ACTION
    if fault.value == known.value:
        return False
    match fault.kind:
        case FaultKind.ACTION:
            return True
        case FaultKind.XID_NOTICE:
            return fault.since - known.since >= NOTICE_STANDS
        case _:
            return False


def _settled(part: Part, epoch: int) -> Part:
    """Return a part whose last event is older than this look: a reset that it has noticed came before the event."""
    if not any(fault.provisional for fault in part.faults):
        return part
    faults = (replace(one, epoch=epoch, provisional=False) if one.provisional else one for one in part.faults)
    return replace(part, faults=tuple(faults))


def _of_probe(probe: HealthProbe, epoch: int, now: datetime, doubtful: int) -> Iterator[Fault]:
    def fault(kind: FaultKind, severity: Severity, text: str, value: str = "") -> Fault:
        return Fault(kind, severity, value, text, _whole_seconds(now), now, epoch)

    if probe.lost:
        text = f"the GPU is lost: {probe.problem or 'reset it, or reboot the node'}"
        yield fault(FaultKind.LOST, Severity.LOST, text)
    elif doubtful >= DOUBTFUL_LOOKS and probe.unresponsive:
        yield fault(FaultKind.UNRESPONSIVE, Severity.CORDON, "the GPU does not answer: reset it if this lasts")
    elif doubtful >= DOUBTFUL_LOOKS:
        yield fault(FaultKind.PROBLEM, Severity.CORDON, probe.problem)
    if probe.fabric_problem:
        yield fault(FaultKind.FABRIC, Severity.CORDON, probe.fabric_problem)
    if probe.recovery_action in _ACTIONS:
        severity, remedy = _ACTIONS[probe.recovery_action]
        text = f"the driver asks for recovery action {probe.recovery_action.value}: {remedy}"
        yield fault(FaultKind.ACTION, severity, text, probe.recovery_action.value)


def _place(instance: Instance) -> tuple[int, int, int]:
    return instance.placement.start, instance.placement.size, instance.placement.profile


def _whole_seconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)
