"""Any history of resizes, claims, programs and crashes: nothing is promised twice, and nothing is lost.

Ten thousand steps in virtual time, in four parts that may run at once; each history begins with a seed, which a failure
names. `DRA_GPU_RESIZE_STEPS` asks for another number of steps, `DRA_GPU_RESIZE_SEED` for the history of one seed.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import pytest
import structlog

from dra_gpu.apiserver.clock import SystemClock
from dra_gpu_sim.node import SimulatedNode
from tests.component.resize.history import History
from tests.component.resize.virtual_time import VirtualLoop
from tests.component.resize.world import World

STEPS = int(os.environ.get("DRA_GPU_RESIZE_STEPS", "10000"))
SEED = os.environ.get("DRA_GPU_RESIZE_SEED", "")
PARTS = 4
LENGTH = 500


@pytest.fixture
def memory() -> Path:
    """A directory in memory: what a disk takes for a commit is not what is tested."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="dg-resize-", dir=shared if shared.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch):
    """The driver's clock is the loop's; of what it logs only errors are kept, which are few."""
    monkeypatch.setattr(SystemClock, "now", lambda _self: asyncio.get_running_loop().time())
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


async def history(directory: Path, seed: int, steps: int) -> None:
    """Run one history to its end."""
    directory.mkdir()
    node = SimulatedNode.create(directory / "gpus", "H100", gpus=1, settings=["node.cgroup_root="])
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_history_promises_nothing_twice_and_loses_nothing(part: int, memory: Path):
    seeds = [int(SEED)] if SEED else range(part, STEPS // LENGTH, PARTS)
    sys.stdout.write(f"seeds {list(seeds)}, {LENGTH} steps each\n")
    for seed in seeds:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(history(memory / str(seed), seed, LENGTH))
