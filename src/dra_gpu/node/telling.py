"""What the node plugin says in Events: about its Node, and about claims."""

from dataclasses import dataclass
from typing import Literal

import structlog

from dra_gpu.apiserver.events import EventRecorder, ObjectReference
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.record import Record

Kind = Literal["Warning", "Normal"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Telling:
    """Records Events.

    Attributes:
        events: takes them.
        node_name: name of this node.
    """

    events: EventRecorder
    node_name: str

    def trouble(self, reason: str, note: str) -> None:
        """Say of the node what a person has to act on."""
        self.of_node("Warning", reason, note)

    def of_node(self, kind: Kind, reason: str, note: str) -> None:
        """Say something of the node."""
        node = ObjectReference("v1", "Node", self.node_name, uid=self.node_name)  # as the kubelet refers to it
        self.events.record(node, kind, reason, note)

    def of_claim(self, ref: ClaimRef, kind: Kind, reason: str, note: str) -> None:
        """Say something of a claim."""
        claim = ObjectReference("resource.k8s.io/v1", "ResourceClaim", ref.name, ref.namespace, uid=ref.uid)
        self.events.record(claim, kind, reason, note)

    def free(self, ref: ClaimRef) -> None:
        """Say that a claim which was refused need not wait any longer."""
        _log.info("a device came free that a claim waits for", claim=str(ref))
        self.of_claim(ref, "Normal", "DeviceFree", "a device that this claim waits for came free on its node")

    def mps_ended(self, record: Record, note: str) -> None:
        """Say that a claim's processes have lost their MPS daemon."""
        self.of_claim(record.ref, "Warning", "MpsDaemonEnded", note)
