"""The effects of a claim on this node as typed values that can be written down before they happen.

Each step can be applied, undone and verified; each of the three may be repeated at any time, also after a crash in the
middle of it. Steps reach the node through the `Machine` alone. A new kind of step (a MIG instance, a passthrough
binding) is a class here and a member of `Step`.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.shares import MemoryBudget, MpsShare
from dra_gpu.inventory.model import Gpu, View
from dra_gpu.inventory.sharing import SharingAbility
from dra_gpu.vendors.base import CgroupGoneError

CLAIM_VARIABLE = "DRA_GPU_CLAIM"
"""Variable in every container of a claim: `namespace/name`. A lost journal is rebuilt from it."""


def cdi_kind(driver: str) -> str:
    """Return the CDI kind of a driver's claims, spelled as NVIDIA's driver does (`k8s.gpu.nvidia.com/claim`)."""
    return f"k8s.{driver}/claim"


class CdiDevice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device of a claim's CDI file.

    Attributes:
        cdi_name: name in the CDI file, unique on the node.
        device: name of the published device.
        gpu: UUID of the GPU behind it; what a lost file is rebuilt from.
        view: how the GPU is used through it.
        share: what its containers reach the GPU through; None where they use it directly.
    """

    cdi_name: str
    device: str
    gpu: str
    view: View
    share: MpsShare | None = None


class Machine(Protocol):
    """The node, as far as steps change it.

    Faults of a vendor are `VendorError`, of MPS `MpsError`, of CDI files `SpecStoreError`.
    """

    @property
    def serves_mps(self) -> bool:
        """Whether there is an MPS service to ask."""

    def has_gpu(self, gpu: str) -> bool:
        """Tell whether the GPU of that UUID is in this node and works."""

    def sharing(self, gpu: Gpu) -> SharingAbility:
        """Tell what a GPU and its driver can do for shares."""

    def pod_cgroup(self, pod: str) -> str | None:
        """Return the cgroup of the pod of that UID; None where it was not found."""

    async def share(self, gpu: str, share: MpsShare) -> None:
        """Have a share of a GPU on MPS."""

    async def shared(self, gpu: str, share: MpsShare) -> bool:
        """Tell whether a share is there with its limits."""

    async def unshare(self, gpu: str, name: str) -> None:
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


class _Step(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="step"):
    """Common form on the wire: an object whose `step` names its kind; unknown fields are ignored."""


class SetTimeSlice(_Step, frozen=True, tag="setTimeSlice"):
    """Set how long a process runs on a GPU before another one gets it.

    Attributes:
        gpu: UUID of the GPU.
        interval: what the claim asked for.
        former: what was set before; None where it could not be read, and then undone to the default.
    """

    gpu: str
    interval: TimeSliceInterval
    former: TimeSliceInterval | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose state it changes."""
        return (self.gpu,)

    async def observed(self, machine: Machine) -> "SetTimeSlice":
        """Return the step with the setting it is going to replace."""
        return msgspec.structs.replace(self, former=await machine.time_slice(self.gpu))

    async def apply(self, machine: Machine) -> None:
        """Set the interval."""
        await machine.set_time_slice(self.gpu, self.interval)

    async def undo(self, machine: Machine) -> None:
        """Restore the former interval, unless somebody else has changed it since: then it is not ours."""
        present = await machine.time_slice(self.gpu)
        if present is not None and present is not self.interval:
            return
        former = self.former or TimeSliceInterval.DEFAULT
        if present is not former:
            await machine.set_time_slice(self.gpu, former)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the interval is in force; one that cannot be read counts as not."""
        return await machine.time_slice(self.gpu) is self.interval


class WriteCdiSpec(_Step, frozen=True, tag="writeCdiSpec"):
    """Write the file that tells the container runtime what each device of the claim adds to a container.

    The edits themselves are not kept: they are made anew from the driver installation of the moment, so that a file
    rebuilt after a driver upgrade names libraries that exist.

    Attributes:
        claim_uid: key of the file.
        claim: `namespace/name`, kept in the file so that the journal can be rebuilt from it.
        devices: at least one.
    """

    claim_uid: str
    claim: str
    devices: tuple[CdiDevice, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose state it changes: none, it writes a file."""
        return ()

    async def observed(self, machine: Machine) -> "WriteCdiSpec":  # noqa: ARG002 - one shape for all steps
        """Return the step itself: it replaces nothing."""
        return self

    async def apply(self, machine: Machine) -> None:
        """Write the file."""
        await machine.write_spec(self)

    async def undo(self, machine: Machine) -> None:
        """Remove the file."""
        await machine.remove_spec(self.claim_uid)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the file is as it should be."""
        return await machine.spec_intact(self)


class ShareOnMps(_Step, frozen=True, tag="shareOnMps"):
    """Have a share of a GPU on the MPS service, with its limits.

    Attributes:
        gpu: UUID of the GPU.
        share: its name and limits.
    """

    gpu: str
    share: MpsShare

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose state it changes."""
        return (self.gpu,)

    async def observed(self, machine: Machine) -> "ShareOnMps":  # noqa: ARG002 - one shape for all steps
        """Return the step itself: the GPU's former compute mode is kept by the service."""
        return self

    async def apply(self, machine: Machine) -> None:
        """Make the share."""
        await machine.share(self.gpu, self.share)

    async def undo(self, machine: Machine) -> None:
        """Give the share up; the last one of a GPU ends its daemon."""
        await machine.unshare(self.gpu, self.share.name)

    async def verify(self, machine: Machine) -> bool:
        """Tell whether the share is there with its limits."""
        return await machine.shared(self.gpu, self.share)


class LimitMemory(_Step, frozen=True, tag="limitMemory"):
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
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose state it changes."""
        return (self.gpu,)

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


Step = SetTimeSlice | ShareOnMps | LimitMemory | WriteCdiSpec


class UnknownStep(msgspec.Struct, frozen=True):
    """A step that this release cannot carry out: of a newer release, or damaged."""

    kind: str
    reason: str


class _Kind(msgspec.Struct, frozen=True):
    step: str = ""


_decoder: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)


def encode(step: Step) -> bytes:
    """Return the JSON of a step."""
    return msgspec.json.encode(step)


def decode(raw: bytes) -> Step | UnknownStep:
    """Read a step as far as this release knows its kind; unknown fields are ignored."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            kind = msgspec.json.decode(raw, type=_Kind).step
        except (msgspec.DecodeError, UnicodeDecodeError):
            kind = ""
        return UnknownStep(kind[:40], str(error))
