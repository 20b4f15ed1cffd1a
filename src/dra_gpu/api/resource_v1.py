"""`resource.k8s.io/v1` as this driver reads and writes it (Kubernetes v1.37, k8s.io/api/resource/v1/types.go).

Tolerant on purpose: these objects belong to Kubernetes, so unknown fields are ignored on reading, and an object that
somebody else owns is never written back from here. Only fields that the driver uses are modelled.
"""

import msgspec

API_VERSION = "resource.k8s.io/v1"


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A camelCase wire object whose unset fields are not sent."""


class OwnerReference(_Wire, frozen=True):
    """The owner of an object; `controller` says that it manages it. Every field is here, as lists are written back."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(_Wire, frozen=True):
    """The part of metadata that the driver looks at."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []


class DeviceAttribute(_Wire, frozen=True):
    """One attribute value: exactly one field is set (list fields need the DRAListTypeAttributes gate)."""

    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None
    ints: list[int] | None = None
    strings: list[str] | None = None


class CapacityRange(_Wire, frozen=True):
    """The range that a request for a shareable capacity may come from; amounts are quantities."""

    min: str
    max: str | None = None
    step: str | None = None


class CapacityRequestPolicy(_Wire, frozen=True):
    """How a request for a shareable capacity is rounded, and what an absent one means."""

    default: str | None = None
    valid_values: list[str] | None = None
    valid_range: CapacityRange | None = None


class DeviceCapacity(_Wire, frozen=True):
    """An amount that a device has, as a quantity."""

    value: str
    request_policy: CapacityRequestPolicy | None = None


class Counter(_Wire, frozen=True):
    """An amount in a counter set, or the part of it that a device takes, as a quantity."""

    value: str


class CounterSet(_Wire, frozen=True):
    """Amounts that several devices of a pool draw on."""

    name: str
    counters: dict[str, Counter]


class DeviceCounterConsumption(_Wire, frozen=True):
    """What a device takes from one counter set while it is allocated."""

    counter_set: str
    counters: dict[str, Counter]


class DeviceTaint(_Wire, frozen=True):
    """A taint; `time_added` is RFC 3339 in whole seconds and set by the server when absent."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class DeviceToleration(_Wire, frozen=True):
    """A taint that a request puts up with; an empty key or effect means every one."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(_Wire, frozen=True):
    """A condition on a label of a node, or on a field of it (core/v1)."""

    key: str
    operator: str
    values: list[str] = []


class NodeSelectorTerm(_Wire, frozen=True):
    """Conditions that must all hold."""

    match_expressions: list[NodeSelectorRequirement] = []
    match_fields: list[NodeSelectorRequirement] = []


class NodeSelector(_Wire, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] = []


class Device(_Wire, frozen=True):
    """One device of a slice. Where the slice says so, each device names the nodes that reach it."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[DeviceCounterConsumption] = []
    taints: list[DeviceTaint] = []
    allow_multiple_allocations: bool | None = None
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False


class ResourcePool(_Wire, frozen=True, omit_defaults=False):
    """The pool a slice belongs to. `generation` and `resource_slice_count` are always sent."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(_Wire, frozen=True):
    """Devices, or the counter sets that devices of other slices draw on: never both (validation of v1.35 and later)."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


class ResourceSlice(_Wire, frozen=True, kw_only=True):
    """A published part of a pool.

    `api_version` and `kind` are empty in the items of a list; whoever writes a slice sets both, so that they are sent.
    """

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec


class OpaqueDeviceConfiguration(_Wire, frozen=True):
    """Parameters that only the named driver understands, kept undecoded until it wants them (≤ 10 KiB)."""

    driver: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceAllocationConfiguration(_Wire, frozen=True):
    """A config of the allocation: from the class or from the claim, for the named requests or for all."""

    source: str
    requests: list[str] = []
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceRequestAllocationResult(_Wire, frozen=True):
    """One device given to one request; `request` is `main` or `main/sub`."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = {}
    tolerations: list[DeviceToleration] = []


class DeviceAllocationResult(_Wire, frozen=True):
    """All devices and configs of an allocation, those of other drivers among them."""

    results: list[DeviceRequestAllocationResult] = []
    config: list[DeviceAllocationConfiguration] = []


class AllocationResult(_Wire, frozen=True):
    """What the scheduler decided for a claim."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None


class ResourceClaimConsumerReference(_Wire, frozen=True):
    """Who may use a claim: a pod, or a group of pods."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


class ResourceClaimStatus(_Wire, frozen=True):
    """The status of a claim."""

    allocation: AllocationResult | None = None
    reserved_for: list[ResourceClaimConsumerReference] = []


class ResourceClaim(_Wire, frozen=True):
    """A claim. The driver needs its identity and what the scheduler decided."""

    metadata: ObjectMeta = ObjectMeta()
    status: ResourceClaimStatus = ResourceClaimStatus()
