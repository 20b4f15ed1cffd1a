"""What a shared device has left, for people: what is published, less what claims were allocated of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dra_gpu.api.claim_resize import Target
from dra_gpu.api.resource_v1 import Device, ResourceClaim
from dra_gpu.apiserver.clock import Clock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_gpu.controller.resizes import bodies
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts

_GOOD_FOR_SECONDS: Final = 15.0
_REMEMBERED: Final = 256
_LIST_SECONDS: Final = 60.0


def free(device: Device, target: Target, claims: Iterable[ResourceClaim]) -> Amounts:
    """Return what is left of a device; what is published less than is allocated counts as nothing."""
    published = amounts.parse({name: one.value for name, one in device.capacity.items()})
    taken = Amounts()
    for claim in claims:
        allocation = claim.status.allocation
        for one in allocation.devices.results if allocation is not None else ():
            if (one.driver, one.pool, one.device) == (target.driver, target.pool, target.device):
                taken += amounts.parse(one.consumed_capacity)
    return (published - taken).at_least(Amounts())


@dataclass(slots=True)
class FreeAmounts:
    """Looks at all claims, at most every 15 s for a device."""

    api: KubernetesApi
    clock: Clock
    _known: dict[tuple[str, str], tuple[float, Amounts | None]] = field(default_factory=dict)

    async def of(self, target: Target) -> Amounts | None:
        """Return what a device has left; None where it is not published.

        Raises:
            ApiError: the API server did not answer.
        """
        now, key = self.clock.now(), (target.pool, target.device)
        if key in self._known and now - self._known[key][0] < _GOOD_FOR_SECONDS:
            return self._known[key][1]
        found = await self._look(target)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = now, found
        return found

    async def _look(self, target: Target) -> Amounts | None:
        chosen = Selection(field_selector=f"spec.driver={target.driver},spec.nodeName={target.pool}")
        slices = await self.api.list(RESOURCE_SLICES, chosen)
        try:
            device = bodies.device_in(slices.items, target)
        except bodies.UnknownDeviceError:
            return None
        claims = await self.api.list(RESOURCE_CLAIMS, deadline=_LIST_SECONDS)
        return free(device, target, claims.items)
