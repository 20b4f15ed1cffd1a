"""The boundary of the claims engine: which claim is meant, and what comes of it.

Every claim of a call gets a value of its own: `Prepared`, a `Refusal`, or None for an unprepare that succeeded. Nothing
about one claim is an exception for the others.
"""

import enum
import re
from dataclasses import dataclass

import msgspec

# Kubernetes makes UIDs as UUIDs but only promises an opaque text. It becomes a part of file and device names here, so
# that nothing but letters, digits and inner dashes is accepted (K8s v1.37 pkg/kubelet treats it as opaque, too).
_UID = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?", re.ASCII)
_SHOWN = 80


def can_stand_in_names(text: str) -> bool:
    """Tell whether a text can be a part of the names of files and CDI devices."""
    return _UID.fullmatch(text) is not None


class ClaimRef(msgspec.Struct, frozen=True):
    """Identity of a claim as the kubelet gives it; the UID alone is the key of everything kept here."""

    namespace: str
    name: str
    uid: str

    @property
    def has_valid_uid(self) -> bool:
        """Whether the UID can stand in names of files and CDI devices."""
        return can_stand_in_names(self.uid)

    def __str__(self) -> str:
        """Return `namespace/name (uid)`, bounded in length: it ends up in events and log lines."""
        name = f"{self.namespace}/{self.name}" if self.name else "of unknown name"
        return f"{name[:_SHOWN]} ({self.uid[:_SHOWN]})"


class PreparedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One allocated device as the kubelet is told about it.

    Attributes:
        request_names: requests of the claim that it serves, without `/sub`; empty means all.
        pool: name of its pool.
        device: name of the device in the pool.
        cdi_ids: ids for the container runtime, the one that is unique to the device first.
        share_id: which share of a shareable device; None for one that is had whole.
    """

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The claim is ready on this node; no devices is a valid answer (all of them belong to other drivers)."""

    devices: tuple[PreparedDevice, ...]


class RefusalKind(enum.Enum):
    """What stood in the way, in one of few words: what refusals are counted by."""

    CLAIM = "claim"  # the claim, its config or its pod
    HELD = "held"  # another claim has what it wants, or a process does not let go of it
    QUARANTINED = "quarantined"  # its record was set aside
    TIMEOUT = "timeout"  # not done by the deadline; the work goes on
    BUSY = "busy"  # more claims in work than there may be, or a lock that was not to be had
    NOT_READY = "not-ready"  # the GPUs have not been looked at yet
    API_SERVER = "api-server"
    JOURNAL = "journal"
    CDI = "cdi"
    MPS = "mps"
    GPU = "gpu"
    GPU_LOST = "gpu-lost"
    GPU_UNRESPONSIVE = "gpu-unresponsive"
    INTERNAL = "internal"  # a fault of ours


@dataclass(frozen=True, slots=True)
class Refusal:
    """The claim was not served.

    Attributes:
        message: object, reason and remedy, for the events of a pod.
        retryable: the same call may succeed later without anybody changing the claim.
        kind: what stood in the way.
        holders: UIDs of the claims that hold what it wants; when one of them goes, it is worth another call.
    """

    message: str
    retryable: bool
    kind: RefusalKind = RefusalKind.CLAIM
    holders: frozenset[str] = frozenset()


class RefusedError(Exception):
    """Carries a refusal from where it is found to where a claim's call is answered."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        kind: RefusalKind = RefusalKind.CLAIM,
        holders: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(message, retryable, kind, holders)
