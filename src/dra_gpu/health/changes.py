"""What there is to say when the health of GPUs changed. Pure."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_gpu.health.state import Effect, GpuHealth, HealthTaint, PartHealth, Verdict
from dra_gpu.inventory.model import MigPlacement


class ChangeKind(enum.Enum):
    """What became of a GPU or a partition."""

    SICK = "sick"
    WELL = "well"
    NOTICE = "notice"  # something happened that changes nothing
    KNOWN = "known"  # it has been looked at for the first time


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to say.

    Attributes:
        kind: what became of it.
        gpu: UUID of the GPU.
        placement: which partition of it; None for the GPU as such.
        text: what is wrong, for a person; empty when nothing is.
    """

    kind: ChangeKind
    gpu: str
    placement: MigPlacement | None
    text: str


def changes(before: Mapping[str, GpuHealth], after: Mapping[str, GpuHealth]) -> tuple[Change, ...]:
    """Return what is new. A GPU that was not there before is none: what is known of it is of an earlier run."""
    return tuple(
        change
        for uuid, gpu in after.items()
        if uuid in before and gpu != before[uuid]
        for change in _of_gpu(before[uuid], gpu)
    )


def _of_gpu(before: GpuHealth, after: GpuHealth) -> Iterator[Change]:
    yield from _of_part(after.gpu, None, before.whole, after.whole)
    for placement in {**before.partitions, **after.partitions}:
        well = PartHealth(Verdict.HEALTHY)
        part = after.partitions.get(placement, well)
        yield from _of_part(after.gpu, placement, before.partitions.get(placement, well), part)


def _of_part(gpu: str, placement: MigPlacement | None, before: PartHealth, after: PartHealth) -> Iterator[Change]:
    sick = after.verdict is Verdict.UNHEALTHY
    if sick and (_serious(after) - _serious(before) or after.stays > before.stays):
        yield Change(ChangeKind.SICK, gpu, placement, after.reason)
    elif not sick and before.verdict is Verdict.UNHEALTHY:
        yield Change(ChangeKind.WELL, gpu, placement, after.reason)
    elif not sick and _notices(after) - _notices(before):
        yield Change(ChangeKind.NOTICE, gpu, placement, after.reason)
    elif after.verdict is not before.verdict:
        yield Change(ChangeKind.KNOWN, gpu, placement, after.reason)


def _serious(part: PartHealth) -> frozenset[tuple[str, str]]:
    return frozenset(_name(taint) for taint in part.taints if taint.effect is not Effect.NONE)


def _notices(part: PartHealth) -> frozenset[tuple[str, str]]:
    return frozenset(_name(taint) for taint in part.taints if taint.effect is Effect.NONE)


def _name(taint: HealthTaint) -> tuple[str, str]:
    return taint.key, taint.value
