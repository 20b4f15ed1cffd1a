"""A node whose plugin is killed with SIGKILL at a named moment of a call: what every kind of claim has in common.

The moment is met exactly: a call to the hardware is made to hang, the journal to be busy, the MPS service to stand
still, or the file to be read before it is written is a pipe that nobody writes to.
"""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress

from tests.component.node.node_under_fire import Stall, children

#: Called with the scenario, the claim and `call`; awaits `call(moment)` to begin the call and wait for the moment, and
#: returns when the boundary has been reached.
Boundary = Callable[["Dying", object, Callable[[Awaitable], Awaitable]], Awaitable[None]]


class Dying(ABC):
    """A node with claims of one kind.

    Attributes:
        preparing: the boundaries of a Prepare, in order.
        unpreparing: the boundaries of an Unprepare, in order.
        arguments: of the plugin.
        stack: undone after each kill.
        programs: that use the node meanwhile; ended with the test.
    """

    preparing: Sequence[Boundary]
    unpreparing: Sequence[Boundary]
    arguments: tuple[str, ...] = ()

    def __init__(self, world) -> None:
        self.world, self.node = world, world.node
        self.stack, self.programs = ExitStack(), ExitStack()
        self.claims = 0

    @abstractmethod
    def claim(self):
        """Make one more claim, of which the node can serve one at a time."""

    @abstractmethod
    async def right(self, claim) -> None:
        """Check that the claim has what it asked for, once, and that nobody else was disturbed."""

    @abstractmethod
    async def nothing_left(self) -> None:
        """Check that the node is as it was before the first claim."""

    def spec(self, claim):
        return self.world.cluster.paths.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json"

    def file_is_a_pipe(self, claim) -> None:
        """Let the plugin stand still when it is about to write the claim's file."""
        os.mkfifo(self.spec(claim))
        self.stack.callback(self.spec(claim).unlink)

    def stall(self, call: str, gpu: int = 0) -> Stall:
        return Stall(self.world, call, gpu)

    async def die(self) -> None:
        """Kill the process and what it started, as the kernel does with a container, and start another one."""
        process = self.world.plugin
        started = children(process.pid)
        await process.kill()
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stack.close()
        self.node.clear()
        self.world.kubelet.restart()
        await self.world.start(*self.arguments)

    async def killed_in(self, boundary: Boundary, claim, call) -> None:
        """Kill the process when `call` for the claim has come to the boundary."""
        running: list[asyncio.Task] = []

        async def begin(moment) -> None:
            running.append(asyncio.create_task(call(claim)))
            await moment

        await boundary(self, claim, begin)
        await self.die()
        await asyncio.gather(*running, return_exceptions=True)
