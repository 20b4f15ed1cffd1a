"""The label of a Node with which an operator narrows the views of its GPUs. Pure.

A label's value has no commas (Source: K8s v1.37, k8s.io/apimachinery/pkg/util/validation, IsValidLabelValue), so that
views stand in it with dots between them: `gpu.shared`. It only narrows: what the release does not offer, no label adds.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dra_gpu.inventory.model import View

LABEL = "resource.dra-gpu.dev/views"
_KNOWN = {view.value: view for view in View}
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What a label says.

    Attributes:
        views: what is offered, in the operator's order; None where the label cannot be read and changes nothing.
        problem: what is wrong with it, for a person; empty where nothing is.
    """

    views: tuple[View, ...] | None
    problem: str = ""


def narrow(text: str | None, offered: Collection[View]) -> Narrowed:
    """Return which of the offered views a node has.

    Args:
        text: the label's value; None where there is no label.
        offered: what the operator chose for all nodes.
    """
    if text is None:
        return Narrowed(tuple(offered))
    words = text.split(".")
    unknown = [word for word in words if word not in _KNOWN]
    if unknown:
        what = f"{unknown[0][:_SHOWN]!r} is no view" if unknown[0] else "a view has no name"
        known = ", ".join(_KNOWN)
        return Narrowed(
            None,
            f"label {LABEL}={text[:_SHOWN]}: {what}, so that the label changes nothing: write some of {known} with "
            "dots between them, such as gpu.shared",
        )
    wanted = {_KNOWN[word] for word in words}
    views = tuple(view for view in offered if view in wanted)
    missing = ", ".join(word for word in dict.fromkeys(words) if _KNOWN[word] not in offered)
    if not missing:
        return Narrowed(views)
    left = "nothing is offered on this node" if not views else "the others are offered"
    return Narrowed(
        views,
        f"label {LABEL}={text[:_SHOWN]}: {missing} is not among the views of this release, and {left}: add it to the "
        "chart's value `views`, or take it out of the label",
    )
