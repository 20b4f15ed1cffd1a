"""`coordination.k8s.io/v1` Lease, as far as leader election uses it (Kubernetes v1.37, k8s.io/api/coordination/v1)."""

import msgspec

from dra_gpu.api.resource_v1 import ObjectMeta

API_VERSION = "coordination.k8s.io/v1"


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """Who holds a lease, and for how long without renewing it. Times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A lease; whoever writes it sends the resource version that it has read."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()
