"""From what is wrong with a GPU to what is told of it: verdict, taints and words. Pure."""

import enum

from dra_gpu.health.faults import Fault, GpuFaults, Part
from dra_gpu.health.state import Effect, GpuHealth, HealthTaint, PartHealth, Verdict
from dra_gpu.health.xids import Severity

MAX_REASON = 1024
"""Bytes that the kubelet takes of a message about a device (K8s v1.37, pkg/kubelet/cm/dra)."""


class Evict(enum.Enum):
    """Whose pods are evicted. By default nobody's: what still runs is worth more than a clean node."""

    NEVER = "never"
    LOST = "lost"  # those on a GPU that is gone
    FATAL = "fatal"  # those on a GPU that needs a reset, too


_EVICTED = {Evict.NEVER: Severity.LOST + 1, Evict.LOST: Severity.LOST, Evict.FATAL: Severity.FATAL}


def told(gpu: GpuFaults, driver: str, evict: Evict) -> GpuHealth:
    """Return what is told of a GPU.

    Args:
        gpu: what is known to be wrong.
        driver: our driver's name, the domain of the taints.
        evict: whose pods are evicted.
    """
    return GpuHealth(
        gpu.gpu,
        _part(gpu.whole, driver, evict, seen=gpu.seen),
        {one.placement: _part(one.part, driver, evict, seen=gpu.seen) for one in gpu.instances if one.part.faults},
        gpu.lost,
    )


def _part(part: Part, driver: str, evict: Evict, *, seen: bool) -> PartHealth:
    well = Verdict.HEALTHY if seen else Verdict.UNKNOWN
    verdict = Verdict.UNHEALTHY if part.serious else well
    return PartHealth(
        verdict,
        tuple(
            HealthTaint(f"{driver}/{fault.kind.value}", _effect(fault, evict), fault.value, fault.since)
            for fault in part.faults
        ),
        _reason(part),
        None if verdict is Verdict.UNKNOWN else part.since,
        len(part.relapses),
        part.stays,
    )


def _effect(fault: Fault, evict: Evict) -> Effect:
    if not fault.serious:
        return Effect.NONE
    return Effect.NO_EXECUTE if fault.severity >= _EVICTED[evict] else Effect.NO_SCHEDULE


def _reason(part: Part) -> str:
    gravest_first = sorted(part.faults, key=lambda fault: -fault.severity)
    texts = [fault.text for fault in gravest_first if fault.serious or not part.serious]
    if part.stays:
        texts.insert(0, f"sick again {len(part.relapses)} times within an hour: it stays so until a person clears it")
    text = "; ".join(texts).encode()
    return text[:MAX_REASON].decode("utf-8", "ignore")
