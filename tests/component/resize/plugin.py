"""One instance of the node plugin in virtual time: what node/app.py composes, but for sockets and the vendor's library.

Journal, locks and CDI files are real files; the API server is the one in memory, the GPU and MPS those of
`hardware.py`. It can die at any of its calls, and then does nothing more.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from dra_gpu.apiserver.publisher import PublisherLimits, SlicePublisher
from dra_gpu.apiserver.slice_diff import PoolIdentity
from dra_gpu.cdi.store import SpecStore
from dra_gpu.claims import journal_file
from dra_gpu.claims.engine import Engine
from dra_gpu.claims.journal import FILE_NAME, Journal
from dra_gpu.claims.locks import ClaimLocks, GpuLocks
from dra_gpu.claims.machine import NodeMachine
from dra_gpu.claims.preparation import Identity, Preparation
from dra_gpu.claims.reconciler import Reconciler
from dra_gpu.claims.resize.resizing import Resizing
from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.model import Gpu, Scan, View
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.kubelet.registration import RegistrationReport
from dra_gpu.node.claim_adapters import ApiClaimReader
from dra_gpu.node.publishing import Publishing
from dra_gpu.node.resizing import ApiResizeReader, Listeners, NodeResizes, offered
from tests.component.mortal import Mortal
from tests.component.resize.hardware import MappedGpu, MappedMps
from tests.component.resize.memory_api import MemoryApi
from tests.component.resize.mortality import DeathError, Fate

DRIVER, NODE = "gpu.nvidia.com", "node-0"
RECONCILE_SECONDS = 120.0


class InlineCommitter:
    """The journal's committer without its thread: work is done when it is asked for, each write in its own commit."""

    def __init__(self, path: Path, fate: Fate) -> None:
        self._path = path
        self._fate = fate
        self._connection = journal_file.connect(path)

    async def read(self, work):
        self._fate.pass_boundary()
        return work(self._connection)

    async def write(self, work):
        self._fate.pass_boundary()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            result = work(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._fate.pass_boundary()
        return result

    async def close(self) -> None:
        self._connection.close()


class OnlyInstance:
    """The publisher lock of a node on which no two instances overlap."""

    def __init__(self) -> None:
        self.held = False

    async def acquire(self) -> None:
        self.held = True

    async def wanted(self) -> None:
        await asyncio.get_running_loop().create_future()

    def registered(self) -> None:
        """Be the newest anyway."""

    def release(self) -> None:
        self.held = False

    close = release


class Plugin:
    """One instance, from its start to its death.

    Args:
        directory: the node's disk.
        boot: identity of the boot.
        gpu: the one GPU, as a look at it shows it.
        vendor: what limits memory on it.
        mps: the MPS service.
        make_api: makes a client of the API server with boundaries.
    """

    def __init__(
        self,
        directory: Path,
        boot: str,
        gpu: Gpu,
        vendor: MappedGpu,
        mps: MappedMps,
        make_api: Callable[[Callable[[], None]], MemoryApi],
    ) -> None:
        self.fate = Fate()
        self.api = make_api(self.fate.pass_boundary)
        state = directory / "state"
        journal_file.ensure(state / FILE_NAME, "0.1.0")
        self.journal = Journal(state / FILE_NAME, InlineCommitter(state / FILE_NAME, self.fate), boot, "0.1.0", None)
        scan = Scan(gpus=(gpu,))
        self.layout = views.build(scan, naming.assign({}, [gpu]), ViewOptions((View.GPU, View.SHARED, View.MONITOR)))
        self.inventory = self.layout.inventory
        self.specs = SpecStore(directory / "cdi", f"k8s.{DRIVER}")
        self.machine = NodeMachine(
            Mortal(vendor, self.fate),
            self.specs,
            lambda: self.inventory,
            budgets=self.journal.memory_budgets,
            holders=self.journal.partition_holders,
            time_slices=self.journal.time_slice_holders,
            mps=Mortal(mps, self.fate),
        )
        self._locks = ClaimLocks(state / "locks"), GpuLocks(state / "locks")
        identity = Identity(DRIVER, NODE)
        reader = ApiClaimReader(self.api)
        self.preparation = Preparation(
            identity,
            journal=self.journal,
            machine=self.machine,
            reader=reader,
            inventory=lambda: self.inventory,
            claim_locks=self._locks[0],
            gpu_locks=self._locks[1],
            on_prepared=lambda record: self.resizes.claim_changed(record.ref.uid),
            on_gone=lambda uid: self.resizes.claim_changed(uid),  # noqa: PLW0108 - it is made below
            resizes=ApiResizeReader(self.api),
        )
        self.engine = Engine(self.preparation)
        self.reconciler = Reconciler(
            identity,
            preparation=self.preparation,
            journal=self.journal,
            specs=self.specs,
            reader=reader,
            inventory=lambda: self.inventory,
            shares=self.machine.shares,
        )
        self.publisher = SlicePublisher(
            self.api,
            PoolIdentity(DRIVER, NODE, NODE),
            may_publish=lambda: self.publishing.in_charge,
            on_settled=lambda contents: self.publishing.acknowledged(contents),  # noqa: PLW0108 - it is made below
            limits=PublisherLimits(requests_per_second=1000.0),
        )
        self.publishing = Publishing(self.publisher, OnlyInstance(), lambda: offered(self.journal))
        self._ready = asyncio.Event()
        self.resizes = NodeResizes(
            self.api,
            NODE,
            journal=self.journal,
            resizing=Resizing(
                identity,
                journal=self.journal,
                machine=self.machine,
                preparation=self.preparation,
                reader=reader,
                claim_locks=self._locks[0],
                gpu_locks=self._locks[1],
                offers=self.publishing,
            ),
            publishing=self.publishing,
            ready=self._ready,
            listeners=Listeners(lambda _ref, _kind, _reason, _note: None),
        )

    async def run(self) -> None:
        """Serve until it dies or is cancelled."""
        self.publishing.set_contents(slices.arrange(self.layout))
        self.publishing.set_master(None)
        self.publishing.set_registration(RegistrationReport(registered=True))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.publisher.run())
                group.create_task(self.publishing.hold_lock())
                group.create_task(self.resizes.run())
                group.create_task(self._reconcile())
        except* DeathError:
            self.fate.dead = True

    def close(self) -> None:
        """Free what the kernel frees when a process has ended; it has, and its tasks with it."""
        self.machine.close()
        for locks in self._locks:
            locks.close()

    async def _reconcile(self) -> None:
        await self.reconciler.recover()
        self._ready.set()
        await self.reconciler.run(RECONCILE_SECONDS)
