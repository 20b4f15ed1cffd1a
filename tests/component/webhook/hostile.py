"""Opaque configs as somebody would write them who wants to get past one check and not the other."""

import copy
import json
import random

from tests.component.node.hostile_claims import mutated
from tests.unit.api.valid_configs import FIELDS, VALID
from tests.unit.validation.manifests import MPS, NVIDIA

_MORE = [
    ("gpu.nvidia.com", {"apiVersion": NVIDIA, "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}),
    ("gpu.nvidia.com", {"apiVersion": NVIDIA, "kind": "MigDeviceConfig"} | MPS),
    ("gpu.nvidia.com", {"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "SharedGpuConfig"}),
]
_VALUES = [None, 0, 1, 50, 100, 101, "0", "1Mi", "1Ki", "10Gi", "MPS", "TimeSlicing", "Auto", "Required", "Long", True]
_VALUES += [
    {},
    [],
    {"interval": "Short"},
    {"strategy": "MPS"},
    {"0": "5Gi"},
    {"1": "5Gi"},
    {"GPU-x": "1"},
    {"a": "1Gi"},
]
_BYTES = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\x00",
    b"1e999",
    b"NaN",
    b"-",
]


def config(rng: random.Random) -> tuple[str, str, bytes]:
    """Return a driver, the kind that a config was before it was changed, and its text."""
    driver, value = rng.choice(VALID + _MORE)
    kind = value["kind"]
    match rng.randrange(5):
        case 0:
            value = mutated(value, rng)
        case 1 | 2:
            value = slipped(value, rng)
        case 3:
            return driver, kind, doubled(json.dumps(value), rng).encode()
        case _:
            return driver, kind, damaged(json.dumps(value).encode(), rng)
    return driver, kind, json.dumps(value).encode("utf-8", "surrogatepass")


def _objects(value):
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _objects(item)


def slipped(value, rng: random.Random):
    """Return a config with a few likely mistakes: known fields in the wrong place, values of other fields."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(0, 2)):
        place = rng.choice(list(_objects(value)))
        name = rng.choice(sorted(place) or FIELDS)
        match rng.randrange(4):
            case 0:
                place.pop(name, None)
            case 1:
                place[rng.choice(FIELDS)] = place.pop(name, None)
            case 2:
                place[rng.choice(FIELDS)] = copy.deepcopy(rng.choice(_VALUES))
            case _:
                place[name] = copy.deepcopy(rng.choice(_VALUES))
    return value


def doubled(text: str, rng: random.Random) -> str:
    """Return the text of a config in which a field may stand twice."""
    starts = [index for index, character in enumerate(text) if character == "{"]
    at = rng.choice(starts) + 1
    field = rng.choice(FIELDS)
    value = json.dumps(rng.choice(_VALUES))
    comma = ", " if text[at] != "}" else ""
    return f'{text[:at]}"{field}": {value}{comma}{text[at:]}'


def damaged(text: bytes, rng: random.Random) -> bytes:
    """Return the text of a config with some bytes too many, too few, or others."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        upto = min(len(text), at + rng.randint(0, 4))
        text = text[:at] + (rng.choice(_BYTES) if rng.random() < 0.7 else b"") + text[upto:]
    return text
