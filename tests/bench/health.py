"""A GPU that fails: how long until the API server, and with it the scheduler, knows.

A simulated node of eight H100 with every view and profile published, which are 232 devices; the node plugin, and an API
server in memory. Each GPU fails once a run. The floor is one PUT of the very slice that has to be written.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_gpu_sim.local.cluster import DRIVER, LocalCluster
from tests.bench.cluster import Api
from tests.bench.figures import Figure, percentile

GPUS = 8
FATAL = 95  # an uncontained memory error
TARGET_MS = 1000.0
SECONDS = 60.0
KEY = "fatal XID -> taint in the API"


def measure(runs: int) -> list[Sequence[Figure]]:
    """Measure so many times, each with a plugin of its own."""
    return [asyncio.run(_once()) for _ in range(runs)]


async def _once() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="dra-bench-") as root:
        async with LocalCluster(Path(root), "H100", GPUS) as cluster:
            kubelet = cluster.new_kubelet()
            plugin = await cluster.start_plugin("--log-level=warning")
            await kubelet.wait_registered(DRIVER)
            await cluster.api.log.wait_for(lambda _: _taints(cluster) == [0] * GPUS, SECONDS)
            async with asyncio.timeout(SECONDS):
                while len(cluster.node.calls("nvmlDeviceRegisterEvents")) < GPUS:
                    await asyncio.sleep(0.02)
            taken = [await _fail(cluster, gpu) for gpu in range(GPUS)]
            await plugin.stop()
            floor = await asyncio.to_thread(_put, cluster)
    return [
        Figure(f"{KEY} p50", 1000 * statistics.median(taken), "ms", floor),
        Figure(f"{KEY}, slowest", 1000 * percentile(taken, 1), "ms", floor, TARGET_MS, "1 s"),
    ]


async def _fail(cluster: LocalCluster, gpu: int) -> float:
    started = time.perf_counter()
    cluster.node.xid(gpu, FATAL)
    await cluster.api.log.wait_for(lambda _: _taints(cluster)[gpu] > 0, SECONDS)
    return time.perf_counter() - started


def _taints(cluster: LocalCluster) -> list[int]:
    """How many taints each GPU has, by its number; nothing before all of them are published."""
    found = {device["name"]: device for one in cluster.slices() for device in one["spec"].get("devices", ())}
    return [len(found[f"gpu-{gpu}"].get("taints", ())) for gpu in range(GPUS) if f"gpu-{gpu}" in found]


def _put(cluster: LocalCluster) -> float:
    """Milliseconds of one PUT of the slice of whole GPUs, the median of some."""
    server, taken = Api(cluster.api.url), []
    path = "/apis/resource.k8s.io/v1/resourceslices"
    try:
        for _ in range(20):
            slices: list[dict[str, Any]] = server.call("GET", path)["items"]
            body = next(
                one for one in slices if any(device["name"] == "gpu-0" for device in one["spec"].get("devices", ()))
            )
            started = time.perf_counter()
            server.call("PUT", f"{path}/{body['metadata']['name']}", body)
            taken.append(time.perf_counter() - started)
    finally:
        server.close()
    return 1000 * statistics.median(taken)
