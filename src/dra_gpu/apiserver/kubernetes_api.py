"""What the driver asks of Kubernetes: a Protocol of eight calls and the values that go through them.

Whoever needs Kubernetes takes a :class:`KubernetesApi`; `client.py` has the one that speaks HTTP.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dra_gpu.apiserver.resources import KubernetesObject, Resource

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list, and the version of the collection that it shows; `undecodable` names items of a wrong shape."""

    items: tuple[T, ...]
    resource_version: str
    undecodable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event. `type` is ADDED, MODIFIED, DELETED or BOOKMARK.

    A bookmark has no object; what cannot be decoded has none either, and a `problem` instead.
    """

    type: str
    resource_version: str
    object: T | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind: selectors in Kubernetes' syntax, empty for all."""

    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""

    def query(self) -> dict[str, str]:
        """Return the selectors as query parameters."""
        named = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return {key: value for key, value in named.items() if value}


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watch is held.

    Attributes:
        resource_version: start after this version.
        timeout_seconds: ask the server to end it after so long.
        idle_limit: give it up after so many silent seconds.
        line_limit: longest event in bytes.
    """

    resource_version: str
    timeout_seconds: int = 300
    idle_limit: float = 70.0
    line_limit: int = 8 * 1024 * 1024


class KubernetesApi(Protocol):
    """What the driver asks of Kubernetes. All methods raise `errors.ApiError`."""

    async def get(self, resource: Resource[T], name: str, namespace: str = "", *, deadline: float = ...) -> T:
        """Read one object."""
        ...

    async def list(self, resource: Resource[T], selection: Selection = ..., *, deadline: float = ...) -> Listing[T]:
        """Read a collection at its newest version."""
        ...

    async def create(self, resource: Resource[T], body: object, namespace: str = "", *, deadline: float = ...) -> T:
        """Create an object with strict field validation; returns what was stored."""
        ...

    async def update(
        self, resource: Resource[T], body: object, name: str, namespace: str = "", *, deadline: float = ...
    ) -> T:
        """Replace an object with strict field validation; returns what was stored."""
        ...

    async def patch(
        self,
        resource: Resource[T],
        body: object,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        deadline: float = ...,
    ) -> T:
        """Send a JSON merge patch."""
        ...

    async def apply(
        self,
        resource: Resource[T],
        body: object,
        name: str,
        namespace: str = "",
        *,
        subresource: str = "",
        deadline: float = ...,
    ) -> T:
        """Send a server-side apply as field manager `dra-driver-gpu`, taking over fields in conflict."""
        ...

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        deadline: float = ...,
    ) -> None:
        """Delete an object, if uid and version (where given) are still those."""
        ...

    async def watch(
        self,
        resource: Resource[T],
        selection: Selection,
        options: WatchOptions,
        deliver: Callable[[WatchEvent[T]], None],
    ) -> None:
        """Call `deliver` with every event; returns when the server ends the watch in good order."""
        ...
