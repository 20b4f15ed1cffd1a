"""How well each GPU is at this moment, as every output tells it: taints, pod status, claims, Events, metrics. Pure."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import MigPlacement


class Verdict(enum.Enum):
    """Whether a GPU, or a partition of it, can be relied on. The values are those of a pod's status."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


class Effect(enum.Enum):
    """What a taint does. Source: K8s v1.37 k8s.io/api/resource/v1 DeviceTaintEffect."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class HealthTaint:
    """A taint that a sick GPU has on its devices.

    Attributes:
        key: what is wrong; a device never has two of one key.
        effect: what follows for pods.
        value: more about it, such as the number of an XID.
        added: when it came, in whole seconds, UTC; an eviction counts from then.
    """

    key: str
    effect: Effect
    value: str
    added: datetime


@dataclass(frozen=True, slots=True)
class PartHealth:
    """How well a whole GPU is, or one MIG partition of it.

    Attributes:
        verdict: whether it can be relied on; Unknown before the first look at it.
        taints: what its devices carry, by key; notices stand here although the verdict is Healthy.
        reason: what is wrong, why, and what to do, for a person; empty when nothing is.
        since: when it came to this verdict, UTC; None while it is Unknown.
        relapses: how often it became sick again within the last hour.
        stays: it stays sick until a person clears it.
    """

    verdict: Verdict = Verdict.UNKNOWN
    taints: tuple[HealthTaint, ...] = ()
    reason: str = ""
    since: datetime | None = None
    relapses: int = 0
    stays: bool = False


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """How well one GPU is.

    Attributes:
        gpu: its UUID.
        whole: of the GPU as such; what is wrong with it is wrong with every partition.
        partitions: by place, of those MIG instances that are sick for themselves.
        lost: the GPU is gone for the library; nothing can be prepared on it.
    """

    gpu: str
    whole: PartHealth = field(default_factory=PartHealth)
    partitions: Mapping[MigPlacement, PartHealth] = field(default_factory=dict)
    lost: bool = False

    def of(self, placement: MigPlacement | None) -> PartHealth:
        """Return how well a partition is, its GPU's troubles included; None is the whole GPU."""
        part = self.partitions.get(placement) if placement is not None else None
        if part is None:
            return self.whole
        if part.verdict is not Verdict.UNHEALTHY and self.whole.verdict is not Verdict.HEALTHY:
            part = PartHealth(self.whole.verdict, part.taints, part.reason, self.whole.since)
        keys = {taint.key for taint in self.whole.taints}
        taints = (*self.whole.taints, *(taint for taint in part.taints if taint.key not in keys))
        return PartHealth(
            part.verdict,
            tuple(sorted(taints, key=lambda taint: taint.key)),
            "; ".join(reason for reason in (self.whole.reason, part.reason) if reason),
            part.since,
            max(part.relapses, self.whole.relapses),
            part.stays or self.whole.stays,
        )


def of_device(states: Mapping[str, GpuHealth], device: PublishedDevice) -> PartHealth:
    """Return how well the GPU or partition behind a device is; Unknown where nobody has looked yet.

    Args:
        states: by UUID.
        device: any view of it; the views of one partition share its health.
    """
    gpu = states.get(device.gpu.uuid)
    return gpu.of(device.placement) if gpu is not None else PartHealth()


class HealthStates(Protocol):
    """Where those who tell of health get it from."""

    def states(self) -> Mapping[str, GpuHealth]:
        """Return how well every GPU is that was there in this boot, by UUID; the mapping is never changed later."""

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called, on the loop, after each change of `states`; returns what ends that.

        The function must return at once and not raise.
        """
