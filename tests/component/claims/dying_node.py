"""A node whose process is killed at the n-th boundary of its engine: before and after each effect and each record.

`python -m tests.component.claims.dying_node SCENARIO DIRECTORY` runs the scenario in a forked process for each n, each
on a disk of its own (`DIRECTORY/<n>`), until one survives, and prints how many were killed.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
from pathlib import Path

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.inventory.model import Gpu
from tests.unit.claims.world import LONG, FakeVendor, Node, config, ref, result

CLAIM = ref("u1", "job")
LIMIT = 200


class DiskVendor(FakeVendor):
    """GPUs whose settings outlive the process, as the hardware's do."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def set_time_slice(self, gpu: Gpu, interval: TimeSliceInterval) -> None:
        settings = self._read()
        settings[gpu.uuid] = interval.value
        self._path.write_text(json.dumps(settings))

    async def time_slice(self, gpu: Gpu) -> TimeSliceInterval:
        return TimeSliceInterval(self._read().get(gpu.uuid, "Default"))

    def settings(self) -> dict[str, str]:
        """Return the settings that are not the default."""
        return {uuid: value for uuid, value in self._read().items() if value != "Default"}

    def _read(self) -> dict[str, str]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}


class Fate:
    """Counts boundaries and kills the process at one of them."""

    def __init__(self) -> None:
        self.left: int | None = None

    def pass_boundary(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


class Mortal:
    """Passes every call on, with a boundary on either side."""

    def __init__(self, target, fate: Fate) -> None:
        self._target = target
        self._fate = fate

    def __getattr__(self, name):
        value = getattr(self._target, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*arguments, **options):
            self._fate.pass_boundary()
            answer = await value(*arguments, **options)
            self._fate.pass_boundary()
            return answer

        return call


class MortalNode(Node):
    """A node with GPUs on disk; `fate` decides when its process dies."""

    def __init__(self, directory: Path, *, boot: str = "boot-1") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, gpus=3, boot=boot)
        self.vendor = DiskVendor(directory / "hardware.json")
        self.fate = Fate()
        self.api.add(CLAIM, result("gpu-0", "a"), result("gpu-1", "b"), configs=[config(**LONG)])

    def wrapped_journal(self):
        return Mortal(self.journal, self.fate)

    def wrapped_machine(self):
        return Mortal(self.machine, self.fate)


async def prepare(directory: Path, boundary: int) -> None:
    async with MortalNode(directory).running() as node:
        node.fate.left = boundary
        await node.prepare(CLAIM)


async def unprepare(directory: Path, boundary: int) -> None:
    async with MortalNode(directory).running() as node:
        await node.prepare(CLAIM)
        node.fate.left = boundary
        await node.unprepare(CLAIM)


async def repair(directory: Path, boundary: int) -> None:
    async with MortalNode(directory).running() as node:
        await node.prepare(CLAIM)
        node.specs.remove(CLAIM.uid)
        (directory / "hardware.json").unlink()
        node.fate.left = boundary
        await node.reconciler.recover()


async def reboot(directory: Path, boundary: int) -> None:
    async with MortalNode(directory).running() as node:
        await node.prepare(CLAIM)
    node.specs.remove(CLAIM.uid)
    (directory / "hardware.json").unlink()
    async with MortalNode(directory, boot="boot-2").running() as node:
        node.fate.left = boundary
        await node.reconciler.recover()


SCENARIOS = {"prepare": prepare, "unprepare": unprepare, "repair": repair, "reboot": reboot}


def main(scenario: str, directory: Path) -> int:
    """Run the scenario once for each boundary; returns how many processes were killed."""
    for boundary in range(LIMIT):
        child = os.fork()
        if child == 0:
            asyncio.run(SCENARIOS[scenario](directory / str(boundary), boundary))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return boundary if os.WEXITSTATUS(status) == 0 else -1
    return -1


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1], Path(sys.argv[2]))}\n")
