"""Kill -9 between any two effects of the MPS service leaves nothing that the next call does not put right."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.process import PID_FILE
from dra_gpu.mps.service import Limits
from dra_gpu.vendors.nvidia.compute_mode import ComputeMode
from dra_gpu_sim.mounts import unmount_all
from tests.component.mps.dying_service import FIFTH, FORMER, GPU, HALF, SCENARIOS, World

FIFTH_TRUTH, HALF_TRUTH = (20.0, 10 << 30), (50.0, None)
# What stands at the end when the work that was cut off is done again, and what was asked for with it.
ENDS = {
    "first_share": {"a": (FIFTH, FIFTH_TRUTH)},
    "second_share": {"a": (FIFTH, FIFTH_TRUTH), "b": (HALF, HALF_TRUTH)},
    "other_limits": {"a": (HALF, (50.0, 80 << 30))},
    "stop_one": {"a": (FIFTH, FIFTH_TRUTH)},
    "stop_last": {},
    "after_a_death": {"a": (FIFTH, FIFTH_TRUTH), "b": (HALF, HALF_TRUTH)},
}


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ds-") as made:
        yield Path(made)
        for file in Path(made).glob(f"*/m/*/pipe/{PID_FILE}"):
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        unmount_all(Path(made))


def killed(scenario: str, directory: Path, protocol: MpsProtocol) -> list[Path]:
    """Run the scenario, killed at each boundary; the directories that the dead left."""
    command = [sys.executable, "-m", "tests.component.mps.dying_service", scenario, str(directory), protocol.value]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count = int(done.stdout)
    assert count > 1, done.stderr
    return [directory / str(number) for number in range(count)]


@pytest.mark.parametrize("protocol", MpsProtocol)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_killed_service_is_continued_by_the_next_one(directory, scenario, protocol):
    for number, left in enumerate(killed(scenario, directory, protocol)):
        world = World(left, protocol)
        if number % 2:  # whichever comes first: the look at the start, or the caller again
            await world.service.settle()
        await SCENARIOS[scenario][1](world) if scenario != "after_a_death" else await world.service.settle()

        wanted = ENDS[scenario]
        assert {name: share.limits for gpu in await world.service.clients() for name, share in named(gpu)} == {
            name: limits for name, (limits, _) in wanted.items()
        }
        if wanted:
            assert (world.modes.mode, world.daemons()) == (ComputeMode.EXCLUSIVE_PROCESS, 1)
            if protocol is MpsProtocol.NAMESPACE:
                assert await world.namespaces() == {name: truth for name, (_, truth) in wanted.items()}
        await world.service.stop(GPU)
        await assert_nothing_is_left(world)


@pytest.mark.parametrize("protocol", MpsProtocol)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_killed_service_leaves_nothing_to_a_caller_who_gives_up(directory, scenario, protocol):
    for left in killed(scenario, directory, protocol):
        world = World(left, protocol)

        await world.service.stop(GPU, "b")
        await world.service.stop(GPU, "a")

        await assert_nothing_is_left(world)


def named(gpu) -> list[tuple[str, Limits]]:
    return [(share.name, share) for share in gpu.shares]


async def assert_nothing_is_left(world: World) -> None:
    assert world.modes.mode is FORMER
    assert world.ledger.gpus == {}
    assert [path.name for path in world.service_directory.iterdir() if path.is_dir()] == []
    await world.service.close()
