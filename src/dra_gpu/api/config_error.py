"""What is wrong with a config, field by field, and the error that says so."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing that makes a config unusable. Its text is `FIELD REASON: REMEDY`.

    Attributes:
        field: path of the field in the config (`sharing.mpsConfig`, `items[0]`); empty for the config itself.
        reason: what is wrong, as a phrase that goes on from the field's name (`is 101`).
        remedy: what to write instead, or what to remove.
        unknown_field: the field is one that this release does not know, and nothing else is wrong with it.
    """

    field: str
    reason: str
    remedy: str
    unknown_field: bool = False

    def __str__(self) -> str:
        return f"{self.field or 'opaque config'} {self.reason}: {self.remedy}"


class InvalidConfigError(ValueError):
    """An opaque config cannot be used. The message names each field, the reason and the remedy.

    Attributes:
        problems: at least one.
    """

    def __init__(self, *problems: FieldProblem) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def join(path: str, field: str) -> str:
    """Return the path of a field of what stands at `path`."""
    return f"{path}.{field}" if path and field and not field.startswith("[") else f"{path}{field}"


def element(name: str) -> str:
    """Return how a key is written in a path: as it is, or in brackets where it has other characters than a name."""
    return name if name.isidentifier() and name.isascii() else f"[{name[:80]!r}]"
