"""The border between the kubelet's protocol and whoever prepares claims.

`kubelet` translates gRPC into these types and back; it decides nothing about devices. The claims engine, or a stand-in
of a test, implements `ClaimService`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """All that the kubelet says about a claim. The object itself may be gone from the API server by now."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device that a claim holds and that containers may now be given.

    Attributes:
        request_names: requests of the claim, subrequest stripped; empty means all of them.
        pool: the pool that publishes the device.
        device: the device's name in that pool.
        cdi_ids: qualified CDI names, the one unique to this device first: the kubelet makes it the ResourceID of the
            device's health entries and removes duplicates by it.
        share_id: which share of the device, where several claims use it; DRA v1 alone carries it.
    """

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim whose devices are ready. No devices is a valid answer."""

    devices: tuple[PreparedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimError:
    """Why one claim could not be prepared or given back.

    The message ends up in the pod's events: it names the object, the reason and the remedy.
    """

    message: str


class ClaimService(Protocol):
    """Prepares claims and gives them back; what the kubelet's calls come down to.

    Calls for different claims, and several calls for the same claim, arrive at the same time. A call is never cancelled
    because its client went away; only the end of a bounded drain cancels it, and then it has to undo what it began.

    `deadline` is a time of `asyncio.get_running_loop().time()`. An answer after it is not lost work (the kubelet asks
    again), but nobody hears it.
    """

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PreparedClaim | ClaimError]:
        """Prepare each claim or say why not; the result is keyed by claim UID. UIDs in `claims` are distinct."""

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, ClaimError | None]:
        """Give each claim's devices back; None is success, and an unknown claim is a success."""
