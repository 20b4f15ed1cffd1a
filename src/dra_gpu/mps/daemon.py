"""The life of one GPU's control daemon: started, taken over, watched, ended. Knows no shares and no compute mode."""

import asyncio
import signal
from collections.abc import Callable

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
        try:
            await control.start()
        except ControlError as error:
            refused = error
        loop = asyncio.get_running_loop()
        until = loop.time() + (_APPEAR_S if refused is None else _LATE_S)
        while True:
            found = process.find(directories.pipe)
            if found is not None:
                if await control.answers():
                    self._hold(found)
                    _log.info("MPS daemon runs", gpu=self._uuid, pid=found.pid)
                    return
                found.close()
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
                return
            await asyncio.sleep(_POLL_S)
        assert self._process is not None  # it runs
        daemon, servers = self._process, await self._told_to_quit(control, directories, self._process)
        try:
            await self._ended(daemon, _QUIT_S)
            for server in servers:
                await self._ended(server, _TERM_S)
        finally:
            for server in servers:
                server.close()
        self.forget()

    def forget(self) -> None:
        """Watch it no longer; if it runs, it goes on."""
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _told_to_quit(
        self, control: Control, directories: GpuDirectories, daemon: DaemonProcess
    ) -> list[DaemonProcess]:
        """Tell it to quit; returns its servers, which may outlive it."""
        daemon.unwatch()
        servers: list[DaemonProcess] = []
        try:
            pids = await control.servers()
            servers += [held for pid in pids if (held := process.hold(pid, directories.pipe)) is not None]
            await control.quit()
        except ControlError as error:
            _log.warning("the MPS daemon does not quit; it is killed", gpu=self._uuid, reason=str(error))
            daemon.send(signal.SIGTERM)
        return servers

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
