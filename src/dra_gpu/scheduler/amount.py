"""A quantity that remembers how it was written, so that it is written back as Kubernetes would.

Source: apimachinery v0.37 pkg/api/resource: `ParseQuantity` keeps a format, `CanonicalizeBytes` uses the largest unit
that leaves no fraction.
"""

import enum
import functools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from dra_gpu.api import quantity

MAX_INT64 = 2**63 - 1
_BINARY_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_UNITS = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_KIBI, _KILO = 1024, 1000


class Notation(enum.Enum):
    """How a quantity was written."""

    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"
    EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True)
class Amount:
    """An exact amount; two are the same amount when their `value` is equal."""

    value: Fraction
    notation: Notation = Notation.DECIMAL

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a quantity.

        Raises:
            dra_gpu.api.quantity.InvalidQuantityError: the text is none.
        """
        value, notation = _parsed(text)
        return cls(value, notation)

    def whole(self) -> int:
        """Return the amount in whole units, rounded up."""
        return -((-self.value.numerator) // self.value.denominator)

    def __str__(self) -> str:
        if self.notation is Notation.BINARY and self.value.denominator == 1 and abs(self.value) >= _KIBI:
            return _binary(self.value.numerator)
        return _decimal(self.value, exponent=self.notation is Notation.EXPONENT)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Fraction, Notation]:
    value = quantity.parse(text)
    if text.endswith("i"):
        return value, Notation.BINARY
    return value, Notation.EXPONENT if re.search(r"[eE][+-]?\d", text) else Notation.DECIMAL


def _binary(value: int) -> str:
    power = 0
    while value % _KIBI == 0 and power < len(_BINARY_UNITS) - 1:
        value, power = value // _KIBI, power + 1
    return f"{value}{_BINARY_UNITS[power]}"


def _decimal(value: Fraction, *, exponent: bool) -> str:
    """Write a value with the largest power of 1000 that leaves it whole; below a nano-unit Kubernetes rounds up."""
    scaled = value * 10**9
    digits, power = -((-scaled.numerator) // scaled.denominator), -9
    while digits and digits % _KILO == 0 and power < max(_DECIMAL_UNITS):
        digits, power = digits // _KILO, power + 3
    if digits == 0:
        return "0"
    if exponent:
        return f"{digits}e{power}" if power else str(digits)
    return f"{digits}{_DECIMAL_UNITS[power]}"
