"""The kinds that the client can speak about: their place in the URL and the struct that their JSON becomes."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from dra_gpu.api import claim_resize, coordination_v1, device_taint_rule_v1, resource_v1


class KubernetesObject(Protocol):
    """Any wire struct with metadata."""

    @property
    def metadata(self) -> resource_v1.ObjectMeta:
        """Name, version and owner."""
        ...


T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind as the API server serves it.

    Attributes:
        group: API group; empty for the core group.
        version: API version.
        plural: the name in the URL.
        kind: the name in JSON.
        namespaced: objects live in a namespace.
        type: struct that an object decodes into. Unknown fields are ignored, so never write back what others own.
        metadata_only: lists are asked for without anything but metadata; slices of a whole cluster are many megabytes.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]
    metadata_only: bool = False

    @property
    def api_version(self) -> str:
        """`group/version`, or the bare version for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, or of one object, or of a part of it.

        Names are quoted: whatever a caller was given as a name stays one segment of the path.
        """
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace:
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        parts += [_segment(part) for part in (name, subresource) if part]
        return "/".join(parts)


def _segment(name: str) -> str:
    """Quote a name; the two that mean a directory, which no quoting of letters hides, too."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


class NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a node's status that matters here: resources that a device plugin holds stand in `allocatable`."""

    allocatable: dict[str, str] = {}


class Node(msgspec.Struct, frozen=True, rename="camel"):
    """A node, as far as the driver looks at it."""

    metadata: resource_v1.ObjectMeta = resource_v1.ObjectMeta()
    status: NodeStatus = NodeStatus()


class Unstructured(msgspec.Struct, frozen=True, rename="camel"):
    """An object of which only the metadata matters."""

    metadata: resource_v1.ObjectMeta = resource_v1.ObjectMeta()


class CustomResourceDefinition(msgspec.Struct, frozen=True, rename="camel"):
    """The definition of a kind; its spec as it is, since only its shape is compared."""

    metadata: resource_v1.ObjectMeta = resource_v1.ObjectMeta()
    spec: dict[str, Any] = {}


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Where a pod runs."""

    node_name: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """How far a pod has come: Pending, Running, Succeeded, Failed."""

    phase: str = ""


class PodMeta(resource_v1.ObjectMeta, frozen=True, rename="camel"):
    """Metadata of a pod; a time of deletion says that it is ending."""

    deletion_timestamp: str | None = None


class Pod(msgspec.Struct, frozen=True, rename="camel"):
    """A pod, as far as the controller looks at it."""

    metadata: PodMeta = PodMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class InvolvedObject(msgspec.Struct, frozen=True, rename="camel"):
    """What an Event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """An Event, as far as the driver reads any."""

    metadata: resource_v1.ObjectMeta = resource_v1.ObjectMeta()
    involved_object: InvolvedObject = InvolvedObject()
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None


NODES = Resource("", "v1", "nodes", "Node", namespaced=False, type=Node)
EVENTS = Resource("", "v1", "events", "Event", namespaced=True, type=Event)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True, type=Pod)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, type=coordination_v1.Lease)
RESOURCE_SLICES = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False, type=resource_v1.ResourceSlice
)
NODE_METADATA = Resource("", "v1", "nodes", "Node", namespaced=False, type=Unstructured, metadata_only=True)
SLICE_METADATA = Resource(
    "resource.k8s.io",
    "v1",
    "resourceslices",
    "ResourceSlice",
    namespaced=False,
    type=Unstructured,
    metadata_only=True,
)
RESOURCE_CLAIMS = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True, type=resource_v1.ResourceClaim
)
DEVICE_TAINT_RULES = Resource(
    "resource.k8s.io",
    "v1",
    "devicetaintrules",
    device_taint_rule_v1.KIND,
    namespaced=False,
    type=device_taint_rule_v1.DeviceTaintRule,
)
CLAIM_RESIZES = Resource(
    claim_resize.GROUP,
    "v1alpha1",
    claim_resize.PLURAL,
    claim_resize.KIND,
    namespaced=True,
    type=claim_resize.ClaimResize,
)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    type=CustomResourceDefinition,
)
