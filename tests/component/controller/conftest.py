"""The shipped controller as processes, with an API server in memory."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_gpu.validation import crds
from dra_gpu_sim.apiserver.server import ApiServer
from dra_gpu_sim.local.plugin import PluginProcess
from tests.component.node.scraping import Scraper

PATIENCE = 60.0
LEASE = "dra-gpu-controller"


@dataclass
class Cluster:
    """An API server, and replicas of the controller."""

    api: ApiServer
    directory: Path
    stack: AsyncExitStack

    @property
    def kubeconfig(self) -> Path:
        path = self.directory / "kubeconfig"
        content = {
            "current-context": "local",
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "us"}}],
            "clusters": [{"name": "local", "cluster": {"server": self.api.url}}],
            "users": [{"name": "us", "user": {}}],
        }
        path.write_text(json.dumps(content))
        return path

    async def replica(self, name: str, *more: str) -> PluginProcess:
        """Start a replica."""
        process = PluginProcess(self.directory / f"{name}.log")
        await process.start(
            [
                "controller",
                f"--kubeconfig={self.kubeconfig}",
                f"--pod-name={name}",
                "--http-endpoint=127.0.0.1:0",
                *more,
            ]
        )
        self.stack.push_async_callback(process.kill)
        return process

    async def scraper(self, process: PluginProcess) -> Scraper:
        """Where a replica serves; it has written its port by the time it asks for the lease."""
        await self.api.log.wait_for(lambda _: "serving metrics" in process.read_log(), PATIENCE)
        line = next(line for line in process.read_log().splitlines() if "serving metrics" in line)
        return Scraper(int(re.search(r'"port": (\d+)', line)[1]))

    async def leader(self, name: str) -> None:
        """Wait until a replica leads."""
        await self.api.log.wait_for(lambda _: self.holder().startswith(f"{name}_"), PATIENCE)

    def holder(self) -> str:
        leases = [one for one in self.api.objects("leases") if one["metadata"]["name"] == LEASE]
        return leases[0]["spec"].get("holderIdentity", "") if leases else ""

    def claim(self, name: str, *pods: dict, driver: str = "gpu.nvidia.com") -> dict:
        """An allocated claim that these pods use."""
        result = {"request": "gpu", "driver": driver, "pool": "node-0", "device": "gpu-0"}
        users = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
        return self.api.put("resourceclaims", {"metadata": {"name": name}, "spec": {}, "status": status}, "team-a")

    def pod(self, name: str, phase: str = "Pending", node: str = "node-0") -> dict:
        spec = {"nodeName": node} if node else {}
        return self.api.put("pods", {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}, "team-a")

    def event(self, claim: dict, name: str = "free.1", reason: str = "DeviceFree", at: str = "") -> str:
        """What the node plugin says of a claim."""
        stamp = at or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta = claim["metadata"]
        about = {"kind": "ResourceClaim", "namespace": "team-a", "name": meta["name"], "uid": meta["uid"]}
        event = {"metadata": {"name": name}, "involvedObject": about, "reason": reason, "lastTimestamp": stamp}
        self.api.put("events", event, "team-a")
        return stamp

    def annotation(self, pod: dict) -> str:
        found = next(one for one in self.api.objects("pods") if one["metadata"]["uid"] == pod["metadata"]["uid"])
        return found["metadata"].get("annotations", {}).get("resource.dra-gpu.dev/prepare-again", "")

    async def touched(self, pod: dict) -> str:
        await self.api.log.wait_for(lambda _: self.annotation(pod), PATIENCE)
        return self.annotation(pod)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    server = ApiServer()
    await server.start()
    for definition in crds.definitions().values():
        server.put("customresourcedefinitions", definition)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        yield Cluster(server, tmp_path, stack)
