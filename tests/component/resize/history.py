"""A history of random steps on a cluster, and what must be true after each of them and at the end.

Users resize, create and delete; programs come, take memory, give it back and leave; the scheduler decides on what it
has seen and writes late; processes are killed between any two calls; the API server goes away, answers get lost,
watches are late; the journal is lost, the node reboots. Everything follows from the seed.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from tests.component.resize.objects import GIB, Objects
from tests.component.resize.plugin import RECONCILE_SECONDS

WORKLOADS = 5
QUIET_SECONDS = 700.0


class History:
    """Random steps.

    Args:
        world: the cluster.
    """

    PAUSES = (0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.3, 1.0, 5.0)
    WEIGHTS: ClassVar[dict[str, int]] = {
        "new_pod": 30,
        "end_pod": 5,
        "force_delete_pod": 6,
        "attach": 36,
        "allocate": 30,
        "free": 14,
        "leave": 10,
        "resize": 50,
        "delete_resize": 6,
        "kill_plugin": 2,
        "kill_plugin_at_a_call": 6,
        "kill_controller": 1,
        "kill_controller_at_a_call": 6,
        "break_mps": 1,
        "server_away": 2,
        "lose_answers": 5,
        "late_watches": 3,
        "late_slices": 4,
        "late_bindings": 6,
        "lose_journal": 1,
        "reboot": 1,
    }

    def __init__(self, world) -> None:
        self.world = world
        self.objects: Objects = world.objects
        self.random = world.random
        self.done: Counter[str] = Counter()
        self.told: list[str] = []

    async def run(self, steps: int) -> None:
        """Do so many steps; everything is checked after each."""
        names, weights = list(self.WEIGHTS), list(self.WEIGHTS.values())
        for number in range(steps):
            [name] = self.random.choices(names, weights)
            self.told = [*self.told[-40:], f"{number}: {name} at {self.world.now:.2f} s"]
            await getattr(self, name)()
            self.done[name] += 1
            await asyncio.sleep(self.random.choice(self.PAUSES))
            self.world.check()

    async def end(self) -> None:
        """Let everything go, and assert that nothing is left."""
        objects = self.objects
        await self.calm()
        for program in self.world.programs():
            program.end()
        await self._until(lambda: not objects.unsettled())
        objects.delete_all("claimresizes")
        await asyncio.sleep(60.0)  # those that have room grow back; the others when the pods beside them leave
        await self._until(lambda: not objects.unsettled())
        objects.delete_all("resourceclaims")
        objects.delete_all("pods", grace=True)
        await self._until(lambda: not objects.left())
        await asyncio.sleep(RECONCILE_SECONDS)
        assert await self.world.left() == []

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for what comes by itself, and for longer than anybody pauses."""
        until = self.world.now + QUIET_SECONDS
        while not condition():
            assert self.world.now < until, "it does not come to rest"
            await asyncio.sleep(5.0)
            self.world.check()

    async def calm(self) -> None:
        """Let everybody be there, hear everything and answer."""
        world = self.world
        world.network.away, world.network.answers_lost, world.network.lag = False, 0, 0.0
        world.plane.scheduler.release_slices()
        world.plane.binds = True
        world.plane.wake()
        await world.ensure_running()

    async def new_pod(self) -> None:
        """Let a pod come that wants whatever is free just now, or anything."""
        if len(self.objects.workloads()) < WORKLOADS:
            self.objects.add_pod(*self._size())

    def _size(self) -> tuple[int, int]:
        free = self.objects.published() - self.objects.allocated()
        percent, memory = free.compute_percent, free.memory // GIB
        if percent < 1 or memory < 1 or self.random.random() < 0.4:
            percent, memory = self.random.randint(5, 60), self.random.randint(5, 50)
        return min(percent, 100), min(memory, 79)

    async def end_pod(self) -> None:
        if pods := self.objects.workloads():
            name = self.random.choice(pods)
            self.objects.delete("pods", name, grace=True)
            if self.random.random() < 0.85:
                self.objects.delete("resourceclaims", name)

    async def force_delete_pod(self) -> None:
        if pods := self.objects.workloads():
            name = self.random.choice(pods)
            self.objects.delete("pods", name)
            if self.random.random() < 0.85:
                self.objects.delete("resourceclaims", name)
            if self.random.random() < 0.5:
                self.objects.add_pod(*self._size())

    async def attach(self) -> None:
        """Let programs start in pods that have none, most of the time."""
        for pod in list(self.world.kubelet.pods.values()):
            idle = pod.prepared and not any(program.running for program in pod.programs)
            if idle and self.random.random() < 0.7:
                await self.world.attach(pod)

    async def allocate(self) -> None:
        """Let programs take all that they are given, or some of it."""
        for program in self.world.programs():
            if self.random.random() < 0.6:
                for size in (32, 16, 8, 4, 2, 1):
                    program.allocate(size * GIB)

    async def free(self) -> None:
        if programs := self.world.programs():
            self.random.choice(programs).free(self.random.randint(1, 30) * GIB)

    async def leave(self) -> None:
        """Let one program end."""
        if programs := self.world.programs():
            self.random.choice(programs).end()

    async def resize(self) -> None:
        """Want less, more, or more than ever of a claim, of one capacity or both."""
        claims = self.objects.claims()
        if not claims:
            return
        wanted: dict[str, str] = {}
        if self.random.random() < 0.8:
            wanted["computePercent"] = str(math.ceil(self.random.triangular(0.01, 100, 20)))
        if self.random.random() < 0.8:
            wanted["memory"] = f"{math.ceil(self.random.triangular(0.01, 80, 10))}Gi"
        self.objects.resize(self.random.choice(claims), wanted)

    async def delete_resize(self) -> None:
        if found := self.objects.resizes():
            self.objects.delete("claimresizes", self.random.choice(found)["metadata"]["name"])

    async def kill_plugin(self) -> None:
        await self.world.kill_plugin()
        self.world.later(self.random.uniform(0.3, 30.0), self.world.start_plugin)

    async def kill_plugin_at_a_call(self) -> None:
        if self.world.plugin is not None:
            self.world.plugin.fate.left = self.random.randint(0, 40)

    async def kill_controller(self) -> None:
        await self.world.kill_controller()
        self.world.later(self.random.uniform(0.3, 30.0), self.world.start_controller)

    async def kill_controller_at_a_call(self) -> None:
        if self.world.controller is not None:
            self.world.controller.fate.left = self.random.randint(0, 15)

    async def break_mps(self) -> None:
        self.world.mps.restart()

    async def server_away(self) -> None:
        self.world.network.cut()
        self.world.later(self.random.choice((0.5, 5.0, 30.0)), self.world.network.back)

    async def lose_answers(self) -> None:
        self.world.network.answers_lost = self.random.randint(1, 3)

    async def late_watches(self) -> None:
        self.world.network.lag = self.random.choice((0.0, 0.1, 3.0))

    async def late_slices(self) -> None:
        self.world.plane.scheduler.hold_slices()
        self.world.later(self.random.choice((0.1, 2.0, 30.0)), self.world.release_slices)

    async def late_bindings(self) -> None:
        self.world.plane.binds = False
        self.world.later(self.random.choice((0.1, 2.0, 30.0)), self.world.let_bind)

    async def lose_journal(self) -> None:
        await self.world.kill_plugin()
        self.world.lose_journal()
        self.world.later(self.random.uniform(0.3, 5.0), self.world.start_plugin)

    async def reboot(self) -> None:
        await self.world.reboot()
        self.world.later(self.random.uniform(5.0, 60.0), self.world.start_plugin)
