"""A node in a temporary directory: real journal, locks and CDI files, fake GPUs and API server."""

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dra_gpu.api import resource_v1 as wire
from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.cdi.spec import ContainerEdits, DeviceNode, Mount
from dra_gpu.cdi.store import SpecStore
from dra_gpu.claims.engine import Engine, Limits
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.locks import ClaimLocks, GpuLocks
from dra_gpu.claims.machine import NodeMachine
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.partitions import made_by_us
from dra_gpu.claims.ports import ClaimReadError
from dra_gpu.claims.preparation import Identity, Preparation
from dra_gpu.claims.reconciler import Reconciler
from dra_gpu.claims.record import Record
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu, MigInstance, MigPlacement, Scan, SickGpu, View
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from dra_gpu.mps import service as mps
from dra_gpu.vendors.base import CgroupGoneError, FailureKind, MemoryUse, ShareEdits, VendorError
from dra_gpu.vendors.health import HealthProbe
from tests.unit.inventory.boards import H100, partitionable
from tests.unit.inventory.builders import gpu

DRIVER = "gpu.nvidia.com"
POOL = "node-a"
BOOT = "boot-1"

#: Seconds for what takes milliseconds: the machine may be busy. Nothing that a test asserts depends on it.
PATIENCE = 30.0

VIEWS = (View.GPU, View.SHARED, View.MONITOR)
EVERY_VIEW = ViewOptions((*VIEWS, View.MIG, View.SHARED_MIG), shared_mig_profiles=("1g.10gb", "3g.40gb"))

LONG = {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}


def inventory_of(gpus: Sequence[Gpu], sick: Sequence[SickGpu] = (), options: ViewOptions | None = None, ours=()):
    """Return the `gpu`, `shared` and `monitor` views of some GPUs, or those that `options` name."""
    names = naming.assign({}, [*gpus, *(one.last for one in sick if one.last is not None)])
    scan = Scan(gpus=tuple(gpus), sick=tuple(sick))
    return views.build(scan, names, options or ViewOptions(VIEWS), ours).inventory


def config(kind: str = "GpuConfig", *, source: str = "FromClaim", requests=(), driver: str = DRIVER, **fields):
    """Return an opaque config of an allocation."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind} | fields
    opaque = wire.OpaqueDeviceConfiguration(driver, msgspec.Raw(msgspec.json.encode(parameters)))
    return wire.DeviceAllocationConfiguration(source, list(requests), opaque)


def result(device: str, request: str = "gpu", *, driver: str = DRIVER, pool: str = POOL, admin: bool = False):
    """Return one device of an allocation."""
    return wire.DeviceRequestAllocationResult(request, driver, pool, device, admin or None)


def share(
    device: str, number: int, request: str = "share", *, percent: int = 20, memory: str = "10Gi", admin: bool = False
):
    """Return share `number` of a device, as the scheduler allocates it."""
    consumed = {"computePercent": str(percent), "memory": memory, "clients": "1"}
    return wire.DeviceRequestAllocationResult(request, DRIVER, POOL, device, admin or None, share_id(number), consumed)


def share_id(number: int) -> str:
    return f"{number:08x}-5555-4444-3333-222222222222"


def shared_config(**fields):
    """Return an opaque config of this driver's own kind."""
    return config("SharedGpuConfig", apiVersion="resource.dra-gpu.dev/v1alpha1", **fields)


def claim_of(ref: ClaimRef, *results, configs=(), pods=()) -> wire.ResourceClaim:
    """Return an allocated claim; a plain text stands for a device of ours."""
    given = [result(item) if isinstance(item, str) else item for item in results]
    allocation = wire.AllocationResult(wire.DeviceAllocationResult(given, list(configs)))
    metadata = wire.ObjectMeta(name=ref.name, namespace=ref.namespace, uid=ref.uid)
    users = [wire.ResourceClaimConsumerReference("pods", pod, pod) for pod in pods]
    return wire.ResourceClaim(metadata=metadata, status=wire.ResourceClaimStatus(allocation, users))


class FakeApi:
    """Claims of an API server; `fault` is raised by every read, `reads` are counted."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], wire.ResourceClaim] = {}
        self.fault: ClaimReadError | None = None
        self.reads = 0

    def add(self, ref: ClaimRef, *results, configs=(), pods=()) -> ClaimRef:
        self.claims[ref.namespace, ref.name] = claim_of(ref, *results, configs=configs, pods=pods)
        return ref

    def delete(self, ref: ClaimRef) -> None:
        del self.claims[ref.namespace, ref.name]

    async def get(self, namespace: str, name: str) -> wire.ResourceClaim | None:
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        return self.claims.get((namespace, name))


class FakeVendor:
    """GPUs with a time slice each, and with partitions. `faults` by UUID are raised by calls, `gates` hold calls up.

    `mig_faults` are raised by `create`, `destroy` and `mode`. `calls` are those that change something, `mig_reads`
    those that look at partitions.
    """

    driver_name = DRIVER

    def __init__(self) -> None:
        self.slices: dict[str, TimeSliceInterval] = {}
        self.faults: dict[str, list[VendorError]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.entered: dict[str, asyncio.Event] = {}
        self.calls: list[str] = []
        self.edit_fault: VendorError | None = None
        self.library = "/usr/lib/libcuda.so.1"
        self.ability = SharingAbility(MpsProtocol.NAMESPACE, memory_limits=True)
        self.cgroups: dict[str, str] = {}
        self.limits: dict[tuple[str, str], int] = {}
        self.users: dict[tuple[str, str], dict[int, int]] = {}
        self.processes: dict[int, tuple[str, dict[str, str]]] = {}
        self.mig_modes: dict[str, bool] = {}
        self.instances: dict[tuple[str, MigPlacement], MigInstance] = {}
        self.mig_faults: dict[str, list[VendorError]] = {}
        self.mig_reads: list[str] = []

    def sharing(self, gpu: Gpu, *, partition: bool = False) -> SharingAbility:  # noqa: ARG002 - all GPUs can do the same
        return SharingAbility(MpsProtocol.CLASSIC) if partition else self.ability

    async def mig_mode(self, gpu: Gpu) -> bool:
        self.mig_reads.append("mode")
        return self.mig_modes.get(gpu.uuid, False)

    async def set_mig_mode(self, gpu: Gpu, *, enabled: bool) -> None:
        self.calls.append(f"mig {'on' if enabled else 'off'} {gpu.uuid}")
        self._raise_mig_fault("mode")
        if not enabled and any(uuid == gpu.uuid for uuid, _ in self.instances):
            raise fault(FailureKind.REFUSED, "GPU instances are left")
        self.mig_modes[gpu.uuid] = enabled

    async def create_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance:
        self.calls.append(f"create {gpu.uuid} {placement.profile}@{placement.start}")
        self._raise_mig_fault("create")
        if not self.mig_modes.get(gpu.uuid, False):
            raise fault(FailureKind.REFUSED, "the GPU is not in MIG mode")
        others = [one for uuid, one in self.instances if uuid == gpu.uuid and one != placement]
        if any(placement.units & one.units for one in others):
            raise fault(FailureKind.IN_USE, "another GPU instance lies there")
        return self.put_instance(gpu.uuid, placement)

    def seen(self, gpu: Gpu) -> Gpu:
        """Return a GPU as a look at it shows it now."""
        found = tuple(one for (uuid, _), one in self.instances.items() if uuid == gpu.uuid)
        enabled = self.mig_modes.get(gpu.uuid, False)
        return dataclasses.replace(gpu, mig_enabled=enabled, mig_pending=enabled, mig_instances=found)

    def put_instance(self, uuid: str, placement: MigPlacement, *, whole: bool = True) -> MigInstance:
        """Make an instance, as an administrator does; the present one stays if it is whole."""
        known = self.instances.get((uuid, placement))
        if known is None or known.uuid is None:
            number = placement.profile * 10 + placement.start
            made = MigInstance(placement, number, 0, mig_uuid(uuid, placement)) if whole else MigInstance(placement, 1)
            self.instances[uuid, placement] = made
        return self.instances[uuid, placement]

    async def destroy_mig_instance(self, gpu: Gpu, placement: MigPlacement) -> None:
        self.calls.append(f"destroy {gpu.uuid} {placement.profile}@{placement.start}")
        self._raise_mig_fault("destroy")
        self.instances.pop((gpu.uuid, placement), None)

    async def mig_instance(self, gpu: Gpu, placement: MigPlacement) -> MigInstance | None:
        self.mig_reads.append("instance")
        return self.instances.get((gpu.uuid, placement))

    def _raise_mig_fault(self, what: str) -> None:
        if self.mig_faults.get(what):
            raise self.mig_faults[what].pop(0)

    def pod_cgroup(self, pod_uid: str) -> str | None:
        return self.cgroups.get(pod_uid)

    async def memory_limit(self, gpu: Gpu, cgroup: str) -> int | None:
        self._check_cgroup(cgroup)
        return self.limits.get((gpu.uuid, cgroup))

    async def set_memory_limit(self, gpu: Gpu, cgroup: str, limit: int | None) -> None:
        self._check_cgroup(cgroup)
        if limit is None:
            self.limits.pop((gpu.uuid, cgroup), None)
        else:
            self.limits[gpu.uuid, cgroup] = limit

    async def memory_use(self, gpu: Gpu, cgroup: str) -> MemoryUse:
        self._check_cgroup(cgroup)
        users = self.users.get((gpu.uuid, cgroup), {})
        return MemoryUse(sum(users.values()), tuple(users))

    def environments(self, pods) -> dict[int, dict[str, str]]:
        return {pid: variables for pid, (pod, variables) in self.processes.items() if pod in pods}

    def command(self, pid: int) -> str:
        return f"program-{pid}"

    def _check_cgroup(self, cgroup: str) -> None:
        if cgroup not in self.cgroups.values():
            raise CgroupGoneError(f"no cgroup {cgroup}")

    def share_edits(self, gpu: Gpu, share: ShareEdits) -> ContainerEdits:  # noqa: ARG002 - the Protocol's shape
        env = ["CUDA_MPS_PIPE_DIRECTORY=/run/dra-gpu/mps"]
        if share.partition is not None:
            env.append(f"DEVICE={share.partition}")
        if share.protocol is MpsProtocol.CLASSIC:
            env += [f"PERCENT={share.compute_percent}", f"MEMORY={share.memory_bytes}"]
        if share.low_priority:
            env.append("PRIORITY=1")
        return ContainerEdits(env=tuple(env), mounts=(Mount(share.pipe_directory, "/run/dra-gpu/mps", ("rw",)),))

    async def scan(self) -> Scan:
        raise NotImplementedError

    def presence(self) -> None:
        return None

    async def watch_health(self, gpus, report, ready) -> None:
        raise NotImplementedError

    async def probe_health(self, gpus) -> tuple[HealthProbe, ...]:
        return tuple(HealthProbe(gpu.uuid) for gpu in gpus)

    async def set_time_slice(self, gpu: Gpu, interval: TimeSliceInterval) -> None:
        self.calls.append(f"set {gpu.uuid} {interval.value}")
        if gpu.uuid in self.gates:
            self.entered.setdefault(gpu.uuid, asyncio.Event()).set()
            await self.gates[gpu.uuid].wait()
        if self.faults.get(gpu.uuid):
            raise self.faults[gpu.uuid].pop(0)
        self.slices[gpu.uuid] = interval

    async def time_slice(self, gpu: Gpu) -> TimeSliceInterval | None:
        return self.slices.get(gpu.uuid, TimeSliceInterval.DEFAULT)

    def installation(self) -> str:
        return self.library

    def common_edits(self) -> ContainerEdits:
        if self.edit_fault is not None:
            raise self.edit_fault
        return ContainerEdits(
            env=("NVIDIA_VISIBLE_DEVICES=void",), device_nodes=(DeviceNode("/dev/nvidiactl"), DeviceNode(self.library))
        )

    def device_edits(self, devices: Sequence[PublishedDevice], instances=None) -> ContainerEdits:
        nodes = [DeviceNode(f"/dev/nvidia{device.gpu.minor}") for device in devices]
        nodes += [DeviceNode(f"/dev/nvidia-caps/{one.uuid}") for one in (instances or {}).values()]
        return ContainerEdits(device_nodes=tuple(nodes))


def mig_uuid(gpu: str, placement: MigPlacement) -> str:
    """Return the UUID of the MIG device at a place."""
    return f"MIG-{gpu[4:12]}-{placement.profile:04x}-{placement.start:04x}-0000-000000000000"


def fault(kind: FailureKind = FailureKind.TRANSIENT, text: str = "NVML says no") -> VendorError:
    """Return a vendor's error."""
    return VendorError(kind, text)


class FakeMps:
    """The MPS service: shares by GPU and name. `faults` are raised by calls, `modes` are the GPUs' compute modes."""

    def __init__(self, protocol: MpsProtocol = MpsProtocol.NAMESPACE) -> None:
        self.protocol = protocol
        self.directory = "/run/dra-gpu/mps"
        self.held: dict[tuple[str, str], mps.Limits] = {}
        self.attached: dict[tuple[str, str], tuple[int, ...]] = {}
        self.faults: list[mps.MpsError] = []
        self.calls: list[str] = []

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.faults:
            raise self.faults.pop(0)

    def _protocol(self, gpu: str) -> MpsProtocol:
        return MpsProtocol.CLASSIC if gpu.startswith("MIG-") else self.protocol

    def _daemon(self, gpu: str) -> mps.Daemon:
        return mps.Daemon(gpu, self._protocol(gpu), f"{self.directory}/{gpu}/pipe", f"{self.directory}/{gpu}/shm", 7)

    def _share(self, gpu: str, name: str) -> mps.Share:
        place = f"{self.directory}/{gpu}"
        pids = self.attached.get((gpu, name), ())
        return mps.Share(
            gpu, name, self._protocol(gpu), f"{place}/pipe/{name}", f"{place}/shm", self.held[gpu, name], pids
        )

    async def ensure(self, gpu: str) -> mps.Daemon:
        self._called(f"ensure {gpu}")
        return self._daemon(gpu)

    async def share(self, gpu: str, name: str, limits: mps.Limits) -> mps.Share:
        self._called(f"share {gpu} {name}")
        fixed = self._protocol(gpu) is MpsProtocol.NAMESPACE and self.attached.get((gpu, name))
        if fixed and self.held.get((gpu, name)) != limits:
            raise mps.MpsError(mps.MpsErrorKind.BUSY, f"share {name} has clients")
        self.held[gpu, name] = limits
        return self._share(gpu, name)

    async def limits(self, gpu: str, name: str, limits: mps.Limits) -> mps.Share:
        raise NotImplementedError

    async def clients(self, gpu: str = "") -> tuple[mps.GpuClients, ...]:
        self._called(f"clients {gpu}")
        gpus = sorted({uuid for uuid, _ in self.held if gpu in ("", uuid)})
        return tuple(
            mps.GpuClients(self._daemon(one), tuple(self._share(*key) for key in sorted(self.held) if key[0] == one))
            for one in gpus
        )

    async def stop(self, gpu: str, name: str = "") -> None:
        self._called(f"stop {gpu} {name}")
        for key in [key for key in self.held if key[0] == gpu and name in ("", key[1])]:
            del self.held[key]

    def names(self) -> set[str]:
        """Return the names of all shares."""
        return {name for _, name in self.held}


def partitionable_gpus(count: int = 2, board: str = H100) -> list[Gpu]:
    """Return GPUs of a board that can be partitioned."""
    return [partitionable(board, number) for number in range(count)]


class Node:
    """One instance of the plugin on a node whose disk is `directory`. Several may share a disk, GPUs and an API."""

    def __init__(self, directory: Path, *, gpus: int = 2, boot: str = BOOT, held_wait: float = 0.0) -> None:
        self.directory = directory
        self.boot = boot
        self.api = FakeApi()
        self.vendor = FakeVendor()
        self.specs = SpecStore(directory / "cdi", f"k8s.{DRIVER}")
        self.inventory = inventory_of([gpu(number) for number in range(gpus)])
        self.held_wait = held_wait
        self.mps: FakeMps | None = FakeMps()
        self.told: list[Record] = []
        self.resizes = None

    @asynccontextmanager
    async def running(self, limits: Limits | None = None):
        """Start an instance of the plugin; it ends at the end of the block."""
        self.journal = Journal.open(self.directory / "state", boot_id=self.boot, release="0.1.0")
        self.machine = NodeMachine(
            self.vendor,
            self.specs,
            lambda: self.inventory,
            budgets=self.journal.memory_budgets,
            holders=self.journal.partition_holders,
            time_slices=self.journal.time_slice_holders,
            mps=self.mps,
        )
        claim_locks, gpu_locks = (kind(self.directory / "state" / "locks") for kind in (ClaimLocks, GpuLocks))
        identity = Identity(DRIVER, POOL)
        self.preparation = Preparation(
            identity,
            journal=self.wrapped_journal(),
            machine=self.wrapped_machine(),
            reader=self.api,
            inventory=lambda: self.inventory,
            claim_locks=claim_locks,
            gpu_locks=gpu_locks,
            held_wait=self.held_wait,
            on_prepared=self.told.append,
            resizes=self.resizes,
        )
        self.engine = Engine(self.preparation, limits or Limits(answer_margin=0.0, work_margin=PATIENCE))
        self.reconciler = Reconciler(
            identity,
            preparation=self.preparation,
            journal=self.journal,
            specs=self.specs,
            reader=self.api,
            inventory=lambda: self.inventory,
            shares=self.machine.shares,
        )
        try:
            yield self
        finally:
            await self.engine.drain(asyncio.get_running_loop().time() + PATIENCE)
            await self.journal.close()
            self.machine.close()
            claim_locks.close()
            gpu_locks.close()

    def wrapped_journal(self):
        return self.journal

    def wrapped_machine(self):
        return self.machine

    async def prepare(self, *refs: ClaimRef, within: float = PATIENCE):
        """Prepare claims, beginning nothing new after so many seconds; returns the single answer for a single claim."""
        answers = await self.engine.prepare(refs, asyncio.get_running_loop().time() + within + PATIENCE)
        return answers[refs[0].uid] if len(refs) == 1 else answers

    async def unprepare(self, *refs: ClaimRef, within: float = PATIENCE):
        """Unprepare claims, beginning nothing new after so many seconds; returns the answer for a single claim."""
        answers = await self.engine.unprepare(refs, asyncio.get_running_loop().time() + within + PATIENCE)
        return answers[refs[0].uid] if len(refs) == 1 else answers

    async def look(self) -> None:
        """Look at the GPUs anew: their modes and instances, and which of these claims have made."""
        ours = made_by_us(await self.journal.partition_holders())
        gpus = {device.gpu.uuid: self.vendor.seen(device.gpu) for device in self.inventory.devices.values()}
        self.inventory = inventory_of(list(gpus.values()), options=EVERY_VIEW, ours=ours)

    def slice_of(self, device: str) -> TimeSliceInterval:
        """Return the time slice of the GPU behind a device."""
        uuid = self.inventory.devices[device].gpu.uuid
        return self.vendor.slices.get(uuid, TimeSliceInterval.DEFAULT)

    def uuid(self, device: str) -> str:
        return self.inventory.devices[device].gpu.uuid


def ref(uid: str = "aaaa", name: str = "shared", namespace: str = "team-a") -> ClaimRef:
    """Return a claim's identity."""
    return ClaimRef(namespace, name, uid)
