"""What a claim asks for: `resource.k8s.io/v1` DeviceClass and the spec of a ResourceClaim (Kubernetes v1.37).

For whoever decides about claims as the scheduler does. The node reads only what was decided (`resource_v1`), and never
imports this. Tolerant like the rest: unknown fields are ignored. Source: k8s.io/api/resource/v1/types.go.
"""

import enum

import msgspec

from dra_gpu.api.resource_v1 import DeviceToleration, ObjectMeta, OpaqueDeviceConfiguration, ResourceClaimStatus


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A camelCase wire object whose unset fields are not sent."""


class AllocationMode(enum.Enum):
    """How many devices a request wants."""

    EXACT_COUNT = "ExactCount"
    ALL = "All"


class CELDeviceSelector(_Wire, frozen=True):
    """A condition on a device, in the Common Expression Language (≤ 10 KiB)."""

    expression: str


class DeviceSelector(_Wire, frozen=True):
    """One condition; a kind that this version does not know leaves `cel` unset."""

    cel: CELDeviceSelector | None = None


class CapacityRequirements(_Wire, frozen=True):
    """Amounts by capacity, as quantities; the keys must be spelled as the device publishes them."""

    requests: dict[str, str] = {}


class ExactDeviceRequest(_Wire, frozen=True):
    """A request for devices of one class."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: AllocationMode = AllocationMode.EXACT_COUNT
    count: int = 1
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(_Wire, frozen=True):
    """One of several acceptable requests; it cannot ask for admin access."""

    name: str
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: AllocationMode = AllocationMode.EXACT_COUNT
    count: int = 1
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceRequest(_Wire, frozen=True):
    """A named request: `exactly` one, or the `first_available` of several."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []


class DeviceConstraint(_Wire, frozen=True):
    """A condition on the devices of several requests together (of all of them, where `requests` is empty)."""

    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(_Wire, frozen=True):
    """A config of the claim, for the named requests or for all."""

    requests: list[str] = []
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(_Wire, frozen=True):
    """Everything a claim says about devices."""

    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[DeviceClaimConfiguration] = []


class ResourceClaimSpec(_Wire, frozen=True):
    """The spec of a claim."""

    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(_Wire, frozen=True):
    """A claim as the scheduler looks at it: what it asks for beside what it got."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceClassConfiguration(_Wire, frozen=True):
    """A config that every device of the class gets."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(_Wire, frozen=True):
    """Which devices belong to a class, and the configs that come with it."""

    selectors: list[DeviceSelector] = []
    config: list[DeviceClassConfiguration] = []
    extended_resource_name: str | None = None


class DeviceClass(_Wire, frozen=True):
    """A kind of device that claims ask for by name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()
