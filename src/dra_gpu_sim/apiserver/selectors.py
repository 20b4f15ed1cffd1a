"""Label and field selectors, as far as clients of this server use them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from dra_gpu_sim.apiserver.failures import ApiFailureError
from dra_gpu_sim.apiserver.resources import ServedResource

Matcher = Callable[[Mapping[str, Any]], bool]

# Field selectors that the real server knows, by plural. Source: K8s v1.37 pkg/registry, strategy.go of each kind; of
# ClaimResize the selectableFields of its definition.
_FIELDS: dict[str, frozenset[str]] = {
    "resourceslices": frozenset({"spec.driver", "spec.nodeName", "spec.pool.name"}),
    "claimresizes": frozenset({"status.nodeName"}),
    "pods": frozenset({"spec.nodeName", "status.phase", "spec.schedulerName"}),
    "events": frozenset(
        {
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        }
    ),
}
_SET_TERM = re.compile(r"^\s*([^\s!=,()]+)\s+(in|notin)\s+\(([^)]*)\)\s*$")
_TERM_SPLIT = re.compile(r",(?![^(]*\))")


def match_everything(_obj: Mapping[str, Any]) -> bool:
    """The matcher of an absent selector."""
    return True


def parse_fields(served: ServedResource, selector: str) -> Matcher:
    """Compile ``a=b,c!=d``; a field that Kubernetes cannot select by is answered with 400, as there."""
    if not selector:
        return match_everything
    terms: list[tuple[tuple[str, ...], bool, str]] = []
    for term in selector.split(","):
        path, equal, value = _split_term(term)
        known = _FIELDS.get(served.plural, frozenset()) | {"metadata.name", "metadata.namespace"}
        if path not in known:
            raise ApiFailureError(400, f'field label not supported: "{path}" for {served.plural}')
        terms.append((tuple(path.split(".")), equal, value))

    def matches(obj: Mapping[str, Any]) -> bool:
        return all((str(_dig(obj, path)) == value) is equal for path, equal, value in terms)

    return matches


def parse_labels(selector: str) -> Matcher:
    """Compile ``a=b,c!=d,e,!f,g in (x,y),h notin (z)``."""
    if not selector:
        return match_everything
    tests = [_label_test(term) for term in _TERM_SPLIT.split(selector)]

    def matches(obj: Mapping[str, Any]) -> bool:
        labels = obj.get("metadata", {}).get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _label_test(term: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET_TERM.match(term):
        key, operator, values = found.groups()
        wanted = {value.strip() for value in values.split(",")}
        return lambda labels: (labels.get(key) in wanted) is (operator == "in")
    if "=" in term:
        key, equal, value = _split_term(term)
        return lambda labels: (labels.get(key) == value) is equal
    name = term.strip()
    if name.startswith("!"):
        return lambda labels: name[1:] not in labels
    return lambda labels: name in labels


def _split_term(term: str) -> tuple[str, bool, str]:
    if "!=" in term:
        path, _, value = term.partition("!=")
        return path.strip(), False, value.strip()
    path, found, value = term.partition("=")
    if not found:
        raise ApiFailureError(400, f"invalid selector: {term!r}; can't understand it")
    return path.strip(), True, value.removeprefix("=").strip()


def _dig(obj: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = obj
    for part in path:
        if not isinstance(value, Mapping):
            return ""
        value = value.get(part, "")
    return value
