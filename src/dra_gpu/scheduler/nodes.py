"""Which nodes reach a device: by name, all of them, or by a selector on their labels.

Source: pools_incubating.go `NodeMatches`; component-helpers v0.37 scheduling/corev1/nodeaffinity.
"""

from dra_gpu.api.resource_v1 import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_gpu.scheduler.model import Node


def reaches(node: Node, *, name: str, all_nodes: bool, selector: NodeSelector | None) -> bool:
    """Tell whether a node is among those named: the first of the three that is set decides."""
    if name:
        return node.name == name
    if all_nodes:
        return True
    return selector is not None and any(_holds(node, term) for term in selector.node_selector_terms)


def _holds(node: Node, term: NodeSelectorTerm) -> bool:
    """A term without conditions selects nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return all(_meets(requirement, node.labels.get(requirement.key)) for requirement in term.match_expressions) and all(
        _meets(requirement, fields.get(requirement.key)) for requirement in term.match_fields
    )


def _meets(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(operator, value, requirement.values)
        case _:
            return False


def _compares(operator: str, value: str | None, bounds: list[str]) -> bool:
    try:
        number, bound = int(value or ""), int(bounds[0] if len(bounds) == 1 else "")
    except ValueError:
        return False
    return number > bound if operator == "Gt" else number < bound
