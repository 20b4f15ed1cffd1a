"""NVIDIA's ComputeDomains: the kind (`resource.nvidia.com` v1beta1 and v1beta2) and the opaque configs of its claims.

A ComputeDomain's configs name it by its UID, which becomes a part of paths on the node: nothing but a UUID is taken.
Source: kubernetes-sigs/dra-driver-nvidia-gpu v0.5, api/nvidia.com/resource/v1beta1 and v1beta2.
"""

import enum
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from dra_gpu.api import nvidia_v1beta1
from dra_gpu.api.config_error import FieldProblem
from dra_gpu.api.strict import Strict

_UID_PATTERN = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UID = re.compile(_UID_PATTERN, re.ASCII)

# For editors; `problems` enforces it, and its message says more.
DomainUid = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{_UID_PATTERN}$"})]


class ChannelAllocationMode(enum.Enum):
    """How many IMEX channels a workload gets."""

    SINGLE = "Single"
    ALL = "All"


class ComputeDomainChannelConfig(Strict, frozen=True, tag_field="kind", tag="ComputeDomainChannelConfig"):
    """Config of a workload's IMEX channel.

    Attributes:
        domain_id: UID of its ComputeDomain.
        allocation_mode: how many channels it gets.
    """

    domain_id: DomainUid = msgspec.field(name="domainID")
    api_version: Literal["resource.nvidia.com/v1beta1"] = msgspec.field(
        name="apiVersion", default=nvidia_v1beta1.API_VERSION
    )
    allocation_mode: ChannelAllocationMode = ChannelAllocationMode.SINGLE


class ComputeDomainDaemonConfig(Strict, frozen=True, tag_field="kind", tag="ComputeDomainDaemonConfig"):
    """Config of an IMEX daemon.

    Attributes:
        domain_id: UID of its ComputeDomain.
    """

    domain_id: DomainUid = msgspec.field(name="domainID")
    api_version: Literal["resource.nvidia.com/v1beta1"] = msgspec.field(
        name="apiVersion", default=nvidia_v1beta1.API_VERSION
    )


class TemplateReference(Strict, frozen=True):
    """The ResourceClaimTemplate that is made for the workload, in the ComputeDomain's namespace.

    Attributes:
        name: of the template.
    """

    name: str


class ChannelSpec(Strict, frozen=True):
    """What a workload claims in order to take part."""

    resource_claim_template: TemplateReference
    allocation_mode: ChannelAllocationMode = ChannelAllocationMode.SINGLE


class ComputeDomainSpec(Strict, frozen=True):
    """The spec.

    Attributes:
        channel: what a workload claims in order to take part.
        num_nodes: deprecated, and gone in v1beta2: how many nodes have to be ready before workloads start; 0 waits for
            nobody but the workload's own node.
    """

    channel: ChannelSpec
    num_nodes: int = 0


class ComputeDomainSpecV1beta2(Strict, frozen=True):
    """The spec in v1beta2."""

    channel: ChannelSpec


class ComputeDomain(Strict, frozen=True, tag_field="kind", tag="ComputeDomain"):
    """A set of nodes whose GPUs reach each other's memory; status and metadata are the cluster's."""

    spec: ComputeDomainSpec
    api_version: Literal["resource.nvidia.com/v1beta1"] = msgspec.field(
        name="apiVersion", default=nvidia_v1beta1.API_VERSION
    )
    metadata: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class ComputeDomainV1beta2(Strict, frozen=True, tag_field="kind", tag="ComputeDomain"):
    """The same in v1beta2."""

    spec: ComputeDomainSpecV1beta2
    api_version: Literal["resource.nvidia.com/v1beta2"] = msgspec.field(
        name="apiVersion", default="resource.nvidia.com/v1beta2"
    )
    metadata: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


DomainConfig = ComputeDomainChannelConfig | ComputeDomainDaemonConfig


def problems(config: DomainConfig | ComputeDomain | ComputeDomainV1beta2) -> Iterator[FieldProblem]:
    """Yield what the fields of a config or ComputeDomain say that cannot be."""
    match config:
        case ComputeDomainChannelConfig() | ComputeDomainDaemonConfig():
            if not _UID.fullmatch(config.domain_id):
                yield FieldProblem(
                    "domainID", f"is {config.domain_id[:80]!r}", "write the UID of the ComputeDomain (metadata.uid)"
                )
        case ComputeDomain() | ComputeDomainV1beta2():
            if not config.spec.channel.resource_claim_template.name:
                yield FieldProblem(
                    "spec.channel.resourceClaimTemplate.name",
                    "is empty",
                    "write the name that the workload's ResourceClaimTemplate shall have",
                )
            if isinstance(config, ComputeDomain) and config.spec.num_nodes < 0:
                yield FieldProblem(
                    "spec.numNodes", f"is {config.spec.num_nodes}", "leave it out: each pod waits for its own node"
                )
