"""What there is to observe of a node plugin; imports nothing that only whoever observes needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dra_gpu.apiserver.claim_status import ClaimStatusWriter
from dra_gpu.apiserver.events import EventRecorder
from dra_gpu.apiserver.publisher import SlicePublisher
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.preparation import Identity
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import MigInstance, MigPlacement
from dra_gpu.mps.service import MpsService
from dra_gpu.node.health import NodeHealth
from dra_gpu.node.publishing import Publishing
from dra_gpu.node.resizing import NodeResizes
from dra_gpu.node.waiting_claims import WaitingClaims
from dra_gpu.vendors.base import Vendor


@dataclass(frozen=True, slots=True)
class Observed:
    """What is looked at.

    Attributes:
        identity: driver and pool, which has the node's name.
        journal: the records.
        inventory: returns what the node offers.
        publisher: writes the slices.
        publishing: decides about them.
        registered: whether the kubelet has the driver registered.
        events: of this instance.
        statuses: of claims' devices, on their way to the API server.
        waiting: claims that wait for a device.
        vendor: of the GPUs.
        instance_of: returns the GPU instance behind a partition, as far as it is known without a call.
        health: of the GPUs.
        resets: how often GPUs were reset, by UUID and result.
        resizes: of shares.
        mps: the MPS service, where there is one.
    """

    identity: Identity
    journal: Journal
    inventory: Callable[[], Inventory]
    publisher: SlicePublisher
    publishing: Publishing
    registered: Callable[[], bool]
    events: EventRecorder
    statuses: ClaimStatusWriter
    waiting: WaitingClaims
    vendor: Vendor
    instance_of: Callable[[str, MigPlacement], MigInstance | None]
    health: NodeHealth
    resets: Mapping[tuple[str, str], int]
    resizes: NodeResizes
    mps: MpsService | None
