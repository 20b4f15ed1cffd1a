"""Parts of GPUs and partitions: on MPS, and within a limit on memory."""

from contextlib import suppress

from dra_gpu.claims.shares import MpsShare
from dra_gpu.claims.steps.form import Form, Place
from dra_gpu.claims.steps.machine import Machine
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.vendors.base import CgroupGoneError


class ShareOnMps(Form, frozen=True, tag="shareOnMps"):
    """Have a share of a GPU, or of a partition of it, on the MPS service, with its limits.

    Attributes:
        gpu: UUID of the GPU.
        share: its name and limits.
        placement: the partition; None for the GPU itself.
    """

    gpu: str
    share: MpsShare
    placement: MigPlacement | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it takes effect."""
        return ((self.gpu, self.placement.units if self.placement is not None else 0),)

    async def observed(self, machine: Machine) -> "ShareOnMps":  # noqa: ARG002 - one shape for all steps
        """Return the step itself: the GPU's former compute mode is kept by the service."""
        return self

    async def apply(self, machine: Machine) -> None:
        """Make the share."""
        await machine.share(self.gpu, self.share, self.placement)

    async def undo(self, machine: Machine) -> None:
        """Give the share up; the last one ends the daemon."""
        await machine.unshare(self.gpu, self.share.name, self.placement)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the share is there with its limits."""
        return await machine.shared(self.gpu, self.share, self.placement)


class LimitMemory(Form, frozen=True, tag="limitMemory"):
    """Limit the memory of a GPU that the pods of a claim may use.

    Which cgroups that are stands in the journal beside the step, since pods may join a claim later; a pod with several
    claims has the sum of their limits.

    Attributes:
        gpu: UUID of the GPU.
        claim_uid: the claim.
    """

    gpu: str
    claim_uid: str

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it takes effect."""
        return ((self.gpu, 0),)

    async def observed(self, machine: Machine) -> "LimitMemory":  # noqa: ARG002 - one shape for all steps
        """Return the step itself: a pod's cgroup is new and has no limit, or one that other claims put there."""
        return self

    async def apply(self, machine: Machine) -> None:
        """Set the limit on each cgroup that is there."""
        for budget in await machine.memory_budgets(self.claim_uid, self.gpu):
            with suppress(CgroupGoneError):
                await machine.set_memory_limit(self.gpu, budget.cgroup, budget.own + budget.others)

    async def undo(self, machine: Machine) -> None:
        """Leave each cgroup that is still there with what other claims put there."""
        for budget in await machine.memory_budgets(self.claim_uid, self.gpu):
            with suppress(CgroupGoneError):
                await machine.set_memory_limit(self.gpu, budget.cgroup, budget.others or None)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether every cgroup that is there has its limit."""
        for budget in await machine.memory_budgets(self.claim_uid, self.gpu):
            with suppress(CgroupGoneError):
                if await machine.memory_limit(self.gpu, budget.cgroup) != budget.own + budget.others:
                    return False
        return True
