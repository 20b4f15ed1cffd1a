"""Removes the ResourceSlices of nodes that do not exist any more.

Kubernetes removes a slice with the Node that owns it. Where its garbage collector lags or has stopped, slices stay and
offer devices that nobody can reach; a pod that gets one waits for ever. Only slices of our drivers that a Node owns are
looked at, and of them and of the nodes only the metadata. A node must have been missing for the whole grace.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from dra_gpu.api.resource_v1 import ObjectMeta, OwnerReference
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.resources import NODE_METADATA, RESOURCE_SLICES, SLICE_METADATA, Unstructured

LOOK_SECONDS = 300.0
GRACE_SECONDS = 600.0
_JITTER = 0.1
_LIST_SECONDS = 60.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class LostNodes:
    """Looks for slices without a node.

    Attributes:
        api: the API server.
        drivers: names of our drivers.
        may_write: whether this replica leads; asked before each write.
        grace: seconds for which a node must have been missing.
        period: seconds between two looks.
        clock: monotonic time.
        removed: how many slices were removed.
        failed: how many looks failed.
    """

    api: KubernetesApi
    drivers: frozenset[str]
    may_write: Callable[[], bool] = lambda: True
    grace: float = GRACE_SECONDS
    period: float = LOOK_SECONDS
    clock: Clock = field(default_factory=SystemClock)
    removed: int = 0
    failed: int = 0
    _missing: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Look until cancelled; a look that fails is repeated with the next."""
        while True:
            try:
                await self.look()
            except errors.ApiError as error:
                self.failed += 1
                _log.warning("slices cannot be compared with nodes; tried again", reason=str(error))
            await self.clock.sleep(self.period * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - spreads load

    async def look(self) -> None:
        """Look once.

        Raises:
            ApiError: nodes or slices could not be listed, or a slice not be removed.
        """
        owned = {
            one.metadata.uid: one.metadata for driver in sorted(self.drivers) for one in await self._slices(driver)
        }
        # Nodes after slices: one that was made in between is there.
        nodes = {one.metadata.uid for one in (await self.api.list(NODE_METADATA, deadline=_LIST_SECONDS)).items}
        now = self.clock.now()
        lost = {uid for uid, meta in owned.items() if (owner := _node_of(meta)) and owner.uid not in nodes}
        self._missing = {uid: self._missing.get(uid, now) for uid in lost}
        for uid, since in self._missing.items():
            if now - since >= self.grace:
                await self._remove(owned[uid])

    async def _slices(self, driver: str) -> tuple[Unstructured, ...]:
        chosen = Selection(field_selector=f"spec.driver={driver}")
        return (await self.api.list(SLICE_METADATA, chosen, deadline=_LIST_SECONDS)).items

    async def _remove(self, meta: ObjectMeta) -> None:
        owner = _node_of(meta)
        if owner is None or not self.may_write():
            return
        try:
            await self.api.delete(RESOURCE_SLICES, meta.name, uid=meta.uid, resource_version=meta.resource_version)
        except (errors.NotFoundError, errors.ConflictError):
            return  # somebody was faster, or it is alive
        self.removed += 1
        _log.warning("removed a slice of a node that does not exist any more", slice=meta.name, node=owner.name)


def _node_of(meta: ObjectMeta) -> OwnerReference | None:
    return next((owner for owner in meta.owner_references if owner.kind == "Node"), None)
