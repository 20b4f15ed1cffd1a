"""Which DeviceTaintRules take a GPU out of service, and what becomes of the claims on it. Pure.

A rule names one device, or all devices of a pool; so a GPU has as many rules as devices. Each names driver, pool and
device, and the UUID that was meant stands in an annotation. Rules that others made are left alone.
"""

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dra_gpu.api import cordon
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule, DeviceTaintSelector, taint_rule
from dra_gpu.api.resource_v1 import DeviceTaint, DeviceToleration, ObjectMeta
from dra_gpu.cli.gpu_target import GpuTarget
from dra_gpu.cli.listing import Claim

_LONGEST_NAME = 253  # of an object, in characters


class Effect(enum.Enum):
    """What becomes of pods."""

    CORDON = "NoSchedule"  # no new ones
    DRAIN = "NoExecute"  # those that are there are evicted, too


@dataclass(frozen=True, slots=True)
class RulePlan:
    """What has to be written.

    Attributes:
        create: rules that are missing.
        change: rules that are there and weaker than wanted, or of another board.
        keep: rules that are as they should be.
    """

    create: tuple[DeviceTaintRule, ...] = ()
    change: tuple[DeviceTaintRule, ...] = ()
    keep: tuple[DeviceTaintRule, ...] = ()

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of all rules of the GPU, once the plan is carried out."""
        return tuple(rule.metadata.name for rule in (*self.create, *self.change, *self.keep))


def of_gpu(gpu: GpuTarget, rules: Iterable[DeviceTaintRule]) -> list[DeviceTaintRule]:
    """Return those of our rules that are about a GPU, also about devices of it that are not published any more."""
    return [rule for rule in rules if _is_about(gpu, rule)]


def plan(gpu: GpuTarget, rules: Iterable[DeviceTaintRule], effect: Effect) -> RulePlan:
    """Return what has to be written so that a GPU is out of service. What is stronger than wanted stays so.

    Args:
        gpu: the GPU.
        rules: what is there.
        effect: what is wanted.
    """
    there = {_device_of(rule): rule for rule in of_gpu(gpu, rules)}
    create, change, keep = [], [], []
    for device in gpu.usable:
        rule = there.pop(device, None)
        if rule is None:
            create.append(_rule(gpu, device, effect))
        elif _effect_of(rule) not in (effect.value, Effect.DRAIN.value) or _gpu_of(rule) != gpu.uuid:
            stronger = Effect.DRAIN if _effect_of(rule) == Effect.DRAIN.value else effect
            wanted = _rule(gpu, device, stronger)
            metadata = msgspec.structs.replace(wanted.metadata, name=rule.metadata.name)
            change.append(msgspec.structs.replace(wanted, metadata=metadata))
        else:
            keep.append(rule)
    return RulePlan(tuple(create), tuple(change), (*keep, *there.values()))


class Fate(enum.Enum):
    """What becomes of the pods of a claim when its GPU is drained."""

    EVICTED = "evicted"
    LATER = "evicted later"  # a toleration says after how long
    STAYS = "stays"  # a toleration says so


class Held(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A claim that has something of a GPU.

    Attributes:
        namespace, name, uid: the claim.
        devices: what it has.
        pods: who uses it.
        fate: what becomes of them in a drain: `evicted`, `evicted later`, `stays`.
        after_seconds: when, if later.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[str, ...]
    pods: tuple[str, ...] = ()
    fate: str = Fate.EVICTED.value
    after_seconds: int = 0

    @property
    def shown(self) -> str:
        """Name for a message."""
        return f"{self.namespace}/{self.name}"


def held(gpu: GpuTarget, claims: Iterable[Claim]) -> list[Held]:
    """Return the claims that have something of a GPU, and what a drain does to their pods."""
    found = []
    for claim in claims:
        allocation = claim.status.allocation
        results = [
            result
            for result in (allocation.devices.results if allocation else ())
            if (result.driver, result.pool) == (gpu.driver, gpu.pool) and result.device in gpu.usable
        ]
        if not results:
            continue
        taint = DeviceTaint(cordon.TAINT_KEY, Effect.DRAIN.value)
        # One device whose taint is not put up with is enough: the pod goes as a whole.
        waits = [_tolerated_for(taint, result.tolerations) for result in results]
        after = min((wait for wait in waits if wait is not None), default=None)
        fate = Fate.STAYS if after is None else Fate.LATER if after else Fate.EVICTED
        found.append(
            Held(
                namespace=claim.metadata.namespace,
                name=claim.metadata.name,
                uid=claim.metadata.uid,
                devices=tuple(dict.fromkeys(result.device for result in results)),
                pods=tuple(one.name for one in claim.status.reserved_for if one.resource == "pods"),
                fate=fate.value,
                after_seconds=after or 0,
            )
        )
    return sorted(found, key=lambda one: (one.namespace, one.name))


def _tolerated_for(taint: DeviceTaint, tolerations: Sequence[DeviceToleration]) -> int | None:
    """Return for how many seconds a taint is put up with; None for ever.

    Only tolerations that name the effect count: with an empty one a pod is scheduled, and evicted all the same.
    Source: K8s v1.37 pkg/controller/devicetainteviction, claimEvictionTime.
    """
    shortest: int | None = None
    for one in tolerations:
        if one.effect != taint.effect or one.key not in ("", taint.key):
            continue
        if one.operator != "Exists" and one.value != taint.value:
            continue
        if one.toleration_seconds is None:
            return None
        seconds = max(one.toleration_seconds, 0)
        shortest = seconds if shortest is None else min(shortest, seconds)
    return shortest or 0


def _is_about(gpu: GpuTarget, rule: DeviceTaintRule) -> bool:
    selector = rule.spec.device_selector
    if cordon.CORDON_LABEL not in rule.metadata.labels or selector is None:
        return False
    if (selector.driver, selector.pool) != (gpu.driver, gpu.pool) or not selector.device:
        return False
    return selector.device in gpu.devices or (gpu.uuid != "" and _gpu_of(rule) == gpu.uuid)


def _rule(gpu: GpuTarget, device: str, effect: Effect) -> DeviceTaintRule:
    metadata = ObjectMeta(
        name=_name(gpu.pool, device),
        labels={cordon.CORDON_LABEL: "true"},
        annotations={cordon.GPU_ANNOTATION: gpu.uuid},
    )
    selector = DeviceTaintSelector(gpu.driver, gpu.pool, device)
    return taint_rule(metadata, selector, DeviceTaint(cordon.TAINT_KEY, effect.value))


def _name(pool: str, device: str) -> str:
    """Return the name of a device's rule: always the same, so that two who cordon it make one rule."""
    name = f"cordon.{pool.replace('/', '.')}.{device}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:200].rstrip('.-')}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _device_of(rule: DeviceTaintRule) -> str:
    return rule.spec.device_selector.device if rule.spec.device_selector else ""


def _effect_of(rule: DeviceTaintRule) -> str:
    return rule.spec.taint.effect if rule.spec.taint else ""


def _gpu_of(rule: DeviceTaintRule) -> str:
    return rule.metadata.annotations.get(cordon.GPU_ANNOTATION, "")
