"""What is true of a simulated node, read from its state file alone.

For tests: a driver's own account of what it did is never asked. A :class:`Snapshot` compares equal when the hardware is
set the same way, so that "everything is as it was before" is one assertion.
"""

from dataclasses import dataclass
from pathlib import Path

from dra_gpu_sim.occupancy import living
from dra_gpu_sim.placement import bdf
from dra_gpu_sim.state import (
    NO_INSTANCE,
    PROCESS_COMPUTE,
    PROCESS_MPS_CLIENT,
    SimGpu,
    SimLimit,
    SimProcess,
    SimState,
    in_use,
)
from dra_gpu_sim.statefile import locked

NO_LIMIT = 2**64 - 1
"""A hard limit that is none (NVML_DEVICE_MEMORY_LIMIT_MAX)."""


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
class Client:
    """A living process that computes on a GPU, with what binds it.

    Attributes:
        pid: as this process's pid namespace numbers it.
        gpu: index of the GPU.
        mps: whether it runs through an MPS server.
        namespace: ``server/namespace`` of protocol 3; empty with classic MPS and without MPS.
        memory: bytes it holds, its context included.
        pinned_limit: bytes that MPS lets it hold; None for no limit.
        cgroup_limit: bytes that the most limited cgroup around it may hold, all its processes together; None for none.
        sm_percent: share of the GPU's SMs that MPS lets it use; 100 without a limit.
        sms: how many SMs that is.
        cgroup: below the cgroup root.
        uid: of the process.
    """

    pid: int
    gpu: int
    mps: bool
    namespace: str
    memory: int
    pinned_limit: int | None
    cgroup_limit: int | None
    sm_percent: int
    sms: int
    cgroup: str
    uid: int

    @property
    def share(self) -> str:
        """The namespace without its server."""
        return self.namespace.rpartition("/")[2]

    @property
    def memory_limit(self) -> int | None:
        """The lower of the two memory limits; None for none."""
        return min((limit for limit in (self.pinned_limit, self.cgroup_limit) if limit is not None), default=None)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The clients of one GPU and their sums: bytes, limits in bytes and percent (without a limit: the whole GPU)."""

    gpu: int
    clients: tuple[Client, ...]
    memory: int
    memory_limits: int
    sm_percent: int


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
            processes=_processes(state, root / "state"),
            limits=tuple(
                sorted(
                    (MemoryLimit(slot.gpu, slot.cgroup.decode(), slot.soft, slot.hard) for slot in limits_in(state)),
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


def clients(root: Path) -> tuple[Client, ...]:
    """Every living process that computes on a GPU of the node at ``root``; MPS servers are none of them."""
    with locked(root / "state") as state:
        return clients_in(state, root / "state")


def clients_in(state: SimState, path: Path) -> tuple[Client, ...]:
    """The same of the locked state of a node, whose file is at ``path``."""
    limits = limits_in(state)
    return tuple(
        _client(limits, pid, slot)
        for pid, slot in living(state, path)
        if slot.kind in (PROCESS_COMPUTE, PROCESS_MPS_CLIENT)
    )


def uses(root: Path) -> tuple[GpuUse, ...]:
    """The clients of each GPU, in order, with their sums."""
    everyone = clients(root)
    gpus = snapshot(root).gpus
    return tuple(_use(gpu, tuple(client for client in everyone if client.gpu == gpu.index)) for gpu in gpus)


def _use(gpu: Gpu, mine: tuple[Client, ...]) -> GpuUse:
    return GpuUse(
        gpu=gpu.index,
        clients=mine,
        memory=sum(client.memory for client in mine),
        memory_limits=sum(gpu.memory if client.memory_limit is None else client.memory_limit for client in mine),
        sm_percent=sum(client.sm_percent for client in mine),
    )


def _client(limits: list[SimLimit], pid: int, slot: SimProcess) -> Client:
    cgroup = slot.cgroup.decode()
    hard = [limit.hard for limit in limits if limit.gpu == slot.gpu and _within(cgroup, limit.cgroup.decode())]
    return Client(
        pid=pid,
        gpu=slot.gpu,
        mps=slot.kind == PROCESS_MPS_CLIENT,
        namespace=slot.mps_namespace.decode(),
        memory=slot.memory,
        pinned_limit=slot.memory_limit or None,
        cgroup_limit=min((limit for limit in hard if limit != NO_LIMIT), default=None),
        sm_percent=slot.sm_percent or 100,
        sms=slot.sm_count,
        cgroup=cgroup,
        uid=slot.uid,
    )


def _within(cgroup: str, ancestor: str) -> bool:
    return cgroup == ancestor or cgroup.startswith(ancestor.rstrip("/") + "/")


def limits_in(state: SimState) -> list[SimLimit]:
    """The limits in force in a locked state: one whose cgroup was removed is gone with it."""
    root = state.cgroup_root.decode()
    return [
        limit for limit in in_use(state.limits) if not root or (Path(root) / limit.cgroup.decode().lstrip("/")).is_dir()
    ]


def _processes(state: SimState, path: Path) -> tuple[Process, ...]:
    return tuple(
        Process(
            pid=pid,
            gpu=slot.gpu,
            kind=slot.kind,
            memory=slot.memory,
            memory_limit=slot.memory_limit,
            sm_percent=slot.sm_percent,
            gpu_instance=None if slot.gi == NO_INSTANCE else slot.gi,
            mps_namespace=slot.mps_namespace.decode(),
            cgroup=slot.cgroup.decode(),
        )
        for pid, slot in living(state, path)
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
