"""Whether the cluster knows this driver's kinds as this release needs them.

The API server drops, or refuses, what a definition does not have: an older one loses what a newer program writes. So a
controller is Ready only when every field of its own definitions is there. The controller of the release before goes on
meanwhile, since a rolling upgrade ends it later.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from dra_gpu import __version__
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS
from dra_gpu.validation import crds

#: Between two looks as long as something is missing, however often somebody asks.
LOOK_SECONDS = 5.0
#: Between two looks once all is there: somebody may remove it.
LOOK_AGAIN_SECONDS = 60.0
_NAMED = 5
_REMEDY = f"kubectl apply -f deploy/crds.yaml of release {__version__}, or upgrade the chart with crds.create=true"

_log = structlog.get_logger(__name__)
Definition = Mapping[str, Any]


@dataclass(slots=True)
class Kinds:
    """Looks until all is there, and seldom from then on; what it knows holds until a server answers otherwise.

    Attributes:
        api: the API server.
        definitions: returns what this release needs, by name.
        clock: monotonic time.
    """

    api: KubernetesApi
    definitions: Callable[[], Mapping[str, Definition]] = crds.definitions
    clock: Clock = field(default_factory=SystemClock)
    _problem: str | None = None
    _looked: float = 0.0

    async def problem(self) -> str:
        """Return what is missing and what to do; empty when nothing is."""
        now = self.clock.now()
        pause = LOOK_AGAIN_SECONDS if self._problem == "" else LOOK_SECONDS
        if self._problem is None or now - self._looked >= pause:
            self._looked = now
            found = await self._look()
            if found and found != self._problem:
                _log.error("the kinds of this driver are not as this release needs them", reason=found)
            self._problem = found
        return self._problem or ""

    async def _look(self) -> str:
        for name, wanted in self.definitions().items():
            try:
                found = await self.api.get(CUSTOM_RESOURCE_DEFINITIONS, name)
            except errors.NotFoundError:
                return f"CustomResourceDefinition {name} is not there: {_REMEDY}"
            except errors.ApiError as error:
                return "" if self._problem == "" else str(error)
            missing = list(lacking(wanted["spec"], found.spec))
            if missing:
                more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
                return (
                    f"CustomResourceDefinition {name} is of another release and lacks {', '.join(missing[:_NAMED])}"
                    f"{more}, which objects would lose: {_REMEDY}"
                )
        return ""


def lacking(wanted: Definition, found: Definition) -> Iterator[str]:
    """Yield what the spec of a definition that is there lacks of one that is wanted. Pure.

    More than is wanted does no harm: it is a later release's.
    """
    served = {one["name"]: one for one in found.get("versions", ()) if one.get("served")}
    for version in wanted["versions"]:
        there = served.get(version["name"])
        if there is None:
            yield f"version {version['name']}"
            continue
        if "status" in version.get("subresources", {}) and "status" not in there.get("subresources", {}):
            yield "subresource status"
        selectable = [one["jsonPath"] for one in there.get("selectableFields", ())]
        for one in version.get("selectableFields", ()):
            if one["jsonPath"] not in selectable:
                yield f"selectable field {one['jsonPath']}"
        yield from _fields(_schema(version), _schema(there), "")


def _schema(version: Definition) -> Definition:
    found: Definition = version.get("schema", {}).get("openAPIV3Schema", {})
    return found


def _fields(wanted: Definition, found: Definition, path: str) -> Iterator[str]:
    if found.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = found.get("properties", {})
    for name, one in wanted.get("properties", {}).items():
        if name in known:
            yield from _fields(one, known[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}".removeprefix(".")
    for key, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        inner = wanted.get(key)
        if isinstance(inner, Mapping):
            there = found.get(key)
            if there is None or there is False:
                yield f"{path}{suffix}".removeprefix(".")
            elif isinstance(there, Mapping):
                yield from _fields(inner, there, f"{path}{suffix}")
