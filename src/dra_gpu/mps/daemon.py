"""The life of one GPU's control daemon: started, taken over, watched, ended. Knows no shares and no compute mode."""

import asyncio
import signal
from collections.abc import Callable, Sequence

import structlog

from dra_gpu.mps import process
from dra_gpu.mps.control import Control, ControlError
from dra_gpu.mps.directories import GpuDirectories
from dra_gpu.mps.process import DaemonProcess
from dra_gpu.mps.service import MpsError, MpsErrorKind

_APPEAR_S = 10.0  # a daemon writes its pid file and answers well within a second
_LATE_S = 1.0  # one whose starter was killed may still come
_POLL_S = 0.02  # nothing announces another process' file
_QUIT_S = 10.0
_TERM_S = 2.0
_KILL_S = 5.0

_log = structlog.get_logger(__name__)


class GpuDaemon:
    """The daemon of a GPU, if it runs."""

    def __init__(self, uuid: str, on_death: Callable[[DaemonProcess], None]) -> None:
        """Take a GPU; nothing happens yet.

        Args:
            uuid: of the GPU.
            on_death: called on the loop when the daemon has died by itself.
        """
        self._uuid = uuid
        self._on_death = on_death
        self._process: DaemonProcess | None = None

    @property
    def pid(self) -> int:
        """Its pid; 0 while it does not run."""
        return self._process.pid if self._process is not None and self._process.alive else 0

    def running(self, directories: GpuDirectories) -> bool:
        """Tell whether it runs; one that an earlier instance of the service left is taken over."""
        if self._process is not None:
            return self._process.alive
        if (found := process.find(directories.pipe)) is None:
            return False
        self._hold(found)
        _log.info("MPS daemon taken over", gpu=self._uuid, pid=found.pid)
        return True

    async def start(self, control: Control, directories: GpuDirectories) -> None:
        """Start it, or find the one that a killed predecessor of this process has started meanwhile.

        Raises:
            ControlError: it does not start.
            MpsError: it does not answer.
        """
        refused: ControlError | None = None
        if not self._hides(directories):
            await self._all_ended(process.servers(directories.pipe), 0)  # a dead daemon's would keep the GPU from this
            try:
                await control.start()
            except ControlError as error:
                refused = error
        loop = asyncio.get_running_loop()
        until = loop.time() + (_APPEAR_S if refused is None else _LATE_S)
        while True:
            if await self._found(control, directories):
                return
            if loop.time() > until:
                break
            await asyncio.sleep(_POLL_S)
        if refused is not None:
            raise refused
        raise MpsError(
            MpsErrorKind.TRANSIENT,
            f"GPU {self._uuid}: the MPS daemon was started and does not answer in {directories.pipe} after "
            f"{_APPEAR_S:g} s: see {directories.log}/control.log",
        )

    async def end(self, control: Control, directories: GpuDirectories, *, may_come: bool) -> None:
        """End it with its servers and their clients; what does not end when told is killed.

        Args:
            control: to tell it.
            directories: the GPU's.
            may_come: nobody has seen it run yet, but its start may be on the way: it is waited for a moment.

        Raises:
            MpsError: a process does not even end when killed: the kernel driver holds it.
        """
        until = asyncio.get_running_loop().time() + _LATE_S
        while not self.running(directories):
            if not may_come or asyncio.get_running_loop().time() >= until:
                self.forget()
                self._process = process.search(directories.pipe)
                break
            await asyncio.sleep(_POLL_S)
        servers = process.servers(directories.pipe)
        if self._process is not None:
            await self._tell_to_quit(control, self._process)
            await self._ended(self._process, _QUIT_S)
        await self._all_ended(servers, _TERM_S)
        self.forget()

    def forget(self) -> None:
        """Watch it no longer; if it runs, it goes on."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _hides(self, directories: GpuDirectories) -> bool:
        """Tell whether it runs although no pid file names it: with classic MPS containers can remove that."""
        found = process.search(directories.pipe)
        if found is not None:
            found.close()
        return found is not None

    async def _found(self, control: Control, directories: GpuDirectories) -> bool:
        """Watch it from now on if it is there and answers."""
        found = process.find(directories.pipe) or process.search(directories.pipe)
        if found is None:
            return False
        try:
            answers = await control.answers()
        except BaseException:
            found.close()
            raise
        if not answers:
            found.close()
            return False
        self._hold(found)
        _log.info("MPS daemon runs", gpu=self._uuid, pid=found.pid)
        return True

    async def _tell_to_quit(self, control: Control, daemon: DaemonProcess) -> None:
        daemon.unwatch()
        try:
            await control.quit()
        except ControlError as error:
            _log.warning("the MPS daemon does not quit; it is killed", gpu=self._uuid, reason=str(error))
            daemon.send(signal.SIGTERM)

    async def _all_ended(self, left: Sequence[DaemonProcess], patience: float) -> None:
        try:
            for one in left:
                await self._ended(one, patience)
        finally:
            for one in left:
                one.close()

    async def _ended(self, left: DaemonProcess, patience: float) -> None:
        if await left.wait(patience):
            return
        left.send(signal.SIGKILL)
        if not await left.wait(_KILL_S):
            raise MpsError(
                MpsErrorKind.TRANSIENT,
                f"GPU {self._uuid}: process {left.pid} of MPS does not end although it was killed: the GPU hangs; "
                "reset it or reboot the node",
            )

    def _hold(self, running: DaemonProcess) -> None:
        self.forget()
        self._process = running
        running.watch(lambda: self._died(running))

    def _died(self, running: DaemonProcess) -> None:
        self.forget()
        self._on_death(running)
