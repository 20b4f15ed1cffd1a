"""What the node plugin asks of the MPS service: five calls, and what goes over its socket.

A *daemon* is NVIDIA's MPS control daemon of one shared GPU, or of one MIG device; that goes by its own UUID wherever a
GPU goes by one, and the compute mode of its parent is left alone. A *share* is one claim's part of either: with
protocol 3 a namespace of the daemon with limits of its own, with protocol 2 (classic MPS, always in a MIG device) only
a name, since its limits stand in the client's environment. The service owns the daemons, the GPU's compute mode while
it is shared, and the namespaces; it keeps what it was asked for on disk, so that a daemon that dies is started again
with its shares. Every call can be repeated.
Source: MPS documentation r615, "MPS v3 Interface" and "Legacy MPS v2 Interface".
"""

import enum
from typing import Protocol

import msgspec

from dra_gpu.inventory.sharing import MpsProtocol

__all__ = [
    "MAX_NAME",
    "Daemon",
    "GpuClients",
    "Limits",
    "MpsError",
    "MpsErrorKind",
    "MpsProtocol",
    "MpsService",
    "Share",
]

MAX_NAME = 64


class MpsErrorKind(enum.Enum):
    """What a caller can do about a refused call."""

    TRANSIENT = "transient"  # the same call may succeed in a moment
    BUSY = "busy"  # clients are attached, and what was asked needs them gone
    UNSUPPORTED = "unsupported"  # this GPU or driver never can
    UNAVAILABLE = "unavailable"  # the service does not answer


class MpsError(Exception):
    """The service did not do what was asked; the message names the GPU, the reason and the remedy."""

    def __init__(self, kind: MpsErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Limits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What each client process of a share may use.

    Attributes:
        compute_percent: percent of the GPU's SMs, 1 to 100; None for no limit.
        memory_bytes: device memory that a client may pin, in bytes; None for no limit.
        low_priority: clients run below normal priority.
    """

    compute_percent: int | None = None
    memory_bytes: int | None = None
    low_priority: bool = False


class Daemon(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The control daemon of a GPU.

    Attributes:
        gpu: UUID of the GPU.
        protocol: how its shares are limited.
        pipe_directory: its pipe directory on the host; clients of classic MPS mount it.
        shm_directory: what clients mount at /dev/shm.
        pid: of the control daemon.
        restarts: how often it had to be started again; clients of before are gone.
    """

    gpu: str
    protocol: MpsProtocol
    pipe_directory: str
    shm_directory: str
    pid: int
    restarts: int = 0


class Share(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A share of a GPU as the service keeps it.

    Attributes:
        gpu: UUID of the GPU.
        name: `[a-z0-9_]`, at most 64 characters, unique on the GPU.
        protocol: how its limits reach its clients.
        pipe_directory: what its clients mount, on the host: its own and nobody else's.
        shm_directory: what its clients mount at /dev/shm.
        limits: in force for clients that attach from now on.
        clients: pids of attached clients, in the host's pid namespace; with classic MPS nobody can tell which share a
            client belongs to, and all of the GPU's clients stand with each.
    """

    gpu: str
    name: str
    protocol: MpsProtocol
    pipe_directory: str
    shm_directory: str
    limits: Limits = Limits()
    clients: tuple[int, ...] = ()


class GpuClients(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Everything the service has on one GPU.

    Attributes:
        daemon: its control daemon; pid 0 while it does not run.
        shares: those that are not being given up.
        problem: why nobody can tell now which clients are attached; empty when it was told.
    """

    daemon: Daemon
    shares: tuple[Share, ...] = ()
    problem: str = ""


class MpsService(Protocol):
    """The five calls. Each raises `MpsError`."""

    async def ensure(self, gpu: str) -> Daemon:
        """Have a control daemon on the GPU, with the GPU in EXCLUSIVE_PROCESS mode; its former mode is kept."""

    async def share(self, gpu: str, name: str, limits: Limits) -> Share:
        """Have a share with these limits (and a daemon). A share of that name with other limits and clients is BUSY."""

    async def limits(self, gpu: str, name: str, limits: Limits) -> Share:
        """Change the limits of a share that exists; BUSY while a client is attached where the protocol says so."""

    async def clients(self, gpu: str = "") -> tuple[GpuClients, ...]:
        """Tell daemons, shares and attached clients, of one GPU or of all."""

    async def stop(self, gpu: str, name: str = "") -> None:
        """Give a share up, its clients with it; the last one stops the daemon and restores the GPU's compute mode.

        Without a name: all shares of the GPU. What is not there is as good as stopped.
        """
