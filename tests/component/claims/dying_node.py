"""A node whose process is killed at the n-th boundary of its engine: before and after each effect and each record.

`python -m tests.component.claims.dying_node SCENARIO KIND DIRECTORY` runs the scenario in a forked process for each n,
each on a disk of its own (`DIRECTORY/<n>`), until one survives, and prints how many were killed.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement
from dra_gpu.mps import service as mps
from tests.component.mortal import Mortal
from tests.unit.claims.world import (
    EVERY_VIEW,
    LONG,
    FakeMps,
    FakeVendor,
    Node,
    config,
    inventory_of,
    ref,
    result,
    share,
)
from tests.unit.inventory.boards import H100, partitionable
from tests.unit.inventory.builders import gpu

CLAIM = ref("u1", "job")
SHARER = ref("u5", "share-job")
TENANT = ref("u7", "partition-job")
POD = "pod-of-u5"
PARTITION = "gpu-3-mig-1g10gb-19-2"
PLACE = MigPlacement(0, 2, 1)
LIMIT = 200
HARDWARE = ("hardware.json", "partitions.json", "mps.json")


class DiskVendor(FakeVendor):
    """GPUs whose settings and partitions outlive the process, as the hardware's do."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._partitions = path.with_name("partitions.json")
        if self._partitions.exists():
            saved = json.loads(self._partitions.read_text())
            self.mig_modes = saved["modes"]
            for uuid, *place in saved["instances"]:
                self.put_instance(uuid, MigPlacement(*place))

    async def set_mig_mode(self, gpu: Gpu, *, enabled: bool) -> None:
        await super().set_mig_mode(gpu, enabled=enabled)
        self._save()

    async def create_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance:
        made = await super().create_mig_instance(gpu, placement)
        self._save()
        return made

    async def destroy_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> None:
        await super().destroy_mig_instance(gpu, placement)
        self._save()

    def _save(self) -> None:
        instances = [(uuid, it.profile, it.start, it.size) for uuid, it in self.instances]
        self._partitions.write_text(json.dumps({"modes": self.mig_modes, "instances": instances}))

    async def set_time_slice(self, gpu: Gpu, interval: TimeSliceInterval) -> None:
        settings = self._read()
        settings[gpu.uuid] = interval.value
        self._path.write_text(json.dumps(settings))

    async def time_slice(self, gpu: Gpu) -> TimeSliceInterval:
        return TimeSliceInterval(self._read().get(gpu.uuid, "Default"))

    async def memory_limit(self, gpu: Gpu, cgroup: str) -> int | None:
        self._check_cgroup(cgroup)
        return self._read().get(f"{gpu.uuid} {cgroup}")

    async def set_memory_limit(self, gpu: Gpu, cgroup: str, limit: int | None) -> None:
        self._check_cgroup(cgroup)
        settings = self._read() | {f"{gpu.uuid} {cgroup}": limit}
        self._path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))

    def settings(self) -> dict[str, str]:
        """Return the settings that are not the default."""
        return {uuid: value for uuid, value in self._read().items() if value != "Default"}

    def _read(self) -> dict[str, str]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}


class DiskMps(FakeMps):
    """An MPS service of another process: its shares outlive the node plugin."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if path.exists():
            saved = json.loads(path.read_text())
            self.held = {(gpu, name): mps.Limits(*limits) for gpu, name, *limits in saved}

    async def share(self, gpu: str, name: str, limits: mps.Limits) -> mps.Share:
        made = await super().share(gpu, name, limits)
        self._save()
        return made

    async def stop(self, gpu: str, name: str = "") -> None:
        await super().stop(gpu, name)
        self._save()

    def _save(self) -> None:
        rows = [(*key, it.compute_percent, it.memory_bytes, it.low_priority) for key, it in self.held.items()]
        self._path.write_text(json.dumps(rows))


class Fate:
    """Counts boundaries and kills the process at one of them."""

    def __init__(self) -> None:
        self.left: int | None = None

    def pass_boundary(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.strike()
        self.left -= 1

    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


#: Three GPUs, and one that can be partitioned.
GPUS = [*(gpu(number) for number in range(3)), partitionable(H100, 3)]


class MortalNode(Node):
    """A node with GPUs on disk; `fate` decides when its process dies."""

    def __init__(self, directory: Path, *, boot: str = "boot-1") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, boot=boot)
        self.inventory = inventory_of(GPUS, options=EVERY_VIEW)
        self.vendor = DiskVendor(directory / "hardware.json")
        self.vendor.cgroups[POD] = f"/kubepods/{POD}"
        self.mps = DiskMps(directory / "mps.json")
        self.fate = Fate()
        self.api.add(CLAIM, result("gpu-0", "a"), result("gpu-1", "b"), configs=[config(**LONG)])
        self.api.add(SHARER, share("gpu-2-shared", 5), pods=[POD])
        self.api.add(TENANT, share(f"{PARTITION}-shared", 7, memory="2Gi"))

    def wrapped_journal(self):
        return Mortal(self.journal, self.fate)

    def wrapped_machine(self):
        return Mortal(self.machine, self.fate)


async def prepare(directory: Path, boundary: int, claim: ClaimRef) -> None:
    async with MortalNode(directory).running() as node:
        node.fate.left = boundary
        await node.prepare(claim)


async def unprepare(directory: Path, boundary: int, claim: ClaimRef) -> None:
    async with MortalNode(directory).running() as node:
        await node.prepare(claim)
        node.fate.left = boundary
        await node.unprepare(claim)


async def repair(directory: Path, boundary: int, claim: ClaimRef) -> None:
    async with MortalNode(directory).running() as node:
        await node.prepare(claim)
        lose_effects(node, directory)
        node.fate.left = boundary
        await node.reconciler.recover()


async def reboot(directory: Path, boundary: int, claim: ClaimRef) -> None:
    async with MortalNode(directory).running() as node:
        await node.prepare(claim)
        lose_effects(node, directory)
    async with MortalNode(directory, boot="boot-2").running() as node:
        node.fate.left = boundary
        await node.reconciler.recover()


def lose_effects(node: Node, directory: Path) -> None:
    for uid in node.specs.claim_uids():
        node.specs.remove(uid)
    node.mps.held.clear()
    node.vendor.instances.clear()
    node.vendor.mig_modes.clear()
    for name in HARDWARE:
        (directory / name).unlink(missing_ok=True)


SCENARIOS = {"prepare": prepare, "unprepare": unprepare, "repair": repair, "reboot": reboot}


CLAIMS = {"whole": CLAIM, "share": SHARER, "partition": TENANT}


def main(scenario: str, kind: str, directory: Path) -> int:
    """Run the scenario for a kind of claim once for each boundary; returns how many processes were killed."""
    for boundary in range(LIMIT):
        child = os.fork()
        if child == 0:
            asyncio.run(SCENARIOS[scenario](directory / str(boundary), boundary, CLAIMS[kind]))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return boundary if os.WEXITSTATUS(status) == 0 else -1
    return -1


if __name__ == "__main__":
    sys.stdout.write(f"{main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))}\n")
