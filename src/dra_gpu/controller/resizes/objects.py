"""Claims and pods as far as a resize needs them, and what can be said of one alone. Pure.

What is read here is never written back whole: of a claim only `status.reservedFor` is, under its version.
"""

from typing import Any, Final

import msgspec

from dra_gpu.api import claim_resize
from dra_gpu.api.claim_resize import GROUP, GROWTH_LABEL, PLURAL, Target
from dra_gpu.api.resource_claim_v1 import ResourceClaimSpec
from dra_gpu.api.resource_v1 import (
    DeviceRequestAllocationResult,
    ObjectMeta,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dra_gpu.apiserver.resources import Resource
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts

UNSCHEDULABLE: Final = "Unschedulable"


class Meta(ObjectMeta, rename="camel", omit_defaults=True, frozen=True):
    """Metadata with the time of deletion, which says that an object is ending."""

    deletion_timestamp: str | None = None


class Claim(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A claim: what it asks for, what it got, and who may use it."""

    metadata: Meta = Meta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class PodSpec(msgspec.Struct, rename="camel", frozen=True):
    """What of a pod decides where it may run and before whom."""

    node_name: str = ""
    tolerations: list[dict[str, Any]] = []
    priority_class_name: str = ""
    scheduler_name: str = ""


class PodCondition(msgspec.Struct, rename="camel", frozen=True):
    """One thing that holds or does not."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, rename="camel", frozen=True):
    """How far a pod has come."""

    phase: str = ""
    conditions: list[PodCondition] = []


class Pod(msgspec.Struct, rename="camel", frozen=True):
    """A pod."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True, type=Claim)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True, type=Pod)


def result_of(claim: Claim, target: Target) -> DeviceRequestAllocationResult | None:
    """Return the result of a claim's allocation that is this device and share; None where it has another, or none."""
    for one in results(claim):
        if (one.driver, one.pool, one.device, one.share_id) == (
            target.driver,
            target.pool,
            target.device,
            target.share_id,
        ):
            return one
    return None


def results(claim: Claim) -> list[DeviceRequestAllocationResult]:
    """Return what a claim was allocated."""
    allocation = claim.status.allocation
    return [] if allocation is None else allocation.devices.results


def is_entry(one: ResourceClaimConsumerReference, name: str) -> bool:
    """Tell whether an entry of `status.reservedFor` is the ClaimResize of this name."""
    return (one.api_group, one.resource, one.name) == (GROUP, PLURAL, name)


def is_held(claim: Claim, name: str) -> bool:
    """Tell whether a claim is allocated and stays so for the ClaimResize of this name, whoever else lets go."""
    return claim.status.allocation is not None and any(is_entry(one, name) for one in claim.status.reserved_for)


def is_used(claim: Claim, name: str) -> bool:
    """Tell whether anybody beside the ClaimResize of this name may use a claim."""
    return any(not is_entry(one, name) for one in claim.status.reserved_for)


def entries_with(claim: Claim, name: str, uid: str) -> list[ResourceClaimConsumerReference]:
    """Return `status.reservedFor` with an entry for a ClaimResize."""
    entry = ResourceClaimConsumerReference(resource=PLURAL, name=name, uid=uid, api_group=GROUP)
    return [*claim.status.reserved_for, entry]


def entries_without(claim: Claim, name: str) -> list[ResourceClaimConsumerReference]:
    """Return `status.reservedFor` without the entries for the ClaimResize of this name."""
    return [one for one in claim.status.reserved_for if not is_entry(one, name)]


def growth_of(claim: Claim, target: Target) -> Amounts | None:
    """Return what a growth was allocated of the device that it is meant for; None where it has none of it."""
    for one in results(claim):
        if (one.driver, one.pool, one.device) == (target.driver, target.pool, target.device):
            return amounts.parse(one.consumed_capacity)
    return None


def requested(claim: Claim) -> Amounts:
    """Return what a growth asks for."""
    for request in claim.spec.devices.requests:
        if request.exactly is not None and request.exactly.capacity is not None:
            return amounts.parse(request.exactly.capacity.requests)
    return Amounts()


def owner(meta: ObjectMeta) -> str | None:
    """Return the name of the ClaimResize for which a growth or its pod was made; None where it is none."""
    if GROWTH_LABEL not in meta.labels:
        return None
    return next((one.name for one in meta.owner_references if one.kind == claim_resize.KIND), None)


def has_ended(pod: Pod) -> bool:
    """Tell whether a pod will not hold a place any more."""
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in ("Succeeded", "Failed")


def unschedulable(pod: Pod) -> str | None:
    """Return what the scheduler says of a pod that it has found no place for; None while it has not said so."""
    if pod.spec.node_name:
        return None
    for one in pod.status.conditions:
        if one.type == "PodScheduled" and one.status == "False" and one.reason == UNSCHEDULABLE:
            return one.message
    return None
