"""Composes the MPS service and runs it until SIGTERM. The supervisor starts it; see there for what survives what.

Order at start: the lock of the directory, since one process owns the daemons; the state; the socket, so that callers
are answered while daemons are taken over. At stop: running calls end, daemons go on.
"""

import asyncio
import os
import signal
from collections.abc import Sequence

import structlog

from dra_gpu import __version__, logs
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps import linux, server, settings
from dra_gpu.mps.control import Control, ControlProgram, MpsHost
from dra_gpu.mps.daemons import MpsDaemons
from dra_gpu.mps.directories import GpuDirectories
from dra_gpu.mps.settings import Settings
from dra_gpu.mps.shared_gpu import Machine
from dra_gpu.mps.state import Ledger, StateError, StateFile
from dra_gpu.vendors.nvidia.compute_mode import ComputeModes
from dra_gpu.vendors.nvidia.driver_root import find_nvml
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.watchdog import Watchdog

# A predecessor that was asked to stop may still be at a call; the supervisor starts this process again anyway.
_LOCK_SECONDS = 30.0

_log = structlog.get_logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the service; returns its exit status."""
    chosen = settings.parse(arguments, os.environ)
    logs.configure(chosen.log_level, instance=f"mps/{__version__}/{os.getpid()}")
    linux.die_with_parent(signal.SIGTERM)
    try:
        asyncio.run(serve(chosen))
    except (server.DirectoryBusyError, StateError, OSError) as error:
        _log.critical("the MPS service cannot start", reason=str(error))
        return 1
    return 0


async def serve(chosen: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        DirectoryBusyError: another process serves the directory.
        StateError: the state cannot be read.
        OSError: a path cannot be used.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    lock = await server.hold_lock(chosen.directory, _LOCK_SECONDS)
    try:
        daemons = compose(chosen)
        listening = server.Server(daemons, chosen.socket)
        await listening.start()
        settling = asyncio.create_task(daemons.run(chosen.settle_period), name="settle")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        observing = _observe(daemons, chosen)
        _log.info("MPS service listens", socket=str(chosen.socket))
        try:
            done, _ = await asyncio.wait([settling, stopping], return_when=asyncio.FIRST_COMPLETED)
            await listening.stop()
            if settling in done:
                raise RuntimeError("the task that settles ended") from settling.exception()
        finally:
            for task in (settling, stopping, *observing):
                task.cancel()
            await asyncio.gather(settling, stopping, *observing, return_exceptions=True)
            await daemons.close()
    finally:
        os.close(lock)
    _log.info("stopped; the daemons go on")


def _observe(daemons: MpsDaemons, chosen: Settings) -> tuple[asyncio.Task[None], ...]:
    """Serve metrics, where they are wanted; a port that cannot be had costs the metrics and nothing else."""
    address = chosen.http_endpoint
    if address is None:
        return ()
    from dra_gpu.mps.observing import MpsObserver

    async def serve_metrics() -> None:
        try:
            await MpsObserver(daemons).run(address, chosen.metrics_path)
        except OSError as error:
            _log.error("metrics cannot be served: give another --http-endpoint", reason=str(error))

    return (asyncio.create_task(serve_metrics(), name="metrics"),)


def compose(chosen: Settings) -> MpsDaemons:
    """Build the service from its settings.

    Raises:
        StateError: the state cannot be read.
        OSError: the boot id cannot be read.
    """
    host = MpsHost(chosen.driver_root, own_shm=chosen.own_shm)

    def control(gpu: str, directories: GpuDirectories, protocol: MpsProtocol) -> Control:
        return ControlProgram(host, gpu, directories, protocol)

    state = StateFile(chosen.directory / "state.json", chosen.boot_id_file.read_text(encoding="ascii").strip())
    ledger = Ledger(state)
    if state.damaged:
        _log.error("the state was damaged; daemons that run are taken over by the next call", reason=state.damaged)
    modes = ComputeModes(Nvml(lambda: find_nvml(chosen.driver_root)), Watchdog())
    return MpsDaemons(ledger, Machine(chosen.directory, modes, control, own_shm=chosen.own_shm))
