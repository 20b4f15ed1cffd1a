"""Stands in for kube-scheduler in the local mode: `dra_gpu.scheduler` on the objects of the API server in memory.

One node, so there is nothing to filter or score; what it decides about devices is what kube-scheduler decides.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dra_gpu.api.resource_claim_v1 import DeviceClass, ResourceClaim
from dra_gpu.api.resource_v1 import ResourceSlice
from dra_gpu.scheduler import allocator, explanation
from dra_gpu.scheduler.held import Held
from dra_gpu.scheduler.model import Node

_T = TypeVar("_T")


class UnschedulableError(Exception):
    """A claim does not get its devices; the message is what the events of its pod would say."""


def allocate(
    claim: Mapping[str, Any],
    *,
    classes: Sequence[Mapping[str, Any]],
    slices: Sequence[Mapping[str, Any]],
    claims: Sequence[Mapping[str, Any]],
    node: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the allocation of a claim.

    Args:
        claim: a claim without an allocation.
        classes: every DeviceClass.
        slices: every ResourceSlice.
        claims: every other claim; those with an allocation hold what it says.
        node: the Node where its pod shall run.

    Raises:
        UnschedulableError: the claim does not fit on the node now, or never will.
    """
    return allocate_together([claim], classes=classes, slices=slices, claims=claims, node=node)[0]


def allocate_together(
    wanted: Sequence[Mapping[str, Any]],
    *,
    classes: Sequence[Mapping[str, Any]],
    slices: Sequence[Mapping[str, Any]],
    claims: Sequence[Mapping[str, Any]],
    node: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the allocations of the claims of one pod, in their order.

    Args:
        wanted: claims without an allocation.
        classes: every DeviceClass.
        slices: every ResourceSlice.
        claims: every other claim; those with an allocation hold what it says.
        node: the Node where its pod shall run.

    Raises:
        UnschedulableError: they do not fit on the node now, or never will.
    """
    metadata = node["metadata"]
    decided = allocator.allocate(
        _decoded(wanted, ResourceClaim),
        classes=_decoded(classes, DeviceClass),
        slices=_decoded(slices, ResourceSlice),
        held=Held.of(_decoded(claims, ResourceClaim)),
        node=Node(metadata["name"], metadata.get("labels", {})),
    )
    if isinstance(decided, allocator.NotAllocated):
        raise UnschedulableError(explanation.sentence(decided))
    allocations: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(decided.allocations))
    return allocations


def _decoded(objects: Sequence[Mapping[str, Any]], kind: type[_T]) -> list[_T]:
    """Read objects as they come over the wire: parameters of configs stay undecoded."""
    return msgspec.json.decode(msgspec.json.encode(objects), type=list[kind])  # type: ignore[valid-type]  # a type that is an argument
