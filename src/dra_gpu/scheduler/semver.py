"""Semantic versions 2.0.0 as CEL selectors compare them (Kubernetes uses blang/semver v4)."""

import re
from dataclasses import dataclass
from typing import Self

_NUMBER = r"(?:0|[1-9]\d*)"
_IDENTIFIER = rf"(?:{_NUMBER}|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_NUMBERS = 3
_PATTERN = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)


class InvalidVersionError(ValueError):
    """A text is not a semantic version."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version; build metadata does not count."""

    major: int
    minor: int
    patch: int
    pre_release: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a version.

        Raises:
            InvalidVersionError: the text is none.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise InvalidVersionError(f"{text!r} is not a semantic version: write it as 12.4.0")
        pre_release = tuple(match[4].split(".")) if match[4] else ()
        return cls(int(match[1]), int(match[2]), int(match[3]), pre_release)

    @classmethod
    def normalized(cls, text: str) -> Self:
        """Read a version that may have a leading `v`, leading zeros, and fewer than three numbers.

        Raises:
            InvalidVersionError: not even so.
        """
        parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
        if len(parts) < _NUMBERS and re.search("[+-]", parts[-1]):
            raise InvalidVersionError(
                f"{text!r}: a version with a pre-release needs all three numbers, such as 1.2.0-rc1"
            )
        return cls.parse(".".join(parts + ["0"] * (_NUMBERS - len(parts))))

    def __str__(self) -> str:
        pre_release = f"-{'.'.join(self.pre_release)}" if self.pre_release else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre_release}"

    def compare(self, other: Self) -> int:
        """Return -1, 0 or 1: a release comes after its pre-releases, numbers before words."""
        mine, theirs = self._key(), other._key()
        return (mine > theirs) - (mine < theirs)

    def _key(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        words = tuple(
            (not part.isdigit(), int(part) if part.isdigit() else 0, "" if part.isdigit() else part)
            for part in self.pre_release
        )
        return self.major, self.minor, self.patch, not self.pre_release, words


def _without_zeros(part: str) -> str:
    if len(part) <= 1:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() else f"0{stripped}"
