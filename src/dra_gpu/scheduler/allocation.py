"""What the scheduler writes into a claim's status once its devices are chosen: results, configs, nodes.

A class's configs come first and once, for all requests of that class; `requests` is empty where a config applies to
every request. Source: allocator_incubating.go `Allocate`, `createNodeSelector`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dra_gpu.api.resource_claim_v1 import ResourceClaim
from dra_gpu.api.resource_v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    OpaqueDeviceConfiguration,
)
from dra_gpu.scheduler.amount import Amount
from dra_gpu.scheduler.model import Candidate, Node
from dra_gpu.scheduler.requests import Alternative, RequestState


@dataclass(frozen=True, slots=True)
class Choice:
    """One device chosen for a request.

    Attributes:
        request: what it was chosen for.
        candidate: the device.
        share_id: unique id of the share, for a device that several claims may hold.
        consumed: what the share consumes.
    """

    request: Alternative
    candidate: Candidate
    share_id: str | None
    consumed: dict[str, Amount]


def assemble(
    claim: ResourceClaim, requests: Sequence[RequestState], choices: Sequence[Choice], node: Node
) -> AllocationResult:
    """Return the allocation of a claim."""
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=[_result(choice) for choice in choices], config=_configs(claim, requests)
        ),
        node_selector=_node_selector(choices, node),
    )


def _result(choice: Choice) -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(
        request=choice.request.name,
        driver=choice.candidate.id.driver,
        pool=choice.candidate.id.pool,
        device=choice.candidate.id.device,
        admin_access=True if choice.request.admin else None,
        share_id=choice.share_id,
        consumed_capacity={name: str(amount) for name, amount in choice.consumed.items()},
        tolerations=choice.request.tolerations,
    )


def _configs(claim: ResourceClaim, requests: Sequence[RequestState]) -> list[DeviceAllocationConfiguration]:
    selected = [request.selected for request in requests]
    of_class: dict[str, list[str]] = {}
    for request in selected:
        of_class.setdefault(request.device_class.metadata.name, []).append(request.name)
    classes = {request.device_class.metadata.name: request.device_class for request in selected}
    found = [
        _config("FromClass", of_class[name], config.opaque, selected)
        for name in of_class
        for config in classes[name].spec.config
    ]
    found += [
        _config("FromClaim", config.requests, config.opaque, selected)
        for config in claim.spec.devices.config
        if not config.requests or any(_names(config.requests, request) for request in selected)
    ]
    return found


def _config(
    source: str, names: list[str], opaque: OpaqueDeviceConfiguration | None, selected: Sequence[Alternative]
) -> DeviceAllocationConfiguration:
    everywhere = all(_names(names, request) for request in selected)
    return DeviceAllocationConfiguration(source=source, requests=[] if everywhere else names, opaque=opaque)


def _names(names: Sequence[str], request: Alternative) -> bool:
    return request.name in names or request.parent in names


def _node_selector(choices: Sequence[Choice], node: Node) -> NodeSelector | None:
    """Pin an allocation with a device of one node to that node; otherwise combine what the devices select."""
    labels: list[NodeSelectorRequirement] = []
    fields: list[NodeSelectorRequirement] = []
    for choice in choices:
        spec, device = choice.candidate.published.spec, choice.candidate.device
        source = device if spec.per_device_node_selection else spec
        if source.node_name:
            name = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node.name])
            return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[name])])
        if source.node_selector is not None and source.node_selector.node_selector_terms:
            term = source.node_selector.node_selector_terms[0]
            labels += [requirement for requirement in term.match_expressions if requirement not in labels]
            fields += [requirement for requirement in term.match_fields if requirement not in fields]
    if not labels and not fields:
        return None
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=labels, match_fields=fields)])
