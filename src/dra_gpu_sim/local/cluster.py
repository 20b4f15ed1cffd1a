"""A small cluster in one process: simulated GPUs, an API server in memory, a kubelet; and the real node plugin."""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from dra_gpu_sim.apiserver.server import ApiServer, ServerOptions
from dra_gpu_sim.local import allocator, plugin
from dra_gpu_sim.local.kubelet import Claim, Kubelet
from dra_gpu_sim.mounts import unmount_all
from dra_gpu_sim.node import SimulatedNode

DRIVER = "gpu.nvidia.com"
NAMESPACE = "default"
DEVICE_CLASSES = Path(__file__).parents[3] / "deploy" / "deviceclasses.yaml"


@dataclass(slots=True)
class LocalCluster:
    """One node. Use it as an asynchronous context manager.

    Attributes:
        root: everything it writes lies below this directory.
        profile: the simulated GPUs, by the name of a profile.
        gpus: how many of them; None for as many as the profile has.
        node_name: name of the Node object.
        settings: what differs from the profile, such as `gpu.0.minor=4` (`SimulatedNode.create`).
        without_symbols: NVML calls that the library shall not export.
        driver_version: of the GPUs' driver; None for the profile's.
    """

    root: Path
    profile: str = "H100"
    gpus: int | None = 8
    node_name: str = "node-0"
    settings: Sequence[str] = ()
    without_symbols: Sequence[str] = ()
    driver_version: str | None = None
    api: ApiServer = field(default_factory=lambda: ApiServer(ServerOptions()))
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _node: SimulatedNode | None = None
    _started: int = 0

    async def __aenter__(self) -> Self:
        self.paths.make()
        self._node = SimulatedNode.create(
            self.root / "gpus",
            self.profile,
            gpus=self.gpus,
            settings=self.settings,
            without_symbols=self.without_symbols,
            driver_version=self.driver_version,
        )
        with self._node.state() as state:
            state.cgroup_root = str(self.paths.cgroups).encode()
        self._stack.callback(self._node.destroy)
        await self.api.start()
        self._stack.push_async_callback(self.api.stop)
        self.api.put("nodes", {"metadata": {"name": self.node_name}, "status": {"allocatable": {"cpu": "2"}}})
        for device_class in yaml.safe_load_all(DEVICE_CLASSES.read_text()):
            self.api.put("deviceclasses", device_class)
        self.kubeconfig.write_text(json.dumps(_kubeconfig(self.api.url)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.aclose()
        finally:
            unmount_all(self.root)  # the memory that a share's clients have at /dev/shm, where shares are left

    @property
    def paths(self) -> plugin.NodePaths:
        """The host side of the node."""
        return plugin.NodePaths(self.root)

    @property
    def node(self) -> SimulatedNode:
        """The simulated GPUs."""
        if self._node is None:
            raise RuntimeError("the cluster has not been started: use it as an asynchronous context manager")
        return self._node

    @property
    def kubeconfig(self) -> Path:
        """How the node plugin reaches the API server."""
        return self.root / "kubeconfig"

    async def start_plugin(self, *more: str) -> plugin.PluginProcess:
        """Start an instance of the node plugin; it is killed when the cluster ends."""
        self._started += 1
        process = plugin.PluginProcess(self.root / f"plugin-{self._started}.log")
        await process.start(
            [*plugin.arguments(self.node, self.paths, node_name=self.node_name, kubeconfig=self.kubeconfig), *more]
        )
        self._stack.push_async_callback(process.kill)
        return process

    async def start_mps(self) -> plugin.PluginProcess:
        """Start the MPS service; it is stopped, and its daemons with it, when the cluster ends."""
        process = plugin.PluginProcess(self.root / "mps.log")
        await process.start(plugin.mps_arguments(self.node, self.paths))
        self._stack.push_async_callback(process.stop)
        return process

    def new_kubelet(self) -> Kubelet:
        """Return the node's kubelet; its connections close when the cluster ends."""
        kubelet = Kubelet(self.paths.kubelet)
        self._stack.callback(kubelet.close)
        return kubelet

    async def wait_slices(self, count: int, *, within: float = 60.0) -> list[dict[str, Any]]:
        """Return the driver's slices as soon as the pool is complete and has `count` devices.

        Raises:
            TimeoutError: it did not come to that in time.
        """
        await self.api.log.wait_for(lambda _: self._complete(count), within)
        return self.slices()

    def slices(self) -> list[dict[str, Any]]:
        """Return the driver's slices in the order of their names."""
        found = [item for item in self.api.objects("resourceslices") if item["spec"]["driver"] == DRIVER]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def _complete(self, count: int) -> bool:
        specs = [item["spec"] for item in self.slices()]
        newest = max((spec["pool"]["generation"] for spec in specs), default=0)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        devices = sum(len(spec.get("devices", ())) for spec in current)
        return bool(current) and len(current) == current[0]["pool"]["resourceSliceCount"] and devices == count

    def add_claim(
        self,
        name: str,
        *,
        requests: list[dict[str, Any]] | None = None,
        results: list[dict[str, Any]] | None = None,
        config: list[dict[str, Any]] | None = None,
        constraints: list[dict[str, Any]] | None = None,
        namespace: str = NAMESPACE,
        pod_uid: str = "",
    ) -> Claim:
        """Create an allocated claim, as the scheduler leaves it.

        Args:
            name: its name.
            requests: what it asks for, given to the local allocator; by default one whole GPU.
            results: the devices it got, instead of asking the allocator.
            config: the allocation's configs, instead of those of its classes.
            constraints: conditions on its devices together.
            namespace: where it lives.
            pod_uid: the pod that may use it; without one nobody is entered.

        Raises:
            UnschedulableError: the allocator finds no devices.
        """
        asked = requests or [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
        claim: dict[str, Any] = {
            "metadata": {"name": name},
            "spec": {"devices": {"requests": asked, "constraints": constraints or []}},
        }
        allocation = {"devices": {"results": results}} if results is not None else self._allocate(claim, namespace)
        if config:
            allocation["devices"]["config"] = config
        status: dict[str, Any] = {"allocation": allocation}
        if pod_uid:
            status["reservedFor"] = [{"resource": "pods", "name": name, "uid": pod_uid}]
        made = self.api.put("resourceclaims", claim | {"status": status}, namespace)
        return Claim(namespace, name, made["metadata"]["uid"])

    def remove_claim(self, claim: Claim) -> None:
        """Delete a claim, as the garbage collector does once its pod is gone."""
        self.api.remove("resourceclaims", claim.name, claim.namespace)

    def _allocate(self, claim: dict[str, Any], namespace: str) -> dict[str, Any]:
        (node,) = (item for item in self.api.objects("nodes") if item["metadata"]["name"] == self.node_name)
        return allocator.allocate(
            claim | {"metadata": claim["metadata"] | {"namespace": namespace}},
            classes=self.api.objects("deviceclasses"),
            slices=self.api.objects("resourceslices"),
            claims=self.api.objects("resourceclaims"),
            node=node,
        )


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "plugin"}}],
        "clusters": [{"name": "local", "cluster": {"server": url}}],
        "users": [{"name": "plugin", "user": {}}],
    }
