"""What processes use of a GPU at a moment, as a vendor's library tells it."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class NoSamples(enum.Enum):
    """Why nobody can tell how busy processes kept the SMs."""

    MIG = "mig"  # the library has no samples of a partitioned GPU
    UNSUPPORTED = "unsupported"  # nor of this GPU or driver


@dataclass(frozen=True, slots=True)
class UsingProcess:
    """A process on a GPU.

    Attributes:
        pid: as this process would see it.
        memory_bytes: device memory; None where it is not told.
        gpu_instance: id of the GPU instance it is on; None on a GPU without MIG.
    """

    pid: int
    memory_bytes: int | None = None
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One look at a GPU.

    Attributes:
        processes: all that use it.
        memory_bytes: device memory in use; None where it is not told.
        sm: by process id, the share of the time (0 to 1) in which it kept SMs busy since the last look; a process
            without samples did nothing.
        no_samples: why `sm` says nothing; None when it does.
        cgroups: by path, the device memory that a cgroup's processes use.
        nvlink_sent: bytes over all links since the driver was loaded; None where it is not told.
        nvlink_received: the same of the other direction.
    """

    processes: tuple[UsingProcess, ...] = ()
    memory_bytes: int | None = None
    sm: Mapping[int, float] = field(default_factory=dict)
    no_samples: NoSamples | None = None
    cgroups: Mapping[str, int] = field(default_factory=dict)
    nvlink_sent: int | None = None
    nvlink_received: int | None = None
