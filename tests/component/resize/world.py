"""A cluster with one node in virtual time: scheduler, controllers, kubelet, plugin, programs; and what is true of it.

Everything about it follows from a seed.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Self

import yaml

from dra_gpu_sim.apiserver.server import ApiServer, ServerOptions
from dra_gpu_sim.local.cluster import DEVICE_CLASSES
from dra_gpu_sim.local.controlplane import ControlPlane
from dra_gpu_sim.node import SimulatedNode
from tests.component.resize.controller import ControllerProcess
from tests.component.resize.hardware import MappedGpu, MappedMps
from tests.component.resize.kubelet import Kubelet, Times
from tests.component.resize.memory_api import MemoryApi, Network
from tests.component.resize.objects import Objects
from tests.component.resize.plugin import NODE, Plugin
from tests.unit.inventory.builders import gpu


class World:
    """The cluster. Everything about it follows from the seed.

    Args:
        directory: the node's disk.
        node: one simulated GPU.
        seed: of everything that is random.
    """

    def __init__(self, directory: Path, node: SimulatedNode, seed: int) -> None:
        self.random = Random(seed)
        self.directory = directory
        self.node = node
        self.server = ApiServer(ServerOptions(seed=seed))
        self.network = Network(self.random)
        self.plane = ControlPlane(self.server, NODE)
        self.gpu = gpu(0, uuid=node.uuids[0], memory_bytes=node.gpus[0].memory)
        self.vendor = MappedGpu(node)
        self.mps = MappedMps(self.vendor)
        self.kubelet = Kubelet(self.plane.objects, self.vendor, self.engine, self.random, Times(again=(2.0, 8.0)))
        self.boot = "boot-0"
        self.plugin: Plugin | None = None
        self.controller: ControllerProcess | None = None
        self.beyond = self.random.random() < 0.7
        """Whether claims may have more than they were allocated."""
        self.objects = Objects(self.server, node)
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task] = []
        self._plugin_task: asyncio.Task | None = None
        self._controller_task: asyncio.Task | None = None
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self.server.put("nodes", {"metadata": {"name": NODE}})
        for device_class in yaml.safe_load_all(DEVICE_CLASSES.read_text()):
            self.server.put("deviceclasses", device_class)
        await self._stack.enter_async_context(self.plane.running())
        self._tasks.append(asyncio.create_task(self.kubelet.run()))
        self.start_plugin()
        self.start_controller()
        await asyncio.sleep(5.0)
        self.objects.hardware = self.objects.published()
        return self

    async def __aexit__(self, *_exception) -> None:
        await self.kill_plugin()
        await self.kill_controller()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        self.plane.close()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def engine(self):
        return self.plugin.engine if self.plugin is not None and not self.plugin.fate.dead else None

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something in so many seconds."""
        asyncio.get_running_loop().call_later(seconds, what)

    def start_plugin(self) -> None:
        """Start an instance of the node plugin, unless one runs."""
        if self.plugin is None:
            self.plugin = Plugin(self.directory, self.boot, self.gpu, self.vendor, self.mps, self._api)
            self._plugin_task = asyncio.create_task(self._until_death(self.plugin, self.kill_plugin, self.start_plugin))

    def start_controller(self) -> None:
        """Start a replica of the controller, unless one runs."""
        if self.controller is None:
            self.controller = ControllerProcess(self._api, beyond=self.beyond)
            self._controller_task = asyncio.create_task(
                self._until_death(self.controller, self.kill_controller, self.start_controller)
            )

    async def kill_plugin(self) -> None:
        """End the instance as kill -9 does."""
        if self.plugin is not None:
            task, dying, self.plugin = self._plugin_task, self.plugin, None
            await self._kill(dying, task)

    async def kill_controller(self) -> None:
        """End the replica as kill -9 does."""
        if self.controller is not None:
            task, dying, self.controller = self._controller_task, self.controller, None
            await self._kill(dying, task)

    async def ensure_running(self) -> None:
        """Let plugin and controller run, and live."""
        for process, kill, start in (
            (self.plugin, self.kill_plugin, self.start_plugin),
            (self.controller, self.kill_controller, self.start_controller),
        ):
            if process is not None and process.fate.dead:
                await kill()
            start()
        for process in (self.plugin, self.controller):
            process.fate.left = None

    def lose_journal(self) -> None:
        """Let the node's disk have no journal, as after somebody cleaned up; only while no plugin runs."""
        for path in (self.directory / "state").glob("journal.db*"):
            path.unlink()

    async def reboot(self) -> None:
        """End everything on the node; what is on its disk stays."""
        await self.kill_plugin()
        self.vendor.reboot()
        self.mps.held.clear()
        for path in (self.directory / "cdi").glob("*"):
            path.unlink()
        self.boot = f"boot-{next(self._numbers)}"
        self.kubelet.reboot()

    def release_slices(self) -> None:
        self.plane.scheduler.release_slices()
        self.plane.wake()

    def let_bind(self) -> None:
        self.plane.binds = True
        self.plane.wake()

    def programs(self):
        """Return the programs that run, in pods that run."""
        return [one for pod in self.kubelet.pods.values() if pod.prepared for one in pod.programs if one.running]

    async def attach(self, pod) -> bool:
        """Let a program of a prepared pod attach to its share; tell whether it was let in."""
        limits = next((it for (_, name), it in self.mps.held.items() if name == pod.share), None)
        program = None if limits is None else self.vendor.attach(f"{pod.cgroup}/main", pod.share, limits)
        if program is not None:
            pod.programs.append(program)
        return program is not None

    def check(self) -> None:
        """Assert what must be true at every moment."""
        self.objects.check()

    async def left(self) -> list[str]:
        """Return what is there though everything was deleted."""
        found = self.objects.left()
        found += [f"record {one.ref}" for one in await self.plugin.journal.records()]
        found += [f"resize {one}" for one in await self.plugin.journal.resizes()]
        found += [f"share {name}" for name in self.mps.names()]
        found += [f"CDI file of {uid}" for uid in self.plugin.specs.claim_uids()]
        return found

    async def _until_death(self, process, kill, start) -> None:
        """Run a process; when it has died of itself, let another one follow."""
        await process.run()
        if process.fate.dead:
            self.later(self.random.uniform(0.3, 10.0), lambda: self._tasks.append(asyncio.create_task(again())))

        async def again() -> None:
            if process in (self.plugin, self.controller):
                await kill()
                start()

    async def _kill(self, process, task: asyncio.Task) -> None:
        process.fate.dead = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        process.close()

    def _api(self, boundary) -> MemoryApi:
        return MemoryApi(self.server, self.network, boundary)
