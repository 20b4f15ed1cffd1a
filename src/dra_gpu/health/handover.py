"""What becomes of what another run, or another instance, has known of a GPU. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from dra_gpu.health.faults import Fault, GpuFaults, Instance, Part


def resumed(kept: GpuFaults) -> GpuFaults:
    """Return what was kept of a GPU, as it is known at a start: nobody has looked, and a look before proves nothing.

    What was heard after the last look is older than any reset that the next one notices by the marks of that look.
    """
    return replace(kept.each(_settled), seen=False, doubtful=0)


def joined(kept: GpuFaults, known: GpuFaults) -> GpuFaults:
    """Return a GPU by what another instance has written and this one has found meanwhile.

    The other one has heard the events, this one has only looked. The marks of resets are the other one's, to which its
    faults belong: the next look tells whether there was one since.

    Args:
        kept: what the other one wrote last.
        known: what this one knows.
    """
    later = kept.epoch - known.epoch
    theirs = resumed(kept)
    return replace(
        theirs,
        whole=_joined(theirs.whole, known.whole, later),
        instances=tuple(sorted(_instances(theirs, known, later), key=_place)),
        seen=known.seen,
        lost=known.lost if known.seen else kept.lost,
        gone=known.gone or kept.gone,
        doubtful=known.doubtful,
    )


def _instances(theirs: GpuFaults, known: GpuFaults, later: int) -> Iterator[Instance]:
    mine = {one.placement: one for one in known.instances}
    for one in theirs.instances:
        same = mine.pop(one.placement, None)
        if same is None or same.gpu_instance != one.gpu_instance:
            yield one
        else:
            yield replace(one, part=_joined(one.part, same.part, later))
    for one in mine.values():
        yield replace(one, part=_joined(Part(), one.part, later))


def _joined(kept: Part, known: Part, later: int) -> Part:
    part = kept
    for fault in known.faults:
        here = replace(fault, epoch=fault.epoch + later)
        there = kept.fault(fault.kind)
        if there is None or here.severity > there.severity:
            part = part.having(here)
        elif here.last > there.last:
            part = part.having(replace(there, last=here.last, epoch=max(here.epoch, there.epoch)))
    moments = [moment for moment in (kept.recovered, known.recovered) if moment is not None]
    return replace(
        part,
        relapses=max(kept.relapses, known.relapses, key=len),
        recovered=max(moments, default=None),
        stays=kept.stays or known.stays,
        since=kept.since if kept.serious else known.since or kept.since,
    )


def _settled(part: Part) -> Part:
    return replace(part, faults=tuple(_certain(fault) for fault in part.faults))


def _certain(fault: Fault) -> Fault:
    return replace(fault, provisional=False) if fault.provisional else fault


def _place(instance: Instance) -> tuple[int, int, int]:
    return instance.placement.start, instance.placement.size, instance.placement.profile
