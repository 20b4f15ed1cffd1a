"""What is true of a simulated node, read from its state file alone.

For tests: a driver's own account of what it did is never asked. A :class:`Snapshot` compares equal when the hardware is
set the same way, so that "everything is as it was before" is one assertion.
"""

from dataclasses import dataclass
from pathlib import Path

from dra_gpu_sim.placement import bdf
from dra_gpu_sim.state import NO_INSTANCE, SimGpu, SimState, in_use
from dra_gpu_sim.statefile import locked


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance and its MIG device."""

    id: int
    slices: int
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance; start and size in memory units."""

    id: int
    profile: str
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...]


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU; memory and limit in bytes, limit 0 for none."""

    pid: int
    gpu: int
    kind: int
    memory: int
    memory_limit: int
    sm_percent: int
    gpu_instance: int | None
    mps_namespace: str
    cgroup: str


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A cgroup's memory limit on a GPU, in bytes."""

    gpu: int
    cgroup: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one GPU is and how it is set; memory in bytes, ``pci`` as the kernel spells it."""

    index: int
    uuid: str
    name: str
    minor: int
    pci: str
    memory: int
    present: bool
    lost: bool
    compute_mode: int
    time_slice: int
    persistence: int
    mig_current: bool
    mig_pending: bool
    recovery_action: int
    instances: tuple[GpuInstance, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The settings of all GPUs, who runs on them, and the memory limits in force."""

    gpus: tuple[Gpu, ...]
    processes: tuple[Process, ...]
    limits: tuple[MemoryLimit, ...]

    def holders(self, gpu: int) -> tuple[int, ...]:
        """The pids that run on a GPU."""
        return tuple(process.pid for process in self.processes if process.gpu == gpu)

    def memory_used(self, gpu: int) -> int:
        """Bytes that processes hold on a GPU."""
        return sum(process.memory for process in self.processes if process.gpu == gpu)


def snapshot(root: Path) -> Snapshot:
    """The truth about the node at ``root``, at one moment.

    Raises:
        FileNotFoundError: there is no node here.
        StateError: it was made by another version.
    """
    with locked(root / "state") as state:
        return Snapshot(
            gpus=tuple(_gpu(state.gpus[index], index) for index in range(state.gpu_count)),
            processes=_processes(state),
            limits=tuple(
                sorted(
                    (
                        MemoryLimit(slot.gpu, slot.cgroup.decode(), slot.soft, slot.hard)
                        for slot in in_use(state.limits)
                    ),
                    key=lambda limit: (limit.gpu, limit.cgroup),
                )
            ),
        )


def sessions(root: Path) -> dict[int, tuple[int, ...]]:
    """Processes that have NVML initialised → indices of the GPUs they hold open; the dead may be among them."""
    with locked(root / "state") as state:
        return {
            slot.pid: tuple(index for index in range(state.gpu_count) if slot.gpus >> index & 1)
            for slot in in_use(state.sessions)
        }


def _processes(state: SimState) -> tuple[Process, ...]:
    return tuple(
        Process(
            pid=slot.pid,
            gpu=slot.gpu,
            kind=slot.kind,
            memory=slot.memory,
            memory_limit=slot.memory_limit,
            sm_percent=slot.sm_percent,
            gpu_instance=None if slot.gi == NO_INSTANCE else slot.gi,
            mps_namespace=slot.mps_namespace.decode(),
            cgroup=slot.cgroup.decode(),
        )
        for slot in in_use(state.processes)
    )


def _gpu(gpu: SimGpu, index: int) -> Gpu:
    instances = (
        GpuInstance(
            id=gi.id,
            profile=gpu.profiles[gi.profile].name.decode().removeprefix("MIG "),
            start=gi.start,
            size=gi.size,
            compute_instances=tuple(ComputeInstance(ci.id, ci.slices, ci.uuid.decode()) for ci in in_use(gi.ci)),
        )
        for gi in in_use(gpu.gi)
    )
    return Gpu(
        index=index,
        uuid=gpu.uuid.decode(),
        name=gpu.name.decode(),
        minor=gpu.minor,
        pci=bdf(gpu.pci_domain, gpu.pci_bus, gpu.pci_device),
        memory=gpu.memory_total,
        present=bool(gpu.present),
        lost=bool(gpu.lost),
        compute_mode=gpu.compute_mode,
        time_slice=gpu.time_slice,
        persistence=gpu.persistence,
        mig_current=bool(gpu.mig_current),
        mig_pending=bool(gpu.mig_pending),
        recovery_action=gpu.recovery_action,
        instances=tuple(sorted(instances, key=lambda instance: instance.id)),
    )
