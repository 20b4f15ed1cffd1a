"""One thing that is wrong with a manifest, or does not mean what it seems to."""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dra_gpu.api.config_error import FieldProblem, join


class Severity(enum.Enum):
    """Whether it can work at all."""

    ERROR = "error"  # the claim can never be allocated or prepared as it is written
    WARNING = "warning"  # it works, but a part of it is ignored, or it is not what somebody would want


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem; its text is `FIELD REASON: REMEDY`.

    Attributes:
        field: path from the root of the object (`spec.devices.requests[0].exactly.count`).
        reason: what is wrong, as a phrase that goes on from the field's name.
        remedy: what to write instead.
        severity: whether it can work at all.
    """

    field: str
    reason: str
    remedy: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.field or 'the object'} {self.reason}: {self.remedy}"


def warning(field: str, reason: str, remedy: str) -> Problem:
    """Return a problem that keeps nothing from working."""
    return Problem(field, reason, remedy, Severity.WARNING)


def under(path: str, found: Iterable[FieldProblem], *, newer_fields: Severity = Severity.ERROR) -> Iterator[Problem]:
    """Yield problems of what stands at a path as problems of the whole object.

    Args:
        path: where the fields stand.
        found: what is wrong with them.
        newer_fields: how bad a field is that this release does not know.
    """
    for one in found:
        severity = newer_fields if one.unknown_field else Severity.ERROR
        yield Problem(join(path, one.field), one.reason, one.remedy, severity)
