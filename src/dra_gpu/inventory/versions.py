"""Versions as the API server takes them.

A version attribute must be full semver 2.0.0 (Kubernetes v1.37, validation of DeviceAttribute), while drivers call
themselves `580.65.06` or `6.19.14.31400000`. The rule: numbers lose leading zeros, missing ones become 0, a fourth and
later ones are dropped, a suffix that semver allows is kept. The raw text is published beside it as a string.
"""

import re

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)(.*)", re.ASCII)
_SUFFIX = re.compile(
    r"(?:-(?P<pre>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+(?P<build>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
# Longest text of a version or string attribute, in bytes (Kubernetes v1.37, DeviceAttributeMaxValueLength).
MAX_TEXT_BYTES = 64


def semver(raw: str) -> str | None:
    """Return the semver of a version text, or None when there is no number in front or it would be too long."""
    match = _NUMBERS.fullmatch(raw.strip())
    if match is None:
        return None
    numbers = [str(int(number)) for number in match[1].split(".")[:3]]
    version = ".".join(numbers + ["0"] * (3 - len(numbers)))
    suffix = _SUFFIX.fullmatch(match[2])
    if suffix is not None:
        if suffix["pre"]:
            version += "-" + ".".join(_plain(part) for part in suffix["pre"].split("."))
        if suffix["build"]:
            version += "+" + suffix["build"]
    return version if len(version) <= MAX_TEXT_BYTES else None


def _plain(identifier: str) -> str:
    """Numeric identifiers of a pre-release carry no leading zeros (semver 2.0.0, item 9)."""
    return str(int(identifier)) if identifier.isdecimal() else identifier
