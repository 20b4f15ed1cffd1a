"""What claims that were allocated earlier hold.

Admin access holds nothing. A share counts its consumed capacity; a whole device is held by one claim.
Source: K8s v1.37 pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self

from dra_gpu.api.resource_claim_v1 import ResourceClaim
from dra_gpu.scheduler.amount import Amount
from dra_gpu.scheduler.model import DeviceId


@dataclass(slots=True)
class Held:
    """Devices in use by other claims.

    Attributes:
        whole: devices that one claim holds exclusively.
        consumed: for each device with shares, the sum of what they consume; empty where they consume nothing.
        holders: claims (`namespace/name`) by device, for the reader of a refusal.
    """

    whole: set[DeviceId] = field(default_factory=set)
    consumed: dict[DeviceId, dict[str, Fraction]] = field(default_factory=dict)
    holders: dict[DeviceId, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, claims: Iterable[ResourceClaim]) -> Self:
        """Add up the allocations of claims; those without one hold nothing.

        Raises:
            dra_gpu.api.quantity.InvalidQuantityError: a consumed capacity is no quantity.
        """
        held = cls()
        for claim in claims:
            if claim.status.allocation is None:
                continue
            for result in claim.status.allocation.devices.results:
                if result.admin_access:
                    continue
                device = DeviceId(result.driver, result.pool, result.device)
                held.holders.setdefault(device, []).append(f"{claim.metadata.namespace}/{claim.metadata.name}")
                if result.share_id is None:
                    held.whole.add(device)
                    continue
                consumed = held.consumed.setdefault(device, {})
                for name, text in result.consumed_capacity.items():
                    consumed[name] = consumed.get(name, Fraction(0)) + Amount.parse(text).value
        return held

    def in_use(self, device: DeviceId) -> bool:
        """Tell whether any claim holds the device or a share of it."""
        return device in self.whole or device in self.consumed
