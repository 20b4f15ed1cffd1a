"""One shared GPU, or one shared partition of a GPU: its compute mode, its daemon, its shares.

Promises: what is wanted is on disk before it is done, so that a process killed between any two effects leaves nothing
that the next call, or `settle` at the next start, does not put right. Start: former mode stored, GPU exclusive, daemon,
shares. End: the reverse, and the mode is set to what it was before, not to a default.
Every coroutine wants `lock` held.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps import decisions
from dra_gpu.mps.control import Control, ControlError, Refusal
from dra_gpu.mps.daemon import GpuDaemon
from dra_gpu.mps.directories import SERVER, GpuDirectories, directory_name
from dra_gpu.mps.output import Namespace
from dra_gpu.mps.process import DaemonProcess
from dra_gpu.mps.service import Daemon, GpuClients, Limits, MpsError, MpsErrorKind, Share
from dra_gpu.mps.state import GpuState, Ledger, ShareState, StateError
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia.compute_mode import ComputeMode, SharingFacts, UnknownGpuError

_FOREIGN_OPTION = re.compile(
    r"(unknown|unrecogni[sz]ed|invalid|unsupported)\W+(option|argument|protocol)", re.IGNORECASE
)

_log = structlog.get_logger(__name__)


class Modes(Protocol):
    """Compute modes of GPUs (`vendors.nvidia.compute_mode.ComputeModes`)."""

    async def look(self, uuid: str) -> SharingFacts:
        """Return the facts about a GPU; raises VendorError."""

    async def set(self, uuid: str, mode: ComputeMode) -> None:
        """Set the compute mode; raises VendorError."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the service works with.

    Attributes:
        directory: the service's.
        modes: compute modes.
        control: makes the control of a GPU's daemon.
        own_shm: what clients have at /dev/shm is a file system of its own for each GPU (needs CAP_SYS_ADMIN).
    """

    directory: Path
    modes: Modes
    control: Callable[[str, GpuDirectories, MpsProtocol], Control]
    own_shm: bool = True


class SharedGpu:
    """One GPU of the service; see the module for what it promises."""

    def __init__(self, uuid: str, ledger: Ledger, machine: Machine, on_death: Callable[[DaemonProcess], None]) -> None:
        """Take a GPU; nothing happens yet.

        Args:
            uuid: of the GPU.
            ledger: what was asked for.
            machine: what to work with.
            on_death: called on the loop when the daemon has died by itself.
        """
        self.lock = asyncio.Lock()
        self._uuid = uuid
        self._ledger = ledger
        self._machine = machine
        self._process = GpuDaemon(uuid, on_death)
        self._facts: SharingFacts | None = None

    @property
    def wanted(self) -> GpuState | None:
        """What was asked for of this GPU."""
        return self._ledger.gpus.get(self._uuid)

    async def ensure(self) -> Daemon:
        """See `MpsService.ensure`."""
        with self._as_mps_error():
            return self._daemon(await self._ensure())

    async def share(self, name: str, limits: Limits) -> Share:
        """See `MpsService.share`."""
        with self._as_mps_error():
            self._directories().of_share(MpsProtocol.NAMESPACE, name)  # the longest path there can be
            before = self._present(name)
            if before is not None and before.ending:
                await self._end_share(name)
                before = None
            wanted = ShareState(limits)
            state = await self._ensure(first={name: wanted})
            if before is None and state.shares.get(name) != wanted:  # found with its daemon, with other limits
                before = state.shares.get(name)
            return await self._change(before, name, limits)

    async def limits(self, name: str, limits: Limits) -> Share:
        """See `MpsService.limits`."""
        before = self._present(name)
        if before is None or before.ending:
            raise MpsError(MpsErrorKind.TRANSIENT, f"GPU {self._uuid} has no share {name}: make it with `share` first")
        with self._as_mps_error():
            await self._ensure()
            return await self._change(before, name, limits)

    async def clients(self) -> GpuClients | None:
        """Tell what there is and who uses it; None when the GPU is not shared."""
        state = self.wanted
        if state is None or state.ending:
            return None
        attached = {}
        problem = ""
        try:
            if not self._running():
                problem = "its daemon does not run and is being started again"
            else:
                attached = {client.pid: client.namespace for client in await self._control(state).clients()}
        except ControlError as error:
            problem = str(error)
        namespaces = state.protocol is MpsProtocol.NAMESPACE
        shares = tuple(
            self._share(
                state,
                name,
                share.limits,
                tuple(sorted(pid for pid, of in attached.items() if not namespaces or of == name)),
            )
            for name, share in sorted(state.live.items())
        )
        return GpuClients(self._daemon(state), shares, problem)

    async def stop(self, name: str = "") -> None:
        """See `MpsService.stop`."""
        state = self.wanted
        if state is None:
            return
        with self._as_mps_error():
            if state.ending or not name or not set(state.live) - {name}:
                self._let_go(msgspec.structs.replace(state, ending=True))
                await self._end()
            elif name in state.shares:
                self._let_go(state.with_share(name, ShareState(state.shares[name].limits, ending=True)))
                # Its pod has ended: what a daemon keeps of it that does not hear is in nobody's way, and `settle`
                # tells it again. Insisting would keep the pod Terminating as long as the daemon hangs.
                await self._attempt(self._end_share(name))

    async def settle(self) -> None:
        """Make what is equal to what was asked for: after a start, a death, or as a look from time to time.

        Raises:
            MpsError: something could not be done now.
        """
        state = self.wanted
        if state is None:
            return
        with self._as_mps_error():
            if state.ending:
                await self._end()
                return
            for name in sorted(set(state.shares) - set(state.live)):
                await self._attempt(self._end_share(name))
            state = await self._ensure(look=True)
            if not await self._control(state).answers():
                raise MpsError(
                    MpsErrorKind.TRANSIENT,
                    f"GPU {self._uuid}: its MPS daemon runs and does not answer, so that no program can attach: end "
                    f"the pods that share the GPU, or kill process {self._process.pid}, which ends all its clients",
                )

    async def bar(self) -> None:
        """Let nobody onto the GPU until its daemon, which has died, is back.

        Containers end with their daemon and start again sooner than it does. One that finds no daemon would use the GPU
        without any limit, and keep the next daemon from it. In a partition, which has no compute mode, it still can.

        Raises:
            MpsError: the mode cannot be set now.
        """
        state = self.wanted
        if state is None or state.ending or state.barred or self._running():
            return
        with self._as_mps_error():
            facts = self._facts or await self._machine.modes.look(self._uuid)
            if facts.mode is None:
                return
            self._put(msgspec.structs.replace(state, barred=True))
            await self._machine.modes.set(self._uuid, ComputeMode.PROHIBITED)

    @property
    def runs(self) -> bool:
        """Whether the daemon is there as far as this process has looked."""
        return self._process.pid != 0

    def close(self) -> None:
        """Watch the daemon no longer; it goes on."""
        self._process.forget()

    async def _ensure(self, *, first: dict[str, ShareState] | None = None, look: bool = False) -> GpuState:
        """Have the daemon; a GPU that was not shared is entered together with its first share."""
        state = self.wanted
        if state is not None and state.ending:
            if (silent := await self._end()) is not None:
                raise silent
            state = None
        if state is not None and not look and self._facts is not None and self._running():
            return state
        new = state is None
        facts = self._facts = await self._machine.modes.look(self._uuid)
        barred = state is not None and state.barred
        if facts.mode is ComputeMode.PROHIBITED and not barred:
            raise MpsError(
                MpsErrorKind.TRANSIENT,
                f"GPU {self._uuid} is in compute mode PROHIBITED, so somebody has taken it out of use: "
                "give it back with nvidia-smi -c DEFAULT",
            )
        found = new and self._running()
        state = await self._take(facts, first or {}) if state is None else state
        try:
            self._directories().make(own_memory=self._machine.own_shm and not self._running())
            # A partition has no mode of its own. A GPU that is barred stays so until there is a daemon to reach.
            if facts.mode not in {None, ComputeMode.EXCLUSIVE_PROCESS} and not barred:
                await self._machine.modes.set(self._uuid, ComputeMode.EXCLUSIVE_PROCESS)
            state = await self._have_daemon(state)
            if barred:
                await self._machine.modes.set(self._uuid, ComputeMode.EXCLUSIVE_PROCESS)
                state = msgspec.structs.replace(state, barred=False)
                self._put(state)
            if state.protocol is MpsProtocol.NAMESPACE:
                await self._restore(state)
        except Exception:
            if new and not found:
                await self._attempt(self.stop())
            raise
        return state

    async def _take(self, facts: SharingFacts, shares: dict[str, ShareState]) -> GpuState:
        """Enter a GPU that was not shared, with the mode it had.

        A daemon that runs there nevertheless has the clients of shares that a lost state told of: they are entered,
        too, and whoever knows that nobody has one gives it up.
        """
        protocol = decisions.protocol(self._uuid, facts)
        former = facts.mode if facts.mode is not None else ComputeMode.DEFAULT
        if self._running():
            former = ComputeMode.DEFAULT  # a daemon that nobody remembers has made the GPU exclusive, not its owner
            _log.warning("an MPS daemon runs that nobody asked for; it is taken over", gpu=self._uuid)
        state = GpuState(directory=self._directories().root.name, protocol=protocol, former_mode=int(former))
        if self._running() and protocol is MpsProtocol.NAMESPACE:
            shares = shares | decisions.adopted(await self._found_namespaces(state), SERVER)
        state = msgspec.structs.replace(state, shares=shares)
        self._put(state)
        return state

    async def _found_namespaces(self, state: GpuState) -> tuple[Namespace, ...]:
        try:
            return await self._control(state).namespaces()
        except ControlError as error:
            if error.refusal is not Refusal.REFUSED:  # it refuses when its server is not there, and then has none
                raise
            return ()

    async def _have_daemon(self, state: GpuState) -> GpuState:
        restarts = state.restarts
        if not self._running():
            try:
                await self._process.start(self._control(state), self._directories())
            except ControlError as error:
                if state.started or state.protocol is MpsProtocol.CLASSIC or not _FOREIGN_OPTION.search(str(error)):
                    raise
                _log.warning("the MPS daemon knows no protocol 3: classic MPS", gpu=self._uuid, reason=str(error))
                state = msgspec.structs.replace(state, protocol=MpsProtocol.CLASSIC)
                self._put(state)
                await self._process.start(self._control(state), self._directories())
            restarts += state.started
        if not state.started or restarts != state.restarts:
            state = msgspec.structs.replace(state, started=True, restarts=restarts)
            self._put(state)
        return state

    async def _restore(self, state: GpuState) -> None:
        """Protocol 3: make the daemon's namespaces those that were asked for; one that cannot stops no other."""
        control = self._control(state)
        await control.ensure_server()
        found = await control.namespaces()
        for name in decisions.leftovers(found, SERVER, state.shares):
            await self._attempt(self._drop_namespace(control, name))
        by_name = {namespace.name: namespace for namespace in found}
        for name, share in state.live.items():
            try:
                await self._apply(control, name, share.limits, by_name.get(name), restoring=True)
            except (ControlError, MpsError) as error:
                _log.error(
                    "a share's limits are not what they should be", gpu=self._uuid, share=name, reason=str(error)
                )

    async def _change(self, before: ShareState | None, name: str, limits: Limits) -> Share:
        """Give a share its limits; what was before is there again when that fails."""
        state = self._known()
        wanted = ShareState(limits)
        new = name not in state.shares
        if state.shares.get(name) != wanted:
            state = state.with_share(name, wanted)
            self._put(state)
        try:
            control = self._control(state)
            if state.protocol is MpsProtocol.NAMESPACE and not (new and await self._make(control, name, limits)):
                await control.ensure_server()
                found = {namespace.name: namespace for namespace in await control.namespaces()}
                await self._apply(control, name, limits, found.get(name))
        except Exception:
            if before is None:
                await self._attempt(self.stop(name))
            else:
                self._put(self._known().with_share(name, before))
            raise
        return self._share(self._known(), name, limits)

    async def _make(self, control: Control, name: str, limits: Limits) -> bool:
        """Make a new namespace without asking first what there is; False when the daemon refuses.

        Each question is a program to be started, and nearly always the answer is the expected one.
        """
        try:
            await self._apply(control, name, limits, None)
        except ControlError as error:
            if error.refusal is not Refusal.REFUSED:
                raise
            return False
        return True

    async def _apply(
        self, control: Control, name: str, limits: Limits, found: Namespace | None, *, restoring: bool = False
    ) -> None:
        """Give a namespace its limits; one that is not there yet is made.

        A daemon that was just started again has namespaces without limits for a moment, and a container may attach in
        it; such a client is ended. Otherwise clients are in the way.
        """
        fresh = found is None or (restoring and found.percent is None and found.memory_bytes is None)
        if found is None:
            await control.create(name)
            self._directories().open_share(name)
        options = decisions.settings(limits, found, self._facts.memory_bytes if self._facts is not None else None)
        if not options:
            return
        try:
            await control.set(name, options)
        except ControlError:
            attached = [client.pid for client in await control.clients() if client.namespace == name]
            if not attached:
                raise
            if not fresh:
                raise MpsError(
                    MpsErrorKind.BUSY,
                    f"GPU {self._uuid}, share {name}: its limits change only while no client is attached; "
                    f"{_pids(attached)} must end first",
                ) from None
            for pid in attached:
                await control.terminate(pid)
            await control.set(name, options)

    async def _end_share(self, name: str) -> None:
        state = self._known()
        if state.protocol is MpsProtocol.NAMESPACE:
            if self._running():
                control = self._control(state)
                try:
                    await self._drop_namespace(control, name)
                except ControlError as error:
                    if error.refusal is Refusal.SILENT or name in {
                        namespace.name for namespace in await control.namespaces()
                    }:
                        raise
            await asyncio.to_thread(self._directories().remove_share, name)
        self._let_go(state.with_share(name, None))

    async def _drop_namespace(self, control: Control, name: str) -> None:
        for client in await control.clients():
            if client.namespace == name:
                await self._attempt(control.terminate(client.pid))
        await control.delete(name)

    async def _end(self) -> VendorError | None:
        """Stop the daemon, restore the compute mode, remove the directories, forget the GPU.

        A GPU that is lost or does not answer is of no use to anybody: it counts as given up, and its mode is restored
        by `settle` when it is back. Returns what it answers then.
        """
        state = self._known()
        await self._process.end(self._control(state), self._directories(), may_come=not state.started)
        former = ComputeMode(state.former_mode)
        silent = None
        try:
            facts = await self._machine.modes.look(self._uuid)
            ours = {ComputeMode.EXCLUSIVE_PROCESS, *([ComputeMode.PROHIBITED] if state.barred else [])}
            if facts.mode in ours and former is not facts.mode:
                await self._machine.modes.set(self._uuid, former)
        except UnknownGpuError as error:
            _log.warning("the GPU is gone, and its compute mode with it", gpu=self._uuid, reason=str(error))
        except VendorError as error:
            if error.kind not in (FailureKind.LOST, FailureKind.UNRESPONSIVE):
                raise
            _log.warning("compute mode to be restored when the GPU is back", gpu=self._uuid, reason=str(error))
            silent = error
        await asyncio.to_thread(self._directories().remove)
        if silent is None:
            self._let_go(None)
            _log.info("GPU is no longer shared", gpu=self._uuid, compute_mode=former.name)
        return silent

    def _running(self) -> bool:
        return self._process.running(self._directories())

    def _present(self, name: str) -> ShareState | None:
        state = self.wanted
        return None if state is None or state.ending else state.shares.get(name)

    def _known(self) -> GpuState:
        state = self.wanted
        assert state is not None, "only called for a GPU that is shared"
        return state

    def _put(self, state: GpuState | None) -> None:
        self._ledger.put(self._uuid, state)

    def _let_go(self, state: GpuState | None) -> None:
        self._ledger.let_go(self._uuid, state)

    def _directories(self) -> GpuDirectories:
        state = self.wanted
        taken = frozenset(other.directory for uuid, other in self._ledger.gpus.items() if uuid != self._uuid)
        name = state.directory if state is not None else directory_name(self._uuid, taken)
        return GpuDirectories(self._machine.directory / name)

    def _control(self, state: GpuState) -> Control:
        return self._machine.control(self._uuid, self._directories(), state.protocol)

    def _daemon(self, state: GpuState) -> Daemon:
        directories = self._directories()
        return Daemon(
            gpu=self._uuid,
            protocol=state.protocol,
            pipe_directory=str(directories.pipe),
            shm_directory=str(directories.shm),
            pid=self._process.pid,
            restarts=state.restarts,
        )

    def _share(self, state: GpuState, name: str, limits: Limits, clients: tuple[int, ...] = ()) -> Share:
        directories = self._directories()
        return Share(
            gpu=self._uuid,
            name=name,
            protocol=state.protocol,
            pipe_directory=str(directories.of_share(state.protocol, name)),
            shm_directory=str(directories.shm),
            limits=limits,
            clients=clients,
        )

    async def _attempt(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what is good to have done, on the way to something else; what does not work is tried again by `settle`."""
        try:
            await work
        except (ControlError, MpsError, OSError) as error:
            _log.warning("put off", gpu=self._uuid, reason=str(error))

    @contextmanager
    def _as_mps_error(self) -> Iterator[None]:
        """Tell what went wrong in the service's own terms."""
        try:
            yield
        except ControlError as error:
            raise MpsError(MpsErrorKind.TRANSIENT, f"GPU {self._uuid}, MPS: {error}") from error
        except VendorError as error:
            kind = MpsErrorKind.UNSUPPORTED if error.kind is FailureKind.UNSUPPORTED else MpsErrorKind.TRANSIENT
            raise MpsError(kind, str(error)) from error
        except StateError as error:
            raise MpsError(MpsErrorKind.TRANSIENT, str(error)) from error
        except OSError as error:
            raise MpsError(
                MpsErrorKind.TRANSIENT, f"GPU {self._uuid}, MPS: {error}: check {self._machine.directory}"
            ) from error


def _pids(pids: list[int]) -> str:
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
