"""What the allocator works on: identities, nodes, and devices where a node can reach them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_gpu.api.resource_v1 import Device, ResourceSlice


class PoolId(NamedTuple):
    """A pool: names are unique within a driver."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceId(NamedTuple):
    """A device: names are unique within a pool."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"

    @property
    def pool_id(self) -> PoolId:
        """The pool it belongs to."""
        return PoolId(self.driver, self.pool)


@dataclass(frozen=True, slots=True)
class Node:
    """The node that devices are sought for; a slice may select nodes by their labels."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A published device together with the slice it comes from."""

    id: DeviceId
    device: Device
    published: ResourceSlice

    @property
    def shareable(self) -> bool:
        """Whether several claims may hold it at once."""
        return self.device.allow_multiple_allocations is True
