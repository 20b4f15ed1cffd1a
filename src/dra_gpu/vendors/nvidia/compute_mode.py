"""The compute mode of a GPU: who may use it. Set to EXCLUSIVE_PROCESS while it is shared by MPS.

A GPU is looked for index by index: NVML's own look-up by UUID fails as soon as any GPU of the node is lost. The mode is
not kept over a reboot. A MIG device goes by its own UUID, and its compute mode is nobody's business: EXCLUSIVE_PROCESS
does not go with MIG. Source: NVML API reference r580, `nvmlDeviceSetComputeMode`, `nvmlDeviceGetHandleByUUID`; MIG User
Guide r580, "CUDA Concurrency Mechanisms".
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from dra_gpu.inventory.model import Gpu
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia import sharing
from dra_gpu.vendors.nvidia.nvml import Nvml, failure
from dra_gpu.vendors.watchdog import Watchdog

T = TypeVar("T")

# NVML's first initialisation takes seconds per GPU without the persistence daemon.
_DEADLINE = 30.0
_MIG_DEVICE = "MIG-"


class ComputeMode(enum.IntEnum):
    """NVML's compute modes."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class UnknownGpuError(VendorError):
    """Every GPU of the node answers, and none has the UUID: the board is gone."""


@dataclass(frozen=True, slots=True)
class SharingFacts:
    """What MPS needs to know of a GPU or MIG device.

    Attributes:
        mode: its compute mode; None while it is partitioned, and for a MIG device.
        protocol: how MPS limits its clients; None where it cannot serve the GPU.
        partitioned: it is a GPU in MIG mode.
        memory_bytes: its memory.
    """

    mode: ComputeMode | None
    protocol: MpsProtocol | None
    partitioned: bool = False
    memory_bytes: int | None = None


class ComputeModes:
    """Reads and sets compute modes; NVML is open only meanwhile."""

    def __init__(self, nvml: Nvml, watchdog: Watchdog) -> None:
        self._nvml = nvml
        self._watchdog = watchdog

    async def look(self, uuid: str) -> SharingFacts:
        """Return the facts about a GPU.

        Raises:
            UnknownGpuError: the node has no such GPU.
            VendorError: NVML does not answer, or not for this GPU.
        """
        return await self._watchdog.call(f"GPU {uuid}", "reading its compute mode", lambda: self._look(uuid), _DEADLINE)

    async def set(self, uuid: str, mode: ComputeMode) -> None:
        """Set the compute mode; running processes keep what they have.

        Raises:
            UnknownGpuError: the node has no such GPU.
            VendorError: NVML refused: rights, MIG mode, or the GPU is lost.
        """
        await self._watchdog.call(f"GPU {uuid}", f"setting {mode.name}", lambda: self._set(uuid, mode), _DEADLINE)

    def _look(self, uuid: str) -> SharingFacts:
        if uuid.startswith(_MIG_DEVICE):
            return self._look_at_partition(uuid)

        def read(index: int, handle: object) -> SharingFacts:
            gpu = self._nvml.read(index)
            partitioned = bool(gpu.mig_enabled)
            return SharingFacts(
                mode=None if partitioned else _mode(gpu, handle),
                protocol=sharing.ability(gpu, self._nvml.versions(), cgroup_v2=False).mps,
                partitioned=partitioned,
                memory_bytes=gpu.memory_bytes,
            )

        return self._with(uuid, read)

    def _look_at_partition(self, uuid: str) -> SharingFacts:
        self._nvml.open()
        try:
            for index in range(self._nvml.count()):
                for handle in _mig_devices(index):
                    if pynvml.nvmlDeviceGetUUID(handle) != uuid:
                        continue
                    serves = sharing.has_mps(self._nvml.read(index))
                    memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
                    return SharingFacts(None, MpsProtocol.CLASSIC if serves else None, memory_bytes=memory)
        except pynvml.NVMLError as error:
            raise failure(f"MIG device {uuid}", "NVML", error) from error
        finally:
            self._nvml.close()
        raise UnknownGpuError(
            FailureKind.LOST, f"MIG device {uuid}: no GPU of this node has it; has its GPU instance been destroyed?"
        )

    def _set(self, uuid: str, mode: ComputeMode) -> None:
        def write(_index: int, handle: object) -> None:
            try:
                pynvml.nvmlDeviceSetComputeMode(handle, int(mode))
            except pynvml.NVMLError as error:
                raise failure(f"GPU {uuid}", f"nvmlDeviceSetComputeMode({mode.name})", error) from error

        self._with(uuid, write)

    def _with(self, uuid: str, use: Callable[[int, object], T]) -> T:
        self._nvml.open()
        try:
            return use(*self._find(uuid))
        finally:
            self._nvml.close()

    def _find(self, uuid: str) -> tuple[int, object]:
        silent: VendorError | None = None
        for index in range(self._nvml.count()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                if pynvml.nvmlDeviceGetUUID(handle) == uuid:
                    return index, handle
            except pynvml.NVMLError as error:
                silent = failure(f"GPU {uuid}, if it is the one at index {index}", "NVML", error)
        if silent is not None:
            raise silent
        raise UnknownGpuError(
            FailureKind.LOST, f"GPU {uuid}: this node has no such GPU; was the board exchanged, or its driver unbound?"
        )


def _mig_devices(index: int) -> Iterator[Any]:
    """Yield the handles of a GPU's MIG devices; none for a GPU without MIG, and none for one that does not answer."""
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    except pynvml.NVMLError:
        return
    for number in range(count):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
        except pynvml.NVMLError:  # numbers have gaps
            continue


def _mode(gpu: Gpu, handle: object) -> ComputeMode:
    try:
        return ComputeMode(pynvml.nvmlDeviceGetComputeMode(handle))
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetComputeMode", error) from error
