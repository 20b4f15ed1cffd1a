"""What is said about an object: allowed or not, and why. Pure.

An update that leaves everything but metadata and status as it was is always allowed, and so is one of an object that is
being deleted: an invalid object from before this webhook must still lose its finalizers.
"""

from collections.abc import Mapping
from typing import Any

from dra_gpu.api.admission_v1 import Operation
from dra_gpu.validation import configs, manifest
from dra_gpu.validation.problem import Problem, Severity
from dra_gpu.webhook import bounds, ownership, reading
from dra_gpu.webhook.reading import Question

_JUDGED = (Operation.CREATE, Operation.UPDATE)
_NOT_JUDGED = ("apiVersion", "kind", "metadata", "status")


def is_ours(question: Question) -> bool:
    """Tell whether a question is to be answered by a check: it is about content of ours that is new. Cheap, and total.

    Where it is not, the answer is yes.
    """
    request, document = question.request, question.document
    if request.operation not in _JUDGED or request.sub_resource:
        return False
    if document is None:
        return request.kind.group in ownership.OWN_GROUPS
    if not ownership.is_ours(document):
        return False
    return not (request.operation is Operation.UPDATE and _may_stay(document, question.old))


def _may_stay(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> bool:
    metadata = new.get("metadata")
    if isinstance(metadata, dict) and metadata.get("deletionTimestamp"):
        return True
    return old is not None and _content(new) == _content(old)


def _content(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _NOT_JUDGED}


def problems(question: Question) -> tuple[Problem, ...]:
    """Return what is wrong with an object of ours."""
    document = question.document
    if document is None:
        return (Problem("object", "is none", "send the object that is to be stored"),)
    too_much = bounds.exceeded(document)
    if too_much:
        return too_much
    found: list[Problem] = []
    if question.unreadable:
        found.append(Problem("", question.unreadable, "remove it: the driver could not read this object"))
    report = manifest.check(document, newer_fields=Severity.WARNING)
    found += report.problems if report is not None else ()
    found += reading.twice(question.request.object)
    return tuple(found)


def hints(question: Question) -> tuple[Problem, ...]:
    """Return warnings about an object that is not ours: configs that look like ours, and go to an unknown driver."""
    request, document = question.request, question.document
    if request.operation is not Operation.CREATE or document is None or ownership.is_ours(document):
        return ()
    path, holder = "spec", document.get("spec")
    for inner in ("spec", "devices"):  # of a template, of a claim
        if isinstance(holder, dict) and isinstance(holder.get(inner), dict):
            path, holder = f"{path}.{inner}", holder[inner]
    if not isinstance(holder, dict):
        return ()
    _, found = configs.read(holder.get("config"), f"{path}.config")
    return tuple(one for one in found if one.severity is Severity.WARNING)
