"""Claims by which somebody would reach out of his own: into paths, commands, formats, logs, numbers, his neighbours."""

from typing import Any

from dra_gpu_sim.local.cluster import DRIVER

POOL = "node-0"
TEN_KIB = "x" * 10_240
OWNED = "/tmp/owned-by-a-claim"
#: What does harm where text is taken for something else; each is tried in every place of a claim that takes text.
TEXTS = {
    "path": "../../../etc/cron.d/evil",
    "absolute-path": "/etc/passwd",
    "nul": "gpu-0\x00.json",
    "line": 'gpu-0\n{"level": "info", "event": "all is well"}',
    "terminal": "\x1b]0;owned\x07\x1b[2J",
    "shell": f"$(touch {OWNED});`touch {OWNED}`|reboot #",
    "format": "%s%n%x{0.__class__}{__import__}{{7*7}}",
    "sql": "'; DROP TABLE claims; --",
    "json": '"}],"devices":[{"device":"gpu-1',
    "right-to-left": "gpu-0\u202e\u2066exe",
    "look-alike": "gpu-\uff10",
    "astral": "\U0001f4a9" * 63,
    "surrogate-like": "\ufffd\ufffe\uffff",
    "long": TEN_KIB,
    "name-of-253": "a" * 253,
    "empty": "",
    "dot": "..",
}
#: What is no amount of anything, or too much of it.
AMOUNTS = (
    "1e308", "9" * 400, str(2**63), str(2**64), "-1", "0", "NaN", "Infinity", "0x10", "1_000", "10Gi\n", "10 Gi", "",
    "1Ei", "100000000000000E", "1n", "\uff11\uff10", "10GiB", "$(nproc)",
)  # fmt: skip


def one(device: str, **more: Any) -> dict[str, Any]:
    """One device of an allocation."""
    return {"request": "r", "driver": DRIVER, "pool": POOL, "device": device, **more}


def opaque(parameters: Any) -> dict[str, Any]:
    """A config from a claim."""
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


def allocation(*results: dict[str, Any], config: Any = None) -> dict[str, Any]:
    """What a scheduler would have written, had the API server let it."""
    devices: dict[str, Any] = {"results": list(results)}
    return {"devices": devices | ({"config": [opaque(config)]} if config is not None else {})}


def _interval(text: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": text}},
    }


def _limits(**limits: Any) -> dict[str, Any]:
    sharing = {"strategy": "MPS", "mpsConfig": limits}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}


def of_whole_gpus() -> dict[str, dict[str, Any]]:
    """Allocations of whole GPUs and partitions that have to be refused, by what is wrong with them."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in TEXTS.items():
        found[f"device-{name}"] = allocation(one(text))
        found[f"device-behind-{name}"] = allocation(one(f"gpu-0/{text}"))
        found[f"partition-{name}"] = allocation(one(f"gpu-0-mig-{text}-19-0"))
        found[f"share-{name}"] = allocation(one("gpu-0", shareID=text)) if text else allocation(one("gpu-0 "))
        found[f"interval-{name}"] = allocation(one("gpu-0"), config=_interval(text))
        found[f"kind-{name}"] = allocation(one("gpu-0"), config=_interval("Short") | {"kind": text})
        found[f"version-{name}"] = allocation(one("gpu-0"), config=_interval("Short") | {"apiVersion": text})
        found[f"field-{name}"] = allocation(one("gpu-0"), config=_interval("Short") | {f"f{text}": text})
        found[f"strategy-{name}"] = allocation(
            one("gpu-0"), config=_interval("Short") | {"sharing": {"strategy": text, "timeSlicingConfig": {}}}
        )
        found[f"mps-device-{name}"] = allocation(
            one("gpu-0"), config=_limits(defaultPerDevicePinnedMemoryLimit={text: "1Gi"})
        )
    for number, amount in enumerate(AMOUNTS):
        found[f"mps-amount-{number}"] = allocation(one("gpu-0"), config=_limits(defaultPinnedDeviceMemoryLimit=amount))
    for percent in (-1, 0, 101, 2**31, 2**63, 1e308, "20", "20%"):
        found[f"mps-percent-{percent}"] = allocation(
            one("gpu-0"), config=_limits(defaultActiveThreadPercentage=percent, defaultPinnedDeviceMemoryLimit=None)
        )
    nested: Any = "x"
    for _ in range(120):
        nested = {"sharing": nested}
    found["config-of-120-levels"] = allocation(one("gpu-0"), config=_interval("Short") | {"sharing": nested})
    found["config-of-many-keys"] = allocation(
        one("gpu-0"), config=_interval("Short") | {f"key-{number}": number for number in range(1_000)}
    )
    return found


def of_shares(share_id: str) -> dict[str, dict[str, Any]]:
    """Allocations of shares of a GPU that have to be refused."""
    good = {"computePercent": "20", "memory": "10Gi"}
    found = {
        f"{capacity}-{number}": allocation(
            one("gpu-0-shared", shareID=share_id, consumedCapacity=good | {capacity: amount})
        )
        for capacity in good
        for number, amount in enumerate(AMOUNTS)
        if amount != "1n"  # an amount, which a scheduler rounds up
    }
    for name, text in TEXTS.items():
        found[f"share-{name}"] = allocation(one("gpu-0-shared", shareID=text, consumedCapacity=good))
        for field in ("strategy", "enforcement", "priority"):
            config = {"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "SharedGpuConfig", field: text}
            found[f"{field}-{name}"] = allocation(
                one("gpu-0-shared", shareID=share_id, consumedCapacity=good), config=config
            )
    return found
