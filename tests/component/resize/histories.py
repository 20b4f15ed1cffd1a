"""Runs histories in virtual time: `PYTHONHASHSEED=0 python -m tests.component.resize.histories STEPS SEED...`.

A process of its own, in which everything follows from the seed: names that servers make up, jitter, the order of sets.
"""

import asyncio
import os
import random
import sys
import tempfile
import uuid
from pathlib import Path

import structlog

from dra_gpu.apiserver.clock import SystemClock
from dra_gpu_sim.node import SimulatedNode
from tests.component.resize.history import History
from tests.component.resize.mortality import DeathError
from tests.component.resize.virtual_time import VirtualLoop
from tests.component.resize.world import World

_ONLY_CRITICAL = 50


async def history(directory: Path, seed: int, steps: int) -> None:
    """Run one history to its end; whatever fails says what came before and what is there."""
    directory.mkdir()
    asyncio.get_running_loop().set_exception_handler(_say_what_is_no_death)
    node = SimulatedNode.create(directory / "gpus", "H100", gpus=1, settings=["node.cgroup_root="], seed=str(seed))
    try:
        async with World(directory, node, seed) as world:
            told = History(world)
            try:
                await told.run(steps)
                await told.end()
            except BaseException as error:
                error.add_note(f"seed {seed}, {steps} steps; the last ones:\n" + "\n".join(told.told[-15:]))
                error.add_note(told.objects.described())
                raise
    finally:
        node.destroy()


def _say_what_is_no_death(loop: asyncio.AbstractEventLoop, context: dict) -> None:
    """Leave unsaid what calls of a dead process come to: nobody waits for them."""
    if not isinstance(context.get("exception"), DeathError):
        loop.default_exception_handler(context)


class Determined(random.Random):
    """Chance that follows from the seed where nobody gives another one."""

    def __init__(self, seed=None) -> None:
        super().__init__(random.getrandbits(64) if seed is None else seed)


def determine(seed: int) -> None:
    """Let chance follow from the seed, and the driver's clock from the loop's."""
    random.seed(seed)
    random.Random = Determined
    uuid.uuid4 = lambda: uuid.UUID(int=random.getrandbits(128), version=4)
    SystemClock.now = lambda _self: asyncio.get_running_loop().time()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_ONLY_CRITICAL))


def main(steps: int, seeds: list[int]) -> None:
    """Run the histories of some seeds, one after the other."""
    memory = Path("/dev/shm")  # what a disk takes for a commit is not what is tested
    with tempfile.TemporaryDirectory(prefix="dg-resize-", dir=memory if memory.is_dir() else None) as directory:
        for seed in seeds:
            sys.stdout.write(f"seed {seed}, {steps} steps\n")
            determine(seed)
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                runner.run(history(Path(directory) / str(seed), seed, steps))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("set PYTHONHASHSEED=0: without it the same seed gives another history each time")
    main(int(sys.argv[1]), [int(one) for one in sys.argv[2:]])
