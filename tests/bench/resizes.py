"""Moving capacity: how long from the change of a ClaimResize until its status says that it is in force.

A simulated node with one GPU, whose shares are limited by namespaces and cgroups; node plugin, MPS service and
controller as processes, and an API server, a scheduler and controllers of Kubernetes in memory. No program is attached,
since how long one takes to let go is not what is measured. The floor is one patch of the object's status.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.apiserver.store import Change
from dra_gpu_sim.local import pods
from dra_gpu_sim.local.cluster import DRIVER, NAMESPACE, LocalCluster
from dra_gpu_sim.local.controlplane import ControlPlane
from dra_gpu_sim.local.kubelet import Claim
from dra_gpu_sim.local.plugin import PluginProcess
from tests.bench.cluster import Api
from tests.bench.figures import Figure

PROFILE = "P-dc8"  # H100 with driver 615, whose shares are limited by namespaces
SAMPLES = 8
SECONDS = 60.0
NAME = "training"
ALL, SMALL = ("90", "60Gi"), ("20", "10Gi")
KIND = resources.by_plural("claimresizes")
PATH = f"/apis/resource.dra-gpu.dev/v1alpha1/namespaces/{NAMESPACE}/claimresizes"
BACK, MORE, NODE = "resize -> given back", "resize -> taken on", "lower limit -> in force on the node"


def measure(runs: int) -> list[Sequence[Figure]]:
    """Measure so many times, each with processes of its own."""
    return [asyncio.run(_once()) for _ in range(runs)]


@dataclass(slots=True)
class _Bed:
    """A cluster with a prepared claim of most of its GPU."""

    cluster: LocalCluster

    def want(self, percent: str, memory: str) -> None:
        """Want so much for the claim."""
        spec = {"capacity": {"computePercent": percent, "memory": memory}}
        if self.resize is None:
            self.cluster.api.put("claimresizes", {"metadata": {"name": NAME}, "spec": spec}, NAMESPACE)
        else:
            self.cluster.api.store.replace(KIND, NAMESPACE, NAME, self.resize | {"spec": spec})

    @property
    def resize(self) -> dict[str, Any] | None:
        """The object."""
        return self.cluster.api.store.find(KIND, NAMESPACE, NAME)

    async def applied(self, percent: str, memory: str) -> float:
        """Want so much, and return the seconds until the status says that it is in force."""
        started = time.perf_counter()
        self.want(percent, memory)
        generation = (self.resize or {})["metadata"]["generation"]

        def is_applied() -> bool:
            status = (self.resize or {}).get("status", {})
            held = status.get("node", {}).get("inForce", {})
            return (
                (status.get("phase"), status.get("observedGeneration")) == ("Applied", generation)
                and (held.get("computePercent"), held.get("memory")) == (percent, memory)
            )  # fmt: skip

        await self.until(is_applied)
        return time.perf_counter() - started

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the server has something."""
        changed = asyncio.Event()
        unsubscribe = self.cluster.api.store.subscribe(lambda _: changed.set())
        try:
            async with asyncio.timeout(SECONDS):
                while not condition():
                    await changed.wait()
                    changed.clear()
        finally:
            unsubscribe()


class _NodesPart:
    """Seconds from the node being told of a lower limit to its word that nothing can exceed it any more."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.taken: list[float] = []
        self._since: float | None = None
        self.stop = cluster.api.store.subscribe(self._note)

    def _note(self, change: Change) -> None:
        if change.resource != KIND.key or change.before is None or change.after is None:
            return
        before, after = (one.get("status", {}) for one in (change.before, change.after))
        if _percent(after.get("wanted")) < _percent(before.get("wanted")):
            self._since = time.perf_counter()
        in_force = after.get("node", {}).get("inForce")
        if self._since is not None and in_force != before.get("node", {}).get("inForce"):
            if in_force == after.get("wanted"):
                self.taken.append(time.perf_counter() - self._since)
            self._since = None


def _percent(amounts: dict[str, str] | None) -> int:
    return int((amounts or {}).get("computePercent", 0))


async def _once() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="dra-bench-") as root:
        async with AsyncExitStack() as stack:
            bed = await _start(Path(root), stack)
            back, more = [], []
            await bed.applied(*SMALL)  # the first one finds everything closed yet
            await bed.applied(*ALL)
            nodes = _NodesPart(bed.cluster)
            for _ in range(SAMPLES):
                back.append(await bed.applied(*SMALL))
                more.append(await bed.applied(*ALL))
            nodes.stop()
            floor = await asyncio.to_thread(_patch, bed.cluster)
    return [
        Figure(f"{BACK} p50", 1000 * statistics.median(back), "ms", floor),
        Figure(f"{BACK}, slowest", 1000 * max(back), "ms", floor, 2000.0, "2 s"),
        Figure(f"{MORE} p50", 1000 * statistics.median(more), "ms", floor),
        Figure(f"{MORE}, slowest", 1000 * max(more), "ms", floor, 5000.0, "5 s"),
        Figure(f"{NODE} p50", 1000 * statistics.median(nodes.taken), "ms", floor, 100.0, "100 ms"),
    ]


async def _start(root: Path, stack: AsyncExitStack) -> _Bed:
    cluster = await stack.enter_async_context(LocalCluster(root, PROFILE, 1))
    with cluster.node.state() as state:
        state.mps_start_ms = 0  # what a daemon takes to start is not what is measured
    await cluster.start_mps()
    kubelet = cluster.new_kubelet()
    await cluster.start_plugin("--log-level=warning", "--views=gpu,shared,monitor")
    await kubelet.wait_registered(DRIVER)
    await cluster.wait_slices(3)
    plane = ControlPlane(cluster.api, cluster.node_name)
    stack.callback(plane.close)
    await stack.enter_async_context(plane.running())
    controller = PluginProcess(root / "controller.log")
    await controller.start(["controller", f"--kubeconfig={cluster.kubeconfig}", "--pod-name=bench"])
    stack.push_async_callback(controller.kill)
    bed = _Bed(cluster)
    claim = {"metadata": {"name": NAME}, "spec": {"devices": {"requests": pods.a_share(int(ALL[0]), ALL[1])}}}
    made = cluster.api.put("resourceclaims", claim, NAMESPACE)
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": NAME}]}
    pod = cluster.api.put("pods", {"metadata": {"name": NAME}, "spec": spec}, NAMESPACE)
    cluster.paths.make_pod_cgroup(pod["metadata"]["uid"])
    await bed.until(lambda: _found(cluster, "pods")["spec"].get("nodeName"))
    answer = await kubelet.prepare(Claim(NAMESPACE, NAME, made["metadata"]["uid"]), driver=DRIVER)
    [told] = answer.values()
    if told.error:
        raise OSError(f"the claim of the benchmark is refused: {told.error}")
    return bed


def _found(cluster: LocalCluster, plural: str) -> dict[str, Any]:
    found = cluster.api.store.find(resources.by_plural(plural), NAMESPACE, NAME)
    assert found is not None
    return found


def _patch(cluster: LocalCluster) -> float:
    """Milliseconds of one patch of the object's status, the median of some."""
    server, taken = Api(cluster.api.url), []
    try:
        for number in range(20):
            body = {"status": {"message": f"floor {number}"}}
            started = time.perf_counter()
            server.call("PATCH", f"{PATH}/{NAME}/status", body)
            taken.append(time.perf_counter() - started)
    finally:
        server.close()
    return 1000 * statistics.median(taken)
