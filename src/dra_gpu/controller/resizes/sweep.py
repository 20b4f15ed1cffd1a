"""Finds what no watch tells of: entries in claims whose ClaimResize is gone, and nodes that do not exist any more."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from dra_gpu.api.claim_resize import GROUP, PLURAL
from dra_gpu.api.resource_v1 import ObjectMeta, ResourceClaimConsumerReference
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import NODE_METADATA, Resource
from dra_gpu.controller.lost_nodes import GRACE_SECONDS, LOOK_SECONDS
from dra_gpu.controller.resizes import objects
from dra_gpu.controller.resizes.resizer import Key, Resizer

_JITTER: Final = 0.1
_LIST_SECONDS: Final = 60.0

_log = structlog.get_logger(__name__)


class _Users(msgspec.Struct, rename="camel", frozen=True):
    """Of a claim's status, who may use it."""

    reserved_for: list[ResourceClaimConsumerReference] = []


class _UsedClaim(msgspec.Struct, rename="camel", frozen=True):
    """A claim of which only its users matter: there may be very many."""

    metadata: ObjectMeta = ObjectMeta()
    status: _Users = _Users()


_USED_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True, type=_UsedClaim)


@dataclass(slots=True)
class ResizeSweep:
    """Looks for what is left.

    Attributes:
        api: the API server.
        resizer: who is told.
        grace: seconds for which a node must have been missing.
        period: seconds between two looks.
        clock: monotonic time.
        failed: how many looks failed.
    """

    api: KubernetesApi
    resizer: Resizer
    grace: float = GRACE_SECONDS
    period: float = LOOK_SECONDS
    clock: Clock = field(default_factory=SystemClock)
    spread: Callable[[float, float], float] = random.uniform
    failed: int = 0
    _missing: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Look until cancelled; a look that fails is repeated with the next."""
        await self.resizer.resizes.synced.wait()
        while True:
            try:
                await self.look()
            except errors.ApiError as error:
                self.failed += 1
                _log.warning("what resizes left could not be looked for; tried again", reason=str(error))
            await self.clock.sleep(self.period * self.spread(1 - _JITTER, 1 + _JITTER))

    async def look(self) -> None:
        """Look once, and have the resizer look at every resize that there is, or should be.

        Raises:
            ApiError: nodes or claims could not be listed.
        """
        await self._look_for_nodes()
        keys = {Key(namespace, name) for namespace, name in self.resizer.resizes.objects}
        for growth in self.resizer.growing.objects.values():
            name = objects.owner(growth.metadata)
            if name is not None:
                keys.add(Key(growth.metadata.namespace, name))
        for claim in (await self.api.list(_USED_CLAIMS, deadline=_LIST_SECONDS)).items:
            for one in claim.status.reserved_for:
                if (one.api_group, one.resource) == (GROUP, PLURAL):
                    keys.add(Key(claim.metadata.namespace, one.name))
        for key in sorted(keys):
            self.resizer.queue.add(key)

    async def _look_for_nodes(self) -> None:
        used = {one.status.node_name for one in self.resizer.resizes.objects.values()} - {""}
        if not used:
            self._missing = {}
            self.resizer.lost_nodes = frozenset()
            return
        there = {one.metadata.name for one in (await self.api.list(NODE_METADATA, deadline=_LIST_SECONDS)).items}
        now = self.clock.now()
        self._missing = {name: self._missing.get(name, now) for name in used - there}
        self.resizer.lost_nodes = frozenset(name for name, since in self._missing.items() if now - since >= self.grace)
