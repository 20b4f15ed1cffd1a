"""Fabric Manager's partitions: which sets of GPUs of a baseboard can be joined for a guest of their own.

Only a Fabric Manager that shares the switches among guests has any ("Shared NVSwitch multi-tenancy mode"), and only one
that listens on a Unix socket can be asked: its TCP port on the host's loopback is out of a pod's reach. Where either is
missing there are no partitions, and that is no fault.
Source: Fabric Manager User Guide r580, "Fabric Manager SDK"; structures of nv_fm_types.h.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dra_gpu.inventory import pci
from dra_gpu.inventory.model import FabricPartition, Gpu
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia.driver_root import find_library
from dra_gpu.vendors.nvidia.queries import text
from dra_gpu.vendors.watchdog import Watchdog

LIBRARY = "libnvfm.so.1"
SOCKET = Path("run/nvidia-fabricmanager/socket")
"""Of its command interface, where `FM_CMD_UNIX_SOCKET_PATH` turns it on."""

_SUCCESS, _NOT_SUPPORTED, _NOT_CONFIGURED = 0, -3, -8
_CONNECT_MS = 2_000
_SECONDS = 10.0
_MOST_GPUS, _MOST_PARTITIONS = 16, 64
_SUBJECT = "Fabric Manager"


class _ConnectParams(ctypes.Structure):
    """fmConnectParams_v1."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("address", ctypes.c_char * 256),
        ("timeout_ms", ctypes.c_uint),
        ("is_unix_socket", ctypes.c_uint),
    )


class _Gpu(ctypes.Structure):
    """fmFabricPartitionGpuInfo_t."""

    _fields_ = (
        ("physical_id", ctypes.c_uint),
        ("uuid", ctypes.c_char * 80),
        ("bus_id", ctypes.c_char * 32),
        ("links_available", ctypes.c_uint),
        ("links", ctypes.c_uint),
        ("line_rate_mbps", ctypes.c_uint),
    )


class _Partition(ctypes.Structure):
    """fmFabricPartitionInfo_t."""

    _fields_ = (
        ("partition_id", ctypes.c_uint),
        ("is_active", ctypes.c_uint),
        ("gpu_count", ctypes.c_uint),
        ("gpus", _Gpu * _MOST_GPUS),
    )


class _PartitionList(ctypes.Structure):
    """fmFabricPartitionList_v2, whose version number is 1."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("most", ctypes.c_uint),
        ("partitions", _Partition * _MOST_PARTITIONS),
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A GPU of a partition. From Hopper on only its module is told.

    Attributes:
        module_id: number of its socket on the baseboard.
        uuid: of the GPU; empty where it is not told.
        pci_address: in sysfs' form; None where it is not told.
    """

    module_id: int
    uuid: str = ""
    pci_address: str | None = None

    def is_gpu(self, gpu: Gpu) -> bool:
        """Whether this is that GPU, by the most exact name there is."""
        if self.uuid:
            return self.uuid == gpu.uuid
        if self.pci_address is not None:
            return self.pci_address == gpu.pci_address
        return gpu.module_id is not None and self.module_id == gpu.module_id


@dataclass(frozen=True, slots=True)
class Partition:
    """A set of GPUs that can be joined; whether it is now is nothing that is published."""

    partition_id: int
    members: tuple[Member, ...]


class FabricManager:
    """Asks for the partitions at every look at the GPUs, and keeps the last answer while nobody answers."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """Remember the places; nothing is loaded yet.

        Args:
            roots: file systems that a Fabric Manager may run in: that of the driver installation, and the host's.
        """
        self._roots = tuple(roots)
        # Its own: a Fabric Manager that hangs must not keep NVML open.
        self._watchdog = Watchdog()
        self._known: tuple[Partition, ...] = ()

    async def with_partitions(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the GPUs with the partitions that each is in."""
        partitions = await self.partitions()
        return tuple(replace(gpu, fabric_partitions=_of(gpu, partitions)) for gpu in gpus)

    async def partitions(self) -> tuple[Partition, ...]:
        """Return every partition that can be made of this node's GPUs."""
        found = next(filter(None, map(_installed, self._roots)), None)
        if found is not None:
            with suppress(VendorError):  # what can be joined is the same while nobody answers
                self._known = await self._watchdog.call(
                    _SUBJECT, "fmGetSupportedFabricPartitions", lambda: read(*found), _SECONDS
                )
        return self._known


def _installed(root: Path) -> tuple[Path, Path] | None:
    """Return library and socket of a Fabric Manager that listens in a file system."""
    socket = root / SOCKET
    library = find_library(root, LIBRARY) if socket.exists() else None
    return None if library is None else (library, socket)


def read(library: Path, socket: Path) -> tuple[Partition, ...]:
    """Ask a Fabric Manager for its partitions; none where it does not share its switches.

    Blocks. The library keeps one connection for the whole process, so one caller at a time.

    Raises:
        VendorError: it cannot be reached, or it does not answer.
    """
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise VendorError(FailureKind.TRANSIENT, f"{_SUBJECT}: {library} cannot be loaded ({error})") from error
    with _connection(loaded, socket) as handle:
        answer = _PartitionList(version=ctypes.sizeof(_PartitionList) | 1 << 24)
        code = loaded.fmGetSupportedFabricPartitions(handle, ctypes.byref(answer))
        if code in (_NOT_SUPPORTED, _NOT_CONFIGURED):
            return ()
        _check("fmGetSupportedFabricPartitions", code)
    found = answer.partitions[: min(answer.count, _MOST_PARTITIONS)]
    return tuple(_partition(one) for one in found)


@contextmanager
def _connection(loaded: ctypes.CDLL, socket: Path) -> Iterator[ctypes.c_void_p]:
    params = _ConnectParams(
        version=ctypes.sizeof(_ConnectParams) | 1 << 24,
        address=str(socket).encode(),
        timeout_ms=_CONNECT_MS,
        is_unix_socket=1,
    )
    handle = ctypes.c_void_p()
    _check("fmLibInit", loaded.fmLibInit())
    try:
        _check("fmConnect", loaded.fmConnect(ctypes.byref(params), ctypes.byref(handle)))
        try:
            yield handle
        finally:
            loaded.fmDisconnect(handle)
    finally:
        loaded.fmLibShutdown()


def _check(call: str, code: int) -> None:
    if code != _SUCCESS:
        raise VendorError(FailureKind.TRANSIENT, f"{_SUBJECT}: {call} answered {code}; it is asked again shortly")


def _partition(found: _Partition) -> Partition:
    members = tuple(
        Member(gpu.physical_id, text(gpu.uuid) or "", pci.normalise(text(gpu.bus_id) or ""))
        for gpu in found.gpus[: min(found.gpu_count, _MOST_GPUS)]
    )
    return Partition(found.partition_id, members)


def _of(gpu: Gpu, partitions: Iterable[Partition]) -> tuple[FabricPartition, ...]:
    found = [
        FabricPartition(len(partition.members), partition.partition_id)
        for partition in partitions
        if any(member.is_gpu(gpu) for member in partition.members)
    ]
    return tuple(sorted(found, key=lambda partition: (partition.size, partition.partition_id)))
