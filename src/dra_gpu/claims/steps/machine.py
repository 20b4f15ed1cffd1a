"""The node as steps see it."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.partitions import PartitionHolder
from dra_gpu.claims.shares import MemoryBudget, MpsShare
from dra_gpu.claims.time_slices import TimeSliceHolder
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu, MigPlacement
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.vendors.base import MemoryUse

if TYPE_CHECKING:
    from dra_gpu.claims.steps.cdi import WriteCdiSpec


class Machine(Protocol):
    """The node, as far as steps change it.

    Faults of a vendor are `VendorError`, of MPS `MpsError`, of CDI files `SpecStoreError`. GPUs go by their UUIDs,
    partitions by GPU and placement.
    """

    @property
    def serves_mps(self) -> bool:
        """Whether there is an MPS service to ask."""

    def has_gpu(self, gpu: str) -> bool:
        """Tell whether the GPU of that UUID is in this node and works."""

    def sharing(self, device: PublishedDevice) -> SharingAbility:
        """Tell what the GPU, or the partition, behind a device and its driver can do for shares."""

    def pod_cgroup(self, pod: str) -> str | None:
        """Return the cgroup of the pod of that UID; None where it was not found."""

    def in_mig_mode(self, gpu: Gpu) -> bool:
        """Tell whether a GPU is known to be in MIG mode; asks no GPU."""

    def doubt(self, gpu: str) -> None:
        """Look again at the partitions of a GPU when they are next asked for: somebody may have changed them."""

    async def partition_holders(self, gpu: str) -> Sequence[PartitionHolder]:
        """Return the claims of this boot that hold partitions of a GPU."""

    async def time_slice_holders(self, gpu: str) -> Sequence[TimeSliceHolder]:
        """Return the claims of this boot that have set the time slice of a GPU which several claims have at once."""

    async def mig_mode(self, gpu: str) -> bool:
        """Tell whether a GPU is in MIG mode now."""

    async def has_mig_mode(self, gpu: str, *, enabled: bool) -> bool:
        """Tell whether a GPU is in that mode; what this process has found out itself is not asked for again."""

    async def set_mig_mode(self, gpu: str, *, enabled: bool) -> None:
        """Put a GPU into MIG mode, or out of it."""

    async def has_partition(self, gpu: str, placement: MigPlacement) -> bool:
        """Tell whether anything lies at exactly that place now, whole or not."""

    async def offers_partition(self, gpu: str, placement: MigPlacement) -> bool:
        """Tell whether a partition can be used; what this process has found out itself is not asked for again."""

    async def make_partition(self, gpu: str, placement: MigPlacement) -> None:
        """Have a partition."""

    async def destroy_partition(self, gpu: str, placement: MigPlacement) -> None:
        """Destroy a partition; one that is not there is as good."""

    async def share(self, gpu: str, share: MpsShare, placement: MigPlacement | None = None) -> None:
        """Have a share of a GPU, or of a partition of it, on MPS."""

    async def shared(self, gpu: str, share: MpsShare, placement: MigPlacement | None = None) -> bool:
        """Tell whether a share is there with its limits."""

    async def resize_share(self, gpu: str, share: MpsShare, placement: MigPlacement | None = None) -> None:
        """Give a share on MPS other limits; one that is not there is made."""

    async def share_clients(self, gpu: str, name: str, placement: MigPlacement | None = None) -> Sequence[int]:
        """Return the processes that are attached to a share."""

    async def memory_use(self, gpu: str, cgroup: str) -> MemoryUse:
        """Return the device memory that a cgroup uses."""

    async def environments(self, pods: Collection[str]) -> Mapping[int, Mapping[str, str]]:
        """Return what each process of some pods was started with, by its id."""

    def command(self, pid: int) -> str:
        """Return how a process was started, shortened; empty where it has ended."""

    async def unshare(self, gpu: str, name: str, placement: MigPlacement | None = None) -> None:
        """Give a share up; one that is not there is as good."""

    async def memory_budgets(self, claim_uid: str, gpu: str) -> Sequence[MemoryBudget]:
        """Return the limits that the cgroups of a claim's pods should have on a GPU."""

    async def memory_limit(self, gpu: str, cgroup: str) -> int | None:
        """Return a cgroup's limit on a GPU in bytes; None where there is none."""

    async def set_memory_limit(self, gpu: str, cgroup: str, limit: int | None) -> None:
        """Set a cgroup's limit on a GPU, in bytes; None takes it away."""

    async def time_slice(self, gpu: str) -> TimeSliceInterval | None:
        """Return the present time slice of a GPU; None where it cannot be read."""

    async def set_time_slice(self, gpu: str, interval: TimeSliceInterval) -> None:
        """Set the time slice of a GPU."""

    async def write_spec(self, step: "WriteCdiSpec") -> None:
        """Write the claim's CDI file; it is visible on return."""

    async def spec_intact(self, step: "WriteCdiSpec") -> bool:
        """Tell whether the claim's CDI file is there with the content it would be written with now."""

    async def remove_spec(self, claim_uid: str) -> None:
        """Remove the claim's CDI file; a missing one is as good."""
