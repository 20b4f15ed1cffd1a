"""What the publisher tells about its work, for logs, Events and metrics: once per occurrence, not once per retry."""

from dataclasses import dataclass
from typing import TypeAlias

from dra_gpu.inventory.validation import Problem


@dataclass(frozen=True, slots=True)
class Published:
    """The pool stands on the server as wanted, after so many writes."""

    generation: int
    slices: int
    writes: int


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Our slices were deleted: because of a foreign master, or because the caller asked for it."""

    reason: str
    slices: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Parts of the pool that the API server would refuse; the rest is published."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The content as a whole is refused, by our own check or by the server. Not tried again until it changes."""

    message: str


@dataclass(frozen=True, slots=True)
class DroppedFields:
    """The server stored a slice without these fields, because a feature gate is off.

    `unsafe` means that no device is published: without counters two pods would get the same GPU.
    """

    slice_name: str
    fields: tuple[str, ...]
    gates: tuple[str, ...]
    unsafe: bool


@dataclass(frozen=True, slots=True)
class ForeignSlices:
    """Somebody else publishes slices under our driver's name on our node; nothing of ours is published meanwhile.

    An empty tuple says that they are gone.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wiped:
    """Somebody (at its start, the kubelet) deleted slices of ours; they come back by themselves."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """A request failed and is repeated after `retry_in` seconds; told when the failure starts or changes its kind."""

    message: str
    retry_in: float


@dataclass(frozen=True, slots=True)
class WatchFailed:
    """The watch on our slices broke; it goes on by itself. Told every time."""

    message: str


PublishReport: TypeAlias = (
    Published | Withdrawn | LeftOut | Rejected | DroppedFields | ForeignSlices | Wiped | PublishFailed | WatchFailed
)
