"""Composes the node plugin and runs it until SIGTERM.

Order at start: the journal, since it tells what this node owes; the sockets, so that the kubelet can register while the
GPUs are being looked at; then everything else at once. Claims wait until the GPUs have been looked at once; what a
crash left is put in order meanwhile, by their own calls or by reconciliation, whichever comes first. Order at stop:
running calls end, sockets go, slices stay for the next instance.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from dra_gpu import __version__
from dra_gpu.apiserver.claim_status import ClaimStatusWriter
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import ConnectionConfigError, from_kubeconfig, in_cluster
from dra_gpu.apiserver.events import EventRecorder
from dra_gpu.apiserver.publisher import SlicePublisher
from dra_gpu.apiserver.slice_diff import PoolIdentity
from dra_gpu.cdi.extra_edits import ExtraEdits, ExtraEditsError, load_extra_edits
from dra_gpu.cdi.store import SpecStore
from dra_gpu.claims import device_status
from dra_gpu.claims.engine import Engine
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.locks import ClaimLocks, GpuLocks
from dra_gpu.claims.machine import NodeMachine
from dra_gpu.claims.partitions import made_by_us
from dra_gpu.claims.preparation import Identity, Preparation
from dra_gpu.claims.publisher_lock import PublisherLock
from dra_gpu.claims.reconciler import Reconciler
from dra_gpu.claims.record import Record
from dra_gpu.claims.resize.resizing import Resizing
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.inventory.options import ViewOptions
from dra_gpu.kubelet.foreign import RegistrySearch
from dra_gpu.kubelet.server import UNDO_SECONDS, KubeletServer
from dra_gpu.kubelet.sockets import SocketPathError, SocketPaths, socket_paths
from dra_gpu.mps.client import MpsClient
from dra_gpu.node import logs, settings
from dra_gpu.node.claim_adapters import ApiClaimReader, EngineService
from dra_gpu.node.device_health import DeviceHealthReader
from dra_gpu.node.health import HealthInputs, HealthOutputs, NodeHealth
from dra_gpu.node.inventory_watch import InventoryWatch
from dra_gpu.node.leaving import Leaving, LeavingService, remove_state
from dra_gpu.node.masters import Masters
from dra_gpu.node.mps_watch import LOOK_SECONDS, MpsWatch
from dra_gpu.node.node_views import NodeViews
from dra_gpu.node.observed import Observed
from dra_gpu.node.publish_log import log_report
from dra_gpu.node.publishing import Publishing
from dra_gpu.node.reset_log import ResetLog
from dra_gpu.node.resetting import GpuResets
from dra_gpu.node.resizing import ApiResizeReader, Listeners, NodeResizes, offered
from dra_gpu.node.settings import Settings
from dra_gpu.node.starting import (
    StartError,
    insist,
    listen,
    open_journal,
    put_in_order,
    read_boot_id,
    tell_damage,
    until_stopped,
)
from dra_gpu.node.staying import stay
from dra_gpu.node.telling import Telling
from dra_gpu.node.waiting_claims import WaitingClaims
from dra_gpu.vendors.nvidia.vendor import NvidiaHost, NvidiaVendor

if TYPE_CHECKING:
    from dra_gpu.node.observing import NodeObserver

# Names under which device plugins offer this vendor's GPUs in a node's allocatable.
EXTENDED_RESOURCES = {"nvidia": ("nvidia.com/gpu",)}
COMPONENT = "dra-gpu.dev/node"  # as deploy/rbac/node.yaml lets Events of the plugin through
LEAVE = "leave"  # what makes of `dra-gpu node` the one that takes the driver off the node

T = TypeVar("T")

_log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the node plugin, or let it leave the node; returns its exit status."""
    leave = arguments[:1] == [LEAVE]
    chosen = settings.parse(arguments[1:] if leave else arguments, os.environ)
    logs.configure(chosen.log_level, instance=instance_name(chosen))
    plugin = NodePlugin(chosen, leave=leave)
    try:
        asyncio.run(plugin.run())
    except (StartError, JournalError) as error:
        _log.critical("the node plugin cannot start", reason=str(error))
        return 1
    if leave and not plugin.left:
        _log.error("the driver has not left the node: run it again")
        return 1
    if leave and chosen.stay:
        asyncio.run(stay(chosen.http_endpoint, chosen.metrics_path))
    return 0


def instance_name(chosen: Settings) -> str:
    """Name this instance for logs, locks and other instances: version, pod and process."""
    return f"{__version__}/{chosen.pod_uid or 'no-pod'}/{os.getpid()}"


class NodePlugin:
    """One instance of the node plugin, from its settings to its end.

    Args:
        chosen: the settings.
        leave: take the driver off the node, and end when it is.
    """

    def __init__(self, chosen: Settings, *, leave: bool = False) -> None:
        self.left = False
        """Whether nothing of the driver is on the node any more."""
        self._leave = leave
        self._settings = chosen
        self._instance = instance_name(chosen)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            StartError: a setting, a path or another process is in the way.
            JournalError: the journal is there and must not be touched.
        """
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            await self._serve(stack, stop)
        if self.left:
            remove_state(self._settings.state_dir)
        _log.info("left the node" if self.left else "stopped")

    async def _serve(self, stack: AsyncExitStack, stop: asyncio.Event) -> None:
        chosen = self._settings
        boot_id = read_boot_id(chosen.boot_id_file)
        journal = open_journal(chosen.state_dir, boot_id, stack, stays=not self._leave)
        api = self._api(stack)
        events = EventRecorder(api, COMPONENT, chosen.node_name)
        vendor = self._vendor(boot_id)
        observer = await self._observer(vendor.driver_name, stack)
        telling = Telling(events, chosen.node_name)
        tell_damage(journal, telling.trouble)

        async def own_partitions() -> frozenset[tuple[str, MigPlacement]]:
            return made_by_us(await journal.partition_holders())

        lock, publisher, publishing = self._publishing(api, vendor.driver_name, telling, journal)
        watch = InventoryWatch(
            vendor,
            journal,
            boot_id,
            on_change=lambda layout: health.set_layout(layout),  # noqa: PLW0108 - it is made below
            on_trouble=telling.trouble,
            options=ViewOptions(
                chosen.views,
                chosen.mig_profiles,
                chosen.shared_mig_profiles,
                numa_lists=chosen.numa_lists,
                consumable_shares=chosen.consumable_shares,
            ),
            ours=own_partitions,
            expected_gpus=chosen.expected_gpus,
            period=chosen.rescan_period,
        )
        specs = SpecStore(chosen.cdi_root, f"k8s.{vendor.driver_name}")
        mps = MpsClient(chosen.mps_socket) if chosen.mps_socket is not None else None
        machine = NodeMachine(
            vendor,
            specs,
            watch.inventory,
            budgets=journal.memory_budgets,
            holders=journal.partition_holders,
            time_slices=journal.time_slice_holders,
            mps=mps,
            on_destroyed=lambda gpu, placement: health.destroyed(gpu, placement),  # noqa: PLW0108 - it is made below
        )
        stack.callback(machine.close)
        statuses = ClaimStatusWriter(api)

        def say(record: Record) -> None:
            found = device_status.statuses(record, vendor.driver_name, watch.gpu, machine.known_instance, health.of)
            statuses.put(record.ref.namespace, record.ref.name, record.ref.uid, found)

        health = NodeHealth(
            chosen.health,
            vendor.driver_name,
            boot_id,
            chosen.state_dir,
            vendor,
            HealthInputs(watch.inventory, journal.records, machine.known_instance, watch.wake, lambda: lock.held),
            HealthOutputs(
                lambda contents: None if self._leave else publishing.set_contents(contents),
                telling.of_node,
                telling.of_claim,
                say,
            ),
        )
        claim_locks, gpu_locks = _locks(chosen.state_dir / "locks", stack)
        identity = Identity(vendor.driver_name, chosen.node_name)
        reader = ApiClaimReader(api, observer.pods.note) if observer else ApiClaimReader(api)
        preparation = Preparation(
            identity,
            journal=journal,
            machine=machine,
            reader=reader,
            inventory=watch.inventory,
            claim_locks=claim_locks,
            gpu_locks=gpu_locks,
            on_prepared=_each(say, lambda record: resizes.claim_changed(record.ref.uid)),
            on_gone=lambda uid: resizes.claim_changed(uid),  # noqa: PLW0108 - it is made below
            resizes=ApiResizeReader(api),
        )
        reconciler = Reconciler(
            identity,
            preparation=preparation,
            journal=journal,
            specs=specs,
            reader=reader,
            inventory=watch.known_inventory,
            shares=machine.shares,
        )
        engine = Engine(preparation)
        stack.push_async_callback(_drain, engine)
        ready, waiting = asyncio.Event(), WaitingClaims(journal.known, telling.free)
        resizes = NodeResizes(
            api,
            chosen.node_name,
            journal=journal,
            resizing=Resizing(
                identity,
                journal=journal,
                machine=machine,
                preparation=preparation,
                reader=reader,
                claim_locks=claim_locks,
                gpu_locks=gpu_locks,
                offers=publishing,
                on_resized=say,
            ),
            publishing=publishing,
            ready=ready,
            listeners=Listeners(telling.of_claim, observer.metrics.resizes.seconds.observe)
            if observer
            else Listeners(telling.of_claim),
        )
        paths = self._socket_paths(vendor.driver_name)
        claims = EngineService(engine, ready, waiting, observer.metrics.calls if observer else None)
        server = KubeletServer(
            vendor.driver_name,
            paths,
            LeavingService(claims, journal.known) if self._leave else claims,
            self._instance,
            report=publishing.set_registration,
            health=DeviceHealthReader(identity.pool, watch.inventory, health.states, journal.records, boot_id).feed(),
        )
        masters = Masters(
            api,
            chosen.node_name,
            RegistrySearch(chosen.registrar_dir, vendor.driver_name),
            own_sockets=(paths.registration,),
            extended_resources=EXTENDED_RESOURCES[chosen.vendor],
            on_master=publishing.set_master,
            on_trouble=telling.trouble,
            on_node=_each(NodeViews(chosen.views, watch.offer, telling.trouble).read, health.read_node),
        )
        await listen(server, chosen.registrar_dir, vendor.driver_name)

        places = (chosen.registrar_dir, vendor.driver_name, paths.registration)
        leaving = Leaving(journal.records, reconciler.reconcile, publisher, *places, state_dir=chosen.state_dir)

        async def reconcile() -> None:
            await put_in_order(watch, reconciler, ready, telling.trouble)
            if self._leave:
                await self._leave_node(leaving, stop, telling.trouble)
            await reconciler.run(chosen.reconcile_period, lambda: lock.held)

        resets = GpuResets(
            api,
            identity,
            vendor,
            watch.inventory,
            watch.looked,
            gpu_locks,
            journal.records,
            boot_id,
            lambda: lock.held,
            ResetLog(chosen.state_dir),
            lambda answer: telling.of_node("Normal" if answer.done else "Warning", answer.reason, answer.note),
            _each(lambda gpu: machine.doubt(gpu.uuid), lambda _gpu: watch.wake()),
            on_done=health.was_reset,
        )
        background = {
            "inventory": watch.run(),
            "reconcile": reconcile(),
            "publisher": publisher.run(),
            "publisher-lock": publishing.hold_lock(),
            "masters": masters.run(),
            "events": events.run(),
            "statuses": statuses.run(),
            "sockets": server.watch_sockets(),
            "waiting": waiting.run(),
            "health": health.run(),
            "resizes": resizes.run(),
            "resets": resets.run(),
        }
        if observer is not None:
            background["metrics"] = observer.run(
                Observed(
                    identity,
                    journal,
                    watch.inventory,
                    publisher,
                    publishing,
                    server.registration.registered.is_set,
                    events,
                    statuses,
                    waiting,
                    vendor,
                    machine.known_instance,
                    health,
                    resets.counts,
                    resizes,
                    mps,
                )
            )
        if mps is not None:
            background["mps"] = MpsWatch(
                mps, journal.records, telling.mps_ended, min(LOOK_SECONDS, chosen.reconcile_period)
            ).run()
        await until_stopped(stop, background, server)

    async def _leave_node(self, leaving: Leaving, stop: asyncio.Event, tell: Callable[[str, str], None]) -> None:
        """Let the driver leave and the process end; does not return."""
        await insist(leaving.run, "leaving the node", tell)
        self.left = True
        stop.set()
        await asyncio.get_running_loop().create_future()

    async def _observer(self, driver: str, stack: AsyncExitStack) -> "NodeObserver | None":
        chosen = self._settings
        if chosen.http_endpoint is None:
            return None
        # Two megabytes that a node which nobody scrapes does not pay.
        from dra_gpu.node.observing import NodeObserver

        observer = NodeObserver(driver, leaving=self._leave)
        try:
            await observer.serve(chosen.http_endpoint, chosen.metrics_path, stack)
        except OSError as error:
            raise StartError(
                f"metrics cannot be served on {chosen.http_endpoint} ({error}): give another --http-endpoint"
            ) from error
        return observer

    def _publishing(
        self, api: HttpKubernetesApi, driver: str, telling: Telling, journal: Journal
    ) -> tuple[PublisherLock, SlicePublisher, Publishing]:
        chosen = self._settings
        lock = PublisherLock(chosen.state_dir, self._instance.replace("/", "-"))
        publisher = SlicePublisher(
            api,
            PoolIdentity(driver, chosen.node_name, chosen.node_name),
            on_report=lambda report: log_report(report, telling.trouble),
            may_publish=lambda: publishing.in_charge,
            on_settled=lambda contents: publishing.acknowledged(contents),  # noqa: PLW0108 - it is made below
        )
        publishing = Publishing(publisher, lock, partial(offered, journal))
        return lock, publisher, publishing

    def _api(self, stack: AsyncExitStack) -> HttpKubernetesApi:
        try:
            kubeconfig = self._settings.kubeconfig
            connection = from_kubeconfig(kubeconfig) if kubeconfig is not None else in_cluster()
            api = HttpKubernetesApi(connection)
        except ConnectionConfigError as error:
            raise StartError(str(error)) from error
        stack.callback(api.close)
        return api

    def _vendor(self, boot_id: str) -> NvidiaVendor:
        chosen = self._settings
        try:
            extra = load_extra_edits(chosen.extra_edits) if chosen.extra_edits else ExtraEdits()
        except ExtraEditsError as error:
            raise StartError(str(error)) from error
        host = NvidiaHost(
            chosen.driver_root,
            chosen.dev_root,
            chosen.sysfs_root,
            host_root=chosen.host_root,
            hook_program=chosen.hook_program,
            proc_root=chosen.proc_root,
            driver_proc_root=chosen.driver_proc_root,
            cgroup_root=chosen.cgroup_root,
            gpu_timeout=chosen.gpu_timeout,
            boot_id=boot_id,
            lock_dir=chosen.state_dir / "locks",
        )
        return NvidiaVendor(host, extra)

    def _socket_paths(self, driver: str) -> SocketPaths:
        chosen = self._settings
        try:
            return socket_paths(chosen.registrar_dir, chosen.plugins_dir, driver, chosen.pod_uid or None)
        except SocketPathError as error:
            raise StartError(str(error)) from error


def _locks(directory: Path, stack: AsyncExitStack) -> tuple[ClaimLocks, GpuLocks]:
    of_claims, of_gpus = ClaimLocks(directory), GpuLocks(directory)
    stack.callback(of_claims.close)
    stack.callback(of_gpus.close)
    return of_claims, of_gpus


def _each(*hearers: Callable[[T], None]) -> Callable[[T], None]:
    def tell(what: T) -> None:
        for hear in hearers:
            hear(what)

    return tell


async def _drain(engine: Engine) -> None:
    """Wait for claims whose calls were answered before their work ended; the journal is still open."""
    left = await engine.drain(asyncio.get_running_loop().time() + UNDO_SECONDS)
    if left:
        _log.warning("claims are still in work; the next start puts them in order", claims=left)
