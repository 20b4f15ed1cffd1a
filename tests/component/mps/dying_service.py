"""A service that is killed at the n-th boundary of its work: before and after each effect and each record.

`python -m tests.component.mps.dying_service SCENARIO DIRECTORY` runs the scenario in a forked process for each n, each
in a directory of its own, until one survives, and prints how many were killed. Daemons are processes that outlive it.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
from pathlib import Path

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.control import ControlError, Refusal
from dra_gpu.mps.daemons import MpsDaemons
from dra_gpu.mps.directories import SERVER, GpuDirectories
from dra_gpu.mps.output import Client, Namespace, size
from dra_gpu.mps.process import PID_FILE, find
from dra_gpu.mps.service import Limits
from dra_gpu.mps.shared_gpu import Machine
from dra_gpu.mps.state import Ledger, StateFile
from dra_gpu.vendors.nvidia.compute_mode import ComputeMode, SharingFacts

GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"
FORMER = ComputeMode.DEFAULT
FIFTH, HALF = Limits(compute_percent=20, memory_bytes=10 << 30), Limits(compute_percent=50)
LIMIT = 200


class DiskModes:
    """The compute mode of the one GPU, kept as the hardware keeps it."""

    def __init__(self, path: Path, protocol: MpsProtocol) -> None:
        self._path = path
        self._protocol = protocol

    @property
    def mode(self) -> ComputeMode:
        return ComputeMode(int(self._path.read_text())) if self._path.exists() else FORMER

    async def look(self, _uuid: str) -> SharingFacts:
        return SharingFacts(mode=self.mode, protocol=self._protocol, memory_bytes=80 << 30)

    async def set(self, _uuid: str, mode: ComputeMode) -> None:
        self._path.write_text(str(int(mode)))


class DiskControl:
    """A daemon that is a sleeping process; its namespaces stand in a file that goes with it."""

    def __init__(self, directories: GpuDirectories) -> None:
        self._pipe = directories.pipe
        self._file = directories.pipe / "namespaces.json"

    async def start(self) -> None:
        if self._runs():
            raise ControlError(Refusal.REFUSED, "An instance of this daemon is already running")
        self._file.write_text("{}")
        nowhere = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)]
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self._pipe)}
        pid = os.posix_spawnp("sleep", ["sleep", "600"], environment, file_actions=nowhere, setsid=True)
        (self._pipe / PID_FILE).write_text(str(pid))

    async def answers(self) -> bool:
        return True

    async def servers(self) -> tuple[int, ...]:
        return ()

    async def clients(self) -> tuple[Client, ...]:
        return ()

    async def quit(self) -> None:
        os.kill(int((self._pipe / PID_FILE).read_text()), signal.SIGKILL)

    async def ensure_server(self) -> None:
        self._read()

    async def namespaces(self) -> tuple[Namespace, ...]:
        return tuple(
            Namespace(
                name,
                SERVER,
                size(limits["memory"]) if "memory" in limits else None,
                float(limits["percent"]) if "percent" in limits else None,
                low_priority=False,
            )
            for name, limits in self._read().items()
        )

    async def create(self, namespace: str) -> None:
        found = self._read()
        if namespace in found:
            raise ControlError(Refusal.REFUSED, f"Namespace '{namespace}' already exists")
        (self._pipe / SERVER / namespace).mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({**found, namespace: {}}))

    async def set(self, namespace: str, options: tuple[str, ...]) -> None:
        found = self._read()
        words = {"--active-thread-percentage": "percent", "--pinned-memory-limit": "memory"}
        for option in options:
            flag, _, value = option.partition("=")
            found[namespace][words[flag]] = value
        self._file.write_text(json.dumps(found))

    async def delete(self, namespace: str) -> None:
        found = self._read()
        if found.pop(namespace, None) is None:
            raise ControlError(Refusal.REFUSED, f"Namespace '{namespace}' not found")
        (self._pipe / SERVER / namespace).rmdir()
        self._file.write_text(json.dumps(found))

    async def terminate(self, _client: int) -> None:
        raise AssertionError("nobody is attached")

    def _runs(self) -> bool:
        if (found := find(self._pipe)) is None:
            return False
        found.close()
        return True

    def _read(self) -> dict:
        if not self._runs():
            raise ControlError(Refusal.NO_DAEMON, "no daemon")
        return json.loads(self._file.read_text())


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
        if name != "save" and not inspect.iscoroutinefunction(value):
            return value

        def call(*arguments):
            self._fate.pass_boundary()
            answer = value(*arguments)
            self._fate.pass_boundary()
            return answer

        async def call_async(*arguments):
            self._fate.pass_boundary()
            answer = await value(*arguments)
            self._fate.pass_boundary()
            return answer

        return call if name == "save" else call_async


class World:
    """A directory with a GPU in it, and a service that works on it."""

    def __init__(self, directory: Path, protocol: MpsProtocol) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.service_directory = directory / "m"
        self.service_directory.mkdir(exist_ok=True)
        self.fate = Fate()
        self.modes = DiskModes(directory / "mode", protocol)
        self.ledger = Ledger(Mortal(StateFile(self.service_directory / "state.json", "boot"), self.fate))
        machine = Machine(
            self.service_directory,
            Mortal(self.modes, self.fate),
            lambda _gpu, directories, _protocol: Mortal(DiskControl(directories), self.fate),
        )
        self.service = MpsDaemons(self.ledger, machine)

    async def namespaces(self) -> dict[str, tuple[float | None, int | None]]:
        """What the daemon limits."""
        (directory,) = [path for path in self.service_directory.iterdir() if path.is_dir()]
        found = await DiskControl(GpuDirectories(directory)).namespaces()
        return {namespace.name: (namespace.percent, namespace.memory_bytes) for namespace in found}

    def daemons(self) -> int:
        """How many daemons live."""
        pids = [int(path.read_text()) for path in self.service_directory.glob(f"*/pipe/{PID_FILE}")]
        return sum(Path(f"/proc/{pid}/environ").exists() and b"MPS" in _environ(pid) for pid in pids)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


async def first_share(world: World) -> None:
    await world.service.share(GPU, "a", FIFTH)


async def second_share(world: World) -> None:
    await world.service.share(GPU, "b", HALF)


async def other_limits(world: World) -> None:
    await world.service.limits(GPU, "a", HALF)


async def stop_one(world: World) -> None:
    await world.service.stop(GPU, "b")


async def stop_last(world: World) -> None:
    await world.service.stop(GPU, "a")


async def after_a_death(world: World) -> None:
    (pid,) = [int(path.read_text()) for path in world.service_directory.glob(f"*/pipe/{PID_FILE}")]
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}/environ").exists() and _environ(pid):
        await asyncio.sleep(0.001)
    await world.service.settle()


SCENARIOS = {
    "first_share": ([], first_share),
    "second_share": ([first_share], second_share),
    "other_limits": ([first_share], other_limits),
    "stop_one": ([first_share, second_share], stop_one),
    "stop_last": ([first_share], stop_last),
    "after_a_death": ([first_share, second_share], after_a_death),
}


async def live(directory: Path, scenario: str, protocol: MpsProtocol, boundary: int) -> None:
    world = World(directory, protocol)
    before, work = SCENARIOS[scenario]
    for step in before:
        await step(world)
    world.fate.left = boundary
    await work(world)
    await world.service.close()


def main(scenario: str, directory: Path, protocol: MpsProtocol) -> int:
    """Run the scenario once for each boundary; returns how many processes were killed."""
    for boundary in range(LIMIT):
        child = os.fork()
        if child == 0:
            asyncio.run(live(directory / str(boundary), scenario, protocol, boundary))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return boundary if os.WEXITSTATUS(status) == 0 else -1
    return -1


if __name__ == "__main__":
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.stdout.write(f"{main(sys.argv[1], Path(sys.argv[2]), MpsProtocol(sys.argv[3]))}\n")
