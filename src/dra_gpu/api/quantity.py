"""Kubernetes quantities: exact integers behind texts such as `80Gi`, `100G`, `1500m`.

Promises: `parse` accepts what `k8s.io/apimachinery/pkg/api/resource` accepts (v0.37), never goes through a float, and
two texts of one value compare equal by their parsed value (`80Gi` and `85899345920`).
"""

import re
from fractions import Fraction
from functools import lru_cache

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_PATTERN = re.compile(
    r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,3}|)",
    re.ASCII,
)
# Longer texts cannot be quantities that Kubernetes would keep; refusing them bounds the work a hostile input can ask.
_MAX_TEXT = 64
# The same few texts are read again and again.
_KEPT = 512


class InvalidQuantityError(ValueError):
    """A text is not a Kubernetes quantity. The message names the text and shows one that would do."""


class Quantity(str):
    """The text of a quantity that somebody wrote, valid or not (see `parse`); a bare number in JSON is one, too."""

    __slots__ = ()


@lru_cache(maxsize=_KEPT)
def parse(text: str) -> Fraction:
    """Return the exact value of a quantity.

    Raises:
        InvalidQuantityError: the text is not a quantity.
    """
    match = _PATTERN.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise InvalidQuantityError(f"{text[:_MAX_TEXT]!r} is not a quantity: write a number with a unit, such as 10Gi")
    value = Fraction(match["number"])
    suffix = match["suffix"]
    if suffix in _BINARY:
        value *= _BINARY[suffix]
    elif suffix in _DECIMAL:
        value *= _DECIMAL[suffix]
    else:
        value *= Fraction(10) ** int(suffix[1:])
    return -value if match["sign"] == "-" else value


def parse_int(text: str) -> int:
    """Return the value of a quantity in whole units, rounded up as Kubernetes' `Value()` does (`1500m` is 2).

    Raises:
        InvalidQuantityError: the text is not a quantity.
    """
    value = parse(text)
    return -((-value.numerator) // value.denominator)


def format_bytes(value: int) -> str:
    """Return the shortest exact text of a number of bytes: `80Gi`, `81559Mi`, `1000`."""
    for suffix, factor in reversed(_BINARY.items()):
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return str(value)


def equal(left: str, right: str) -> bool:
    """Tell whether two quantities are the same amount, however they are written.

    Raises:
        InvalidQuantityError: one of the texts is not a quantity.
    """
    return left == right or parse(left) == parse(right)
