"""What is known of a resize at one moment, and the questions that the decisions ask of it. Pure."""

from dataclasses import dataclass, field

from dra_gpu.api.claim_resize import ClaimResize, Growth, NodeStatus, Target
from dra_gpu.controller.resizes import objects
from dra_gpu.controller.resizes.objects import Claim, Pod
from dra_gpu.inventory import amounts
from dra_gpu.inventory.amounts import Amounts


@dataclass(frozen=True, slots=True)
class View:
    """A ClaimResize with what belongs to it.

    Attributes:
        resize: the object. What is written to it is written under this version.
        claim: of its name, as the server had it after `resize`; None where there is none.
        growths: claims with the label of the claim that is resized, as a watch had them.
        pods: the same of pods.
        fresh: UIDs of growths of which `growths` says what the server had after `resize`; one that is fresh and not
            there is gone.
        lost: its node does not exist any more.
        obstacle: why a growth was not let in: what the API server said.
        free: what the device has left; None where nobody looked.
    """

    resize: ClaimResize
    claim: Claim | None = None
    growths: tuple[Claim, ...] = ()
    pods: tuple[Pod, ...] = ()
    fresh: frozenset[str] = field(default_factory=frozenset)
    lost: bool = False
    obstacle: str = ""
    free: Amounts | None = None

    @property
    def name(self) -> str:
        """Of the object and its claim."""
        return self.resize.metadata.name

    @property
    def target(self) -> Target | None:
        """The device that is worked on; None before it was found."""
        return self.resize.status.target

    @property
    def deleting(self) -> bool:
        """The object is being deleted."""
        return self.resize.metadata.deletion_timestamp is not None

    @property
    def ledger(self) -> list[Growth]:
        """What the status counts as growths."""
        return self.resize.status.growths

    @property
    def is_current(self) -> bool:
        """The claim still has the device that is worked on."""
        target = self.target
        return (
            target is not None
            and self.claim is not None
            and self.claim.metadata.uid == target.claim_uid
            and objects.result_of(self.claim, target) is not None
        )

    @property
    def has_entry(self) -> bool:
        """The claim stays allocated for this resize."""
        return self.claim is not None and any(
            objects.is_entry(one, self.name) for one in self.claim.status.reserved_for
        )

    @property
    def node(self) -> NodeStatus | None:
        """What the node says of the claim that is worked on; None before it has said anything."""
        said, target = self.resize.status.node, self.target
        return said if target is not None and said.claim_uid == target.claim_uid else None

    @property
    def is_agreed(self) -> bool:
        """The node keeps to the last `permitted`: what it says is about that."""
        return self.node is not None and self.node.permit == self.resize.status.permit

    @property
    def is_unused(self) -> bool:
        """Nothing runs with the claim, and nothing will."""
        if self.lost:
            return True
        if self.node is not None and self.node.prepared:
            return False
        return not self.is_current or self.claim is None or not objects.is_used(self.claim, self.name)

    @property
    def given_back(self) -> Amounts:
        """B, as far as the node has said."""
        return amounts.parse(self.node.given_back) if self.node is not None else Amounts()

    @property
    def in_force(self) -> Amounts | None:
        """L; None before the node has said anything."""
        return amounts.parse(self.node.in_force) if self.node is not None else None

    def growth(self, uid: str) -> Claim | None:
        """Return a growth's claim."""
        return next((one for one in self.growths if one.metadata.uid == uid), None)

    def pod_of(self, growth: Claim) -> Pod | None:
        """Return the pod that carries a growth through the scheduler."""
        return next((one for one in self.pods if one.metadata.name == growth.metadata.name), None)
