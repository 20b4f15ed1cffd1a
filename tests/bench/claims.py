"""The claims of traces, as users write them."""

from typing import Any

from tests.bench.published import DRIVER
from tests.bench.traces import Ask, Partition, Share


def claim(number: int, ask: Ask) -> dict[str, Any]:
    """Return a claim as a user writes it."""
    if isinstance(ask, Partition):
        expression = f'device.attributes["{DRIVER}"].profile == "{ask.profile}"'
        exactly: dict[str, Any] = {
            "deviceClassName": "mig.nvidia.com",
            "selectors": [{"cel": {"expression": expression}}],
        }
    elif isinstance(ask, Share):
        amounts = {"computePercent": str(ask.percent), "memory": f"{ask.gib}Gi"}
        exactly = {"deviceClassName": "shared.gpu.nvidia.com", "capacity": {"requests": amounts}}
    else:
        exactly = {"deviceClassName": "gpu.nvidia.com"}
    request = {"name": "r", "exactly": {"allocationMode": "ExactCount", "count": 1} | exactly}
    metadata = {"name": f"job-{number}", "namespace": "ml", "uid": f"uid-{number}"}
    return {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}
