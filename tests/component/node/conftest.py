"""The shipped node plugin as a process, on simulated GPUs, with an API server over HTTP and a kubelet over gRPC."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from dra_gpu_sim.local.cluster import DRIVER, LocalCluster
from dra_gpu_sim.local.kubelet import Answer, Claim, Kubelet
from dra_gpu_sim.local.plugin import PluginProcess
from tests.component.node.configs import opaque as opaque  # noqa: PLC0414 - tests have it from here
from tests.component.node.configs import time_slice
from tests.component.node.node_under_fire import PATIENCE
from tests.component.node.sharing import Sharing


class World:
    """A cluster with one registered instance of the plugin, and short words for what tests do with it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.kubelet: Kubelet = cluster.new_kubelet()
        self.plugin: PluginProcess | None = None

    @property
    def node(self):
        return self.cluster.node

    @property
    def api(self):
        return self.cluster.api

    async def start(self, *more: str, devices: int | None = None) -> PluginProcess:
        """Start an instance and wait until it is registered and has published `devices`."""
        if not any(argument.startswith("--views") for argument in more):
            more = (*more, "--views=gpu,monitor")
        known = len(self.kubelet.plugins)
        self.plugin = await self.cluster.start_plugin(*more)
        registering = asyncio.ensure_future(self.kubelet.wait_registered(DRIVER, count=known + 1))
        ending = asyncio.ensure_future(self.plugin.process.wait())
        await asyncio.wait({registering, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not registering.done():
            registering.cancel()
            raise RuntimeError(f"the plugin ended before it was registered:\n{self.plugin.read_log()}")
        await registering
        if devices is not None:
            await self.cluster.wait_slices(devices)
        return self.plugin

    async def restart(self, *more: str) -> PluginProcess:
        """Kill the instance as a power cut would, and start another."""
        await self.plugin.kill()
        self.kubelet.restart()
        return await self.start(*more)

    async def prepare(self, *claims: Claim, within: float = 45) -> dict[str, Answer]:
        return await self.kubelet.prepare(*claims, driver=DRIVER, within=within)

    async def prepared(self, claim: Claim) -> Answer:
        """Prepare one claim that must succeed."""
        answer = (await self.prepare(claim))[claim.uid]
        assert answer.error == ""
        return answer

    async def refused(self, claim: Claim) -> str:
        """Prepare one claim that must be refused, and return why."""
        answer = (await self.prepare(claim))[claim.uid]
        assert answer.error
        assert answer.devices == ()
        return answer.error

    async def unprepare(self, *claims: Claim, within: float = 45) -> dict[str, str]:
        return await self.kubelet.unprepare(*claims, driver=DRIVER, within=within)

    def claim(self, name: str, *devices: str, interval: str = "", **options) -> Claim:
        """Create an allocated claim on these devices, with a time slice if one is named."""
        results = [
            {"request": f"r{number}", "driver": DRIVER, "pool": self.cluster.node_name, "device": device}
            for number, device in enumerate(devices)
        ]
        if interval:
            options["config"] = [time_slice(interval)]
        return self.cluster.add_claim(name, results=results, **options)

    async def until(self, condition: Callable[[], bool], within: float = PATIENCE) -> None:
        """Wait for what can only be looked at: the simulator's state, the plugin's log."""
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_hardware_is_called(self) -> None:
        """Wait until a call has met an injected fault."""
        await self.until(lambda: any(fault.hits for fault in self.node.faults()))

    @property
    def cdi_files(self) -> list[str]:
        return sorted(path.name for path in self.cluster.paths.cdi.iterdir())

    def time_slices(self) -> list[int]:
        """The truth about the GPUs' time slices, from the simulator's state."""
        return [gpu.time_slice for gpu in self.node.gpus]


@pytest.fixture
async def make_world() -> AsyncIterator[Callable]:
    """Make worlds that end with the test; socket paths must be short, so not pytest's own directory."""
    async with AsyncExitStack() as stack:
        worlds: list[World] = []

        async def make(profile: str = "P-dc8", *, gpus: int | None = None, **options) -> World:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dg-")))
            cluster = await stack.enter_async_context(LocalCluster(root, profile, gpus, **options))
            worlds.append(World(cluster))
            return worlds[-1]

        yield make


@pytest.fixture
async def world(make_world) -> World:
    """Eight H100-like GPUs and a running, registered plugin that has published them."""
    made = await make_world()
    await made.start(devices=16)
    return made


@pytest.fixture
async def make_sharing(make_world) -> AsyncIterator[Callable]:
    """Make nodes whose GPUs are shared: one H100-like GPU, the MPS service and the node plugin, by default."""
    with ExitStack() as stack:

        async def make(
            profile: str = "P-dc8", *more: str, gpus: int = 1, mps: bool = True, cgroup_v2: bool = True, **options
        ) -> Sharing:
            sharing = Sharing(await make_world(profile, gpus=gpus, **options))
            stack.callback(sharing.close)
            return await sharing.start(*more, mps=mps, cgroup_v2=cgroup_v2)

        yield make


@pytest.fixture
async def sharing(make_sharing):
    """A node with one H100-like GPU of driver 615, whose shares are limited by namespaces and cgroups."""
    return await make_sharing()
