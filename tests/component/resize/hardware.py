"""One shared GPU whose state is the simulator's mapped file, with its rules, in the process of the test.

What limits a process is what binds it when it attaches (MPS), or at any moment (its pod's cgroup), as with the real
simulator: src/dra_gpu_sim/mps and src/dra_gpu_sim/nvml/memory.c. Thousands of programs a minute come and go here; the
tests with real processes run the real ones.
"""

# ruff: noqa: ARG002 - methods have the shape of their Protocols

import ctypes
import itertools
import os

from dra_gpu.mps import service as mps
from dra_gpu.vendors.base import MemoryUse
from dra_gpu_sim.node import SimulatedNode
from dra_gpu_sim.state import NO_INSTANCE, PROCESS_MPS_CLIENT, in_use
from tests.unit.claims.world import FakeMps, FakeVendor

CONTEXT = 256 << 20


class Program:
    """A program of a pod that is attached to the GPU; everything about it stands in the mapped file."""

    def __init__(self, node: SimulatedNode, slot: int, serial: int) -> None:
        self._node = node
        self._slot = slot
        self.serial = serial

    @property
    def running(self) -> bool:
        with self._node.state() as state:
            return self._is_mine(state.processes[self._slot])

    def allocate(self, size: int) -> bool:
        """Take memory; refused where it would exceed its own limit, its pod's, or what the GPU has left."""
        with self._node.state() as state:
            mine = state.processes[self._slot]
            if not self._is_mine(mine):
                return False
            everyone = [one for one in state.processes if one.used and one.kind]
            room = state.gpus[0].memory_total - sum(one.memory for one in everyone)
            if mine.memory_limit:
                room = min(room, mine.memory_limit - mine.memory)
            for limit in in_use(state.limits):
                if mine.cgroup == limit.cgroup or mine.cgroup.startswith(limit.cgroup + b"/"):
                    beside = sum(one.memory for one in everyone if one.cgroup.startswith(limit.cgroup))
                    room = min(room, limit.hard - beside)
            if size > room:
                return False
            mine.memory += size
            return True

    def free(self, size: int) -> None:
        """Give memory back; its context stays."""
        with self._node.state() as state:
            mine = state.processes[self._slot]
            if self._is_mine(mine):
                mine.memory = max(CONTEXT, mine.memory - size)

    def end(self) -> None:
        """Leave the GPU."""
        with self._node.state() as state:
            if self._is_mine(state.processes[self._slot]):
                state.processes[self._slot].used = 0

    def _is_mine(self, slot) -> bool:
        return bool(slot.used) and slot.serial == self.serial


class MappedGpu(FakeVendor):
    """The vendor's library, as far as shares need it: memory limits of cgroups, in the mapped file."""

    def __init__(self, node: SimulatedNode) -> None:
        super().__init__()
        self._node = node
        self._serials = itertools.count(1)

    async def memory_limit(self, gpu, cgroup):
        self._check_cgroup(cgroup)
        with self._node.state() as state:
            return next((one.hard for one in in_use(state.limits) if one.cgroup == cgroup.encode()), None)

    async def set_memory_limit(self, gpu, cgroup, limit):
        self._check_cgroup(cgroup)
        with self._node.state() as state:
            slots = [one for one in state.limits if not one.used or one.cgroup == cgroup.encode()]
            slot = next((one for one in slots if one.used), slots[0])
            slot.used, slot.gpu, slot.soft, slot.cgroup = int(limit is not None), 0, 0, cgroup.encode()
            slot.hard = limit or 0

    async def memory_use(self, gpu, cgroup):
        """Tell what a pod's programs hold; their serial numbers play their pids."""
        self._check_cgroup(cgroup)
        with self._node.state() as state:
            mine = [one for one in state.processes if one.used and one.cgroup.startswith(cgroup.encode())]
            return MemoryUse(sum(one.memory for one in mine), tuple(one.serial for one in mine))

    def environments(self, pods):
        return {}

    def command(self, pid):
        return f"program {pid}"

    def attach(self, cgroup: str, share: str, limits: mps.Limits) -> Program | None:
        """Let a program of a pod attach through its share's pipe; None where there is no room for its context."""
        with self._node.state() as state:
            slot = next(index for index in range(len(state.processes)) if not state.processes[index].used)
            mine = state.processes[slot]
            ctypes.memset(ctypes.addressof(mine), 0, ctypes.sizeof(mine))
            mine.pid, mine.kind, mine.gi, mine.ci = os.getpid(), PROCESS_MPS_CLIENT, NO_INSTANCE, NO_INSTANCE
            mine.sm_percent, mine.memory_limit = limits.compute_percent or 0, limits.memory_bytes or 0
            mine.cgroup, mine.mps_namespace = cgroup.encode(), f"gpu/{share}".encode()
            mine.serial, mine.used = next(self._serials), 1
            program = Program(self._node, slot, mine.serial)
        if program.allocate(CONTEXT):
            return program
        program.end()
        return None

    def reboot(self) -> None:
        """Lose every program and every limit."""
        self._node.reboot()
        self.cgroups.clear()

    def end_all(self, *, share: str = "", cgroup: str = "") -> None:
        """End programs: those of a share, those of a pod, or all."""
        with self._node.state() as state:
            for one in state.processes:
                if one.used and share in one.mps_namespace.decode() and cgroup in one.cgroup.decode():
                    one.used = 0

    def make_cgroup(self, pod: str, cgroup: str) -> None:
        """Make the cgroup of a pod."""
        self.cgroups[pod] = cgroup

    def remove_cgroup(self, pod: str) -> None:
        """Remove the cgroup of a pod; its limit goes with it."""
        cgroup = self.cgroups.pop(pod, "").encode()
        with self._node.state() as state:
            for one in state.limits:
                if one.used and one.cgroup == cgroup:
                    one.used = 0

    def clients(self, share: str) -> tuple[int, ...]:
        """Return the serial numbers of a share's programs, which play their pids here."""
        with self._node.state() as state:
            wanted = f"gpu/{share}".encode()
            return tuple(one.serial for one in state.processes if one.used and one.mps_namespace == wanted)


class MappedMps(FakeMps):
    """The MPS service of protocol 3: a namespace's limits change only while it has no client."""

    def __init__(self, gpu: MappedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    async def share(self, gpu, name, limits):
        self._called(f"share {gpu} {name}")
        self._set(gpu, name, limits)
        return self._share(gpu, name)

    async def limits(self, gpu, name, limits):
        self._called(f"limits {gpu} {name}")
        if (gpu, name) not in self.held:
            raise mps.MpsError(mps.MpsErrorKind.TRANSIENT, f"there is no share {name}")
        self._set(gpu, name, limits)
        return self._share(gpu, name)

    async def stop(self, gpu, name=""):
        for key in [key for key in self.held if key[0] == gpu and name in ("", key[1])]:
            self._gpu.end_all(share=key[1])
        await super().stop(gpu, name)

    def restart(self) -> None:
        """Die with the daemon, clients too, and come back with all shares."""
        self._gpu.end_all()

    def _set(self, gpu, name, limits) -> None:
        if self.held.get((gpu, name), limits) != limits and self._gpu.clients(name):
            raise mps.MpsError(mps.MpsErrorKind.BUSY, f"share {name} has clients")
        self.held[gpu, name] = limits

    def _share(self, gpu, name):
        made = super()._share(gpu, name)
        return mps.Share(
            made.gpu,
            made.name,
            made.protocol,
            made.pipe_directory,
            made.shm_directory,
            made.limits,
            self._gpu.clients(name),
        )
