"""Resets a GPU: NVML closed in this process, nobody else with the GPU open, `nvidia-smi --gpu-reset`, and a look after.

Whoever still has the device node open is named before anything is tried. The persistence daemon is none of them: it
lets go of a GPU when nvidia-smi asks it to (Driver Persistence r580, "Persistence Daemon"); if it does not, nvidia-smi
refuses, and its words are told.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pynvml

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia import holders
from dra_gpu.vendors.nvidia.gate import Gate, StillInUseError
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.queries import optional, text
from dra_gpu.vendors.nvidia.smi import Smi
from dra_gpu.vendors.watchdog import Watchdog

# What is being asked of NVML when a reset is wanted ends within a call's deadline; a wait for events within a second.
_LEAVE_SECONDS = 20.0
# The first opening after a reset initialises the GPU.
_LOOK_SECONDS = 60.0
_PERSISTENCE_DAEMON = "nvidia-persiste"  # as procfs cuts it: 15 characters, proc(5)


class Resetting:
    """Resets GPUs, one at a time.

    Args:
        nvml: the library of this process.
        gate: who uses it.
        watchdog: by which blocking calls run.
        smi: nvidia-smi.
        processes: where procfs is mounted that shows who has device nodes open.
        node_of: returns the place of a GPU's device node.
    """

    def __init__(
        self,
        nvml: Nvml,
        gate: Gate,
        watchdog: Watchdog,
        smi: Smi,
        *,
        processes: Path,
        node_of: Callable[[Gpu], Path | None],
    ) -> None:
        self._nvml = nvml
        self._gate = gate
        self._watchdog = watchdog
        self._smi = smi
        self._processes = processes
        self._node_of = node_of

    async def reset(self, gpu: Gpu) -> None:
        """See `vendors.base.Vendor.reset_gpu`."""
        try:
            async with self._gate.closed(_LEAVE_SECONDS):
                if self._nvml.is_open:
                    raise self._hangs(gpu, "a call that has not returned keeps NVML open")
                await self._watchdog.call(
                    "procfs", "looking for who has a GPU open", lambda: self._check_unused(gpu), _LOOK_SECONDS
                )
                await self._reset(gpu)
                await self._watchdog.call(
                    f"GPU {gpu.index}", "looking at it after its reset", lambda: self._check_back(gpu), _LOOK_SECONDS
                )
        except StillInUseError as error:
            raise self._hangs(gpu, str(error)) from error

    async def _reset(self, gpu: Gpu) -> None:
        """Have nvidia-smi reset it; whoever keeps it from that is named, as far as he can be seen."""
        try:
            await self._smi.reset(gpu.uuid, gpu.pci_address or gpu.uuid)
        except VendorError as error:
            if error.kind is not FailureKind.IN_USE:
                raise
            named = await asyncio.to_thread(lambda: holders.described(self._processes, self._holders(gpu)))
            raise VendorError(error.kind, f"{error}; it is open in {named}" if named else str(error)) from error

    @staticmethod
    def _hangs(gpu: Gpu, why: str) -> VendorError:
        return VendorError(
            FailureKind.UNRESPONSIVE,
            f"GPU {gpu.uuid} cannot be reset: this process has it open itself and cannot close it ({why}): delete the "
            "node plugin's pod, then reset it again",
        )

    def _check_unused(self, gpu: Gpu) -> None:
        others = [pid for pid in self._holders(gpu) if not self._is_persistence_daemon(pid)]
        if others:
            raise VendorError(
                FailureKind.IN_USE,
                f"GPU {gpu.uuid} cannot be reset while {holders.described(self._processes, others)} has "
                f"{self._node_of(gpu)} open: end it, then reset the GPU again",
            )

    def _holders(self, gpu: Gpu) -> frozenset[int]:
        node = self._node_of(gpu)
        return holders.holders(self._processes, [node] if node is not None else [])

    def _is_persistence_daemon(self, pid: int) -> bool:
        with suppress(OSError):
            return (self._processes / str(pid) / "comm").read_text(errors="replace").strip() == _PERSISTENCE_DAEMON
        return False

    def _check_back(self, gpu: Gpu) -> None:
        self._nvml.open()
        try:
            if gpu.uuid not in _uuids(self._nvml.count()):
                raise VendorError(
                    FailureKind.LOST,
                    f"GPU {gpu.uuid} has been reset, and NVML does not see it afterwards: reboot the node; if it stays "
                    "away, the board is broken",
                )
        finally:
            self._nvml.close()


def _uuids(count: int) -> set[str]:
    """Return the UUIDs of all GPUs that answer: a GPU that was lost may have another index than before."""
    found = set()
    for index in range(count):
        handle = optional(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = None if handle is None else text(optional(pynvml.nvmlDeviceGetUUID, handle))
        if uuid:
            found.add(uuid)
    return found
