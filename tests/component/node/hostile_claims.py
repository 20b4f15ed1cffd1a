"""Claims as somebody would write them who wants to break the driver: repeatable mutations of good ones."""

import copy
import random
from typing import Any

from dra_gpu_sim.local.cluster import DRIVER

GOOD_CONFIG: dict[str, Any] = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}},
}
_INTERVALS = ("Default", "Short", "Medium", "Long")

HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    10**300,
    1e308,
    -0.0,
    "",
    " ",
    "\x00",
    "\x1b[31mred\x07",
    "a\nb\r\nInjected: yes",
    "../../etc/shadow",
    "/dev/sda",
    "{{7*7}}",
    "$(reboot)",
    "'; DROP TABLE claims; --",
    "\u202etxt.exe",
    "\ufeffGpuConfig",
    "\uff33hort",
    "gpu-0 ",
    "short",
    "9" * 400,
    "x" * 10_240,
    [],
    {},
    [[[[[]]]]],
    {"": {"": {"": None}}},
    ["Short"],
    {"interval": "Short"},
    "TimeSlicing",
    "MPS",
    "MigDeviceConfig",
    "NaN",
    "100Gi",
]
KEYS = ["", "kind", "Kind", "apiVersion", "sharing", "__proto__", "interval", "strategy", "x" * 5_000, "\x00"]
UIDS = [
    "",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "a/b",
    "-a",
    "a-",
    "a" * 64,
    "a" * 10_000,
    "a\nb",
    "a\x00b",
    "ä",
    "a b",
    "%2e%2e%2f",
    "*",
    "${HOME}",
    "a.json",
    "1;rm",
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value, that of itself included."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in _places(inner, (*path, key)))]


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a copy with one to three things about it wrong: a value, a field too many, a field too few."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(_places(value))
        if not path:
            if rng.random() < 0.1:
                return copy.deepcopy(rng.choice(HOSTILE))
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        match rng.random():
            case chance if chance < 0.6:
                parent[path[-1]] = copy.deepcopy(rng.choice(HOSTILE))
            case chance if chance < 0.8 and isinstance(parent, dict):
                parent[rng.choice(KEYS)] = copy.deepcopy(rng.choice(HOSTILE))
            case _:
                del parent[path[-1]]
    return value


def interval_of(config: Any) -> str | None:
    """Tell what a config of a whole GPU asks for: an interval, "" for nothing, None when it is not a good one.

    Written from NVIDIA's API (v1beta1 GpuConfig), not from the driver's decoder.
    """
    if not isinstance(config, dict) or not set(config) <= {"apiVersion", "kind", "sharing"}:
        return None
    if config.get("apiVersion") != GOOD_CONFIG["apiVersion"]:
        return None
    if config.get("kind") != "GpuConfig":
        return None
    sharing = config.get("sharing")
    if sharing is None:
        return ""
    if not isinstance(sharing, dict) or not set(sharing) <= {"strategy", "timeSlicingConfig", "mpsConfig"}:
        return None
    if sharing.get("strategy") != "TimeSlicing" or sharing.get("mpsConfig") is not None:
        return None
    slicing = sharing.get("timeSlicingConfig")
    slicing = {} if slicing is None else slicing
    if not isinstance(slicing, dict) or not set(slicing) <= {"interval"}:
        return None
    interval = slicing.get("interval")
    interval = "Default" if interval is None else interval
    return interval if interval in _INTERVALS else None


def good_allocation() -> dict[str, Any]:
    """Return the allocation of two GPUs with a config."""
    results = [
        {"request": f"r{number}", "driver": DRIVER, "pool": "node-0", "device": f"gpu-{number}"} for number in range(2)
    ]
    config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": copy.deepcopy(GOOD_CONFIG)}}
    return {"devices": {"results": results, "config": [config]}}


def devices_of(allocation: Any) -> list[str] | None:
    """Return our devices in an allocation; None when something in it is not as Kubernetes' types have it."""
    try:
        results = allocation.get("devices", {}).get("results", [])
        named = [(result["request"], result["driver"], result["pool"], result["device"]) for result in results]
    except (AttributeError, TypeError, KeyError):
        return None
    if not all(isinstance(text, str) for result in named for text in result):
        return None
    return [device for _, driver, pool, device in named if (driver, pool) == (DRIVER, "node-0")]
