"""From the pool that should be and the slices that are to the writes that are missing. Pure.

The generation of a pool rises only when another set of devices (or of counters) is published: consumers then see
nothing of the pool until the last slice of the new generation has arrived. Taints, attributes and capacities change
in place, in the slices that hold them and no others. A slice that somebody deleted is written again at the
generation of the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_gpu.api.resource_v1 import (
    API_VERSION,
    ObjectMeta,
    OwnerReference,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_gpu.apiserver.slice_content import content_of, keep_taint_times, same_accounting, same_content
from dra_gpu.apiserver.slice_names import slice_name
from dra_gpu.inventory.slices import SliceContent

MANAGED_BY_LABEL = "resource.dra-gpu.dev/managed-by"
MANAGED_BY = "dra-driver-gpu"
"""Slices with this label are ours; any other slice of our driver's name on our node is a foreign master's."""


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """Whose slices: the driver's name, the node's and the pool's (usually the node's again)."""

    driver: str
    node: str
    pool: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was sent for a slice, and what the server made of it: fields of disabled features are missing there."""

    sent: SliceContent
    stored: SliceContent


@dataclass(frozen=True, slots=True)
class Write:
    """One slice to create, or to update if `existing` is there."""

    body: ResourceSlice
    existing: ResourceSlice | None

    @property
    def content(self) -> SliceContent:
        """What the slice carries."""
        return content_of(self.body.spec)


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """Deletions first, then the writes in order: counter sets before the devices that draw on them."""

    generation: int
    deletes: tuple[ResourceSlice, ...]
    writes: tuple[Write, ...]

    @property
    def is_empty(self) -> bool:
        """Nothing is to be done."""
        return not self.deletes and not self.writes


def is_ours(published: ResourceSlice) -> bool:
    """Tell whether this driver wrote a slice."""
    return published.metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY


def plan_slices(
    identity: PoolIdentity,
    contents: Sequence[SliceContent],
    existing: Sequence[ResourceSlice],
    owner: OwnerReference,
    *,
    accepted: Mapping[str, Accepted] | None = None,
    last_generation: int = 1,
) -> SlicePlan:
    """Return what is missing between `existing` (our slices of this driver and node) and the pool of `contents`.

    Args:
        identity: whose slices.
        contents: the slices wanted, in order.
        existing: our slices as they are.
        owner: the node, as owner of every slice.
        accepted: by object name, what the server is known to make of a content.
        last_generation: used for a pool of which nothing is left.
    """
    devices = {device.name: device for one in existing for device in one.spec.devices}
    wanted = {
        slice_name(index, identity.driver, identity.node, identity.pool): keep_taint_times(content, devices)
        for index, content in enumerate(contents)
    }
    known = {one.metadata.name: one for one in existing}
    deletes = tuple(one for one in existing if one.metadata.name not in wanted)
    present = {name: one for name, one in known.items() if name in wanted}
    takes = accepted or {}
    newest = max((one.spec.pool.generation for one in existing), default=last_generation)
    latest = [one for one in existing if one.spec.pool.generation == newest]
    generation = newest if _is_same_set(identity, wanted, latest, takes) else newest + 1
    writes = [
        Write(_body(identity, name, content, generation, len(wanted), owner, present.get(name)), present.get(name))
        for name, content in wanted.items()
        if name not in present
        or present[name].spec.pool != ResourcePool(identity.pool, generation, len(wanted))
        or owner not in present[name].metadata.owner_references
        or not _is_published(content, present[name], takes.get(name))
    ]
    writes.sort(key=lambda write: bool(write.body.spec.devices))
    return SlicePlan(generation, deletes, tuple(writes))


def _is_published(content: SliceContent, existing: ResourceSlice, accepted: Accepted | None) -> bool:
    stored = content_of(existing.spec)
    if same_content(content, stored):
        return True
    return accepted is not None and same_content(content, accepted.sent) and same_content(stored, accepted.stored)


def _is_same_set(
    identity: PoolIdentity,
    wanted: Mapping[str, SliceContent],
    latest: Sequence[ResourceSlice],
    accepted: Mapping[str, Accepted],
) -> bool:
    """Tell whether every slice of the newest generation is one of the wanted, with the same devices and counters.

    Slices of older generations do not count: consumers ignore them, and a run that broke off left them behind.
    """
    for one in latest:
        content = wanted.get(one.metadata.name)
        pool = ResourcePool(identity.pool, one.spec.pool.generation, len(wanted))
        if content is None or one.spec.pool != pool or one.spec.node_name != identity.node:
            return False
        if not same_accounting(content, content_of(one.spec)) and not _is_published(
            content, one, accepted.get(one.metadata.name)
        ):
            return False
    return True


def _body(
    identity: PoolIdentity,
    name: str,
    content: SliceContent,
    generation: int,
    count: int,
    owner: OwnerReference,
    existing: ResourceSlice | None,
) -> ResourceSlice:
    before = existing.metadata if existing is not None else ObjectMeta()
    return ResourceSlice(
        api_version=API_VERSION,
        kind="ResourceSlice",
        metadata=ObjectMeta(
            name=name,
            uid=before.uid,
            resource_version=before.resource_version,
            labels={**before.labels, MANAGED_BY_LABEL: MANAGED_BY},
            annotations=before.annotations,
            owner_references=[owner],
        ),
        spec=ResourceSliceSpec(
            driver=identity.driver,
            pool=ResourcePool(identity.pool, generation, count),
            node_name=identity.node,
            devices=list(content.devices),
            shared_counters=list(content.counter_sets),
        ),
    )
