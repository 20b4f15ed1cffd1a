"""What a shared device has left, for people: what is published, less what claims were allocated of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
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
_LIST_SECONDS: Final = 60.0

DeviceKey = tuple[str, str, str]


def taken(claims: Iterable[ResourceClaim]) -> Mapping[DeviceKey, Amounts]:
    """Return what claims were allocated, by driver, pool and device."""
    found: defaultdict[DeviceKey, Amounts] = defaultdict(Amounts)
    for claim in claims:
        allocation = claim.status.allocation
        for one in allocation.devices.results if allocation is not None else ():
            if one.share_id is not None:
                found[one.driver, one.pool, one.device] += amounts.parse(one.consumed_capacity)
    return found


def left(device: Device, of_claims: Amounts) -> Amounts:
    """Return what is left of a device; what is published less than is allocated counts as nothing."""
    published = amounts.parse({name: one.value for name, one in device.capacity.items()})
    return (published - of_claims).at_least(Amounts())


@dataclass(slots=True)
class FreeAmounts:
    """Looks at all claims at most every 15 s, whoever asks for which device."""

    api: KubernetesApi
    clock: Clock
    _taken: Mapping[DeviceKey, Amounts] = field(default_factory=dict)
    _looked: float | None = None

    async def of(self, target: Target) -> Amounts | None:
        """Return what a device has left; None where it is not published.

        Raises:
            ApiError: the API server did not answer.
        """
        chosen = Selection(field_selector=f"spec.driver={target.driver},spec.nodeName={target.pool}")
        slices = await self.api.list(RESOURCE_SLICES, chosen)
        try:
            device = bodies.device_in(slices.items, target)
        except bodies.UnknownDeviceError:
            return None
        now = self.clock.now()
        if self._looked is None or now - self._looked >= _GOOD_FOR_SECONDS:
            self._taken = taken((await self.api.list(RESOURCE_CLAIMS, deadline=_LIST_SECONDS)).items)
            self._looked = now
        return left(device, self._taken.get((target.driver, target.pool, target.device), Amounts()))
