"""What a claim has of a GPU that it shares with others, and the names that shares go by. Pure."""

import hashlib
import re
from dataclasses import dataclass

import msgspec

from dra_gpu.api.dra_gpu_v1alpha1 import SharedStrategy
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol
from dra_gpu.mps.service import Limits

MEBI = 2**20
WHOLE_PERCENT = 100
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class MpsShare(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A share on the MPS service.

    Attributes:
        name: unique on its GPU; see `share_name` and `claim_share_name`.
        protocol: how its limits reach its processes.
        limits: of each process.
        former: other limits that it may still have, while it is resized; never written down.
    """

    name: str
    protocol: MpsProtocol
    limits: Limits = Limits()
    former: Limits | None = None


class HeldShare(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One share that a claim holds: how much, and what keeps it to that.

    Attributes:
        device: name of the shareable device.
        share_id: the scheduler's id of the share.
        gpu: UUID of the GPU.
        strategy: MPS or TIME_SLICING; all shares of a GPU have the same.
        percent: percent of the SMs of the GPU, or of the partition.
        memory_bytes: device memory.
        clients: client processes that the scheduler counted.
        nvlink_bandwidth: bytes per second that the scheduler counted.
        compute: what enforces `percent`.
        memory: what enforces `memory_bytes`.
        gpu_memory_bytes: all that the GPU, or the partition, has; None where it does not tell.
        notes: what else a reader of the claim's status should know.
        placement: the partition of which it is a part; None for a part of the GPU itself.
        counted: how the claim uses a device that several claims have at once, each as a whole (see `counted`); the
            same for all of them. None for a part of a device.
    """

    device: str
    share_id: str
    gpu: str
    strategy: SharedStrategy
    percent: int
    memory_bytes: int
    compute: Mechanism
    memory: Mechanism
    clients: int | None = None
    nvlink_bandwidth: int | None = None
    gpu_memory_bytes: int | None = None
    notes: tuple[str, ...] = ()
    placement: MigPlacement | None = None
    counted: str | None = None

    @property
    def manner(self) -> str:
        """What all shares of one device have in common, as a text that goes on from `it is shared by`."""
        return self.strategy.value if self.counted is None else f"claims {self.counted}"

    @property
    def part_of(self) -> str:
        """What it is a part of, as a text: the UUID of the GPU, and the place of the partition."""
        if self.placement is None:
            return self.gpu
        return f"{self.gpu}/{self.placement.profile}-{self.placement.start}"


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A pod's cgroup in which a claim's processes may use so much memory of a GPU.

    Attributes:
        gpu: UUID of the GPU.
        cgroup: path of the cgroup.
        limit: bytes that the claim adds to the cgroup's limit.
    """

    gpu: str
    cgroup: str
    limit: int


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The limit that a cgroup should have on a GPU: one pod may hold shares of several claims.

    Attributes:
        cgroup: path of the cgroup.
        own: bytes of the claim in question.
        others: bytes of all other claims.
    """

    cgroup: str
    own: int
    others: int


def is_share_id(text: str) -> bool:
    """Tell whether a text is a share id as the scheduler makes them: a UUID. It becomes a part of names here."""
    return _UUID.fullmatch(text) is not None


def share_name(share_id: str) -> str:
    """Return the name of a share on the MPS service: `s_` and the share id without dashes, 34 characters."""
    return f"s_{share_id.replace('-', '')}"


def claim_share_name(claim_uid: str) -> str:
    """Return the name under which a claim shares a whole GPU among its own containers; 34 characters."""
    digits = (
        claim_uid.replace("-", "") if _UUID.fullmatch(claim_uid) else hashlib.sha256(claim_uid.encode()).hexdigest()
    )
    return f"c_{digits[:32]}"


def is_ours(name: str) -> bool:
    """Tell whether a share on the MPS service has a name that only this package gives."""
    return re.fullmatch(r"[sc]_[0-9a-f]{32}", name, re.ASCII) is not None


def encode(share: HeldShare) -> bytes:
    """Return the JSON of a share."""
    return msgspec.json.encode(share)


def decode(raw: bytes) -> HeldShare | None:
    """Read a share; None for one that a newer release wrote in a way that this one does not understand."""
    try:
        return msgspec.json.decode(raw, type=HeldShare)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
