"""The file that tells the container runtime what a claim's containers get."""

import msgspec

from dra_gpu.claims.shares import MpsShare
from dra_gpu.claims.steps.form import Form
from dra_gpu.claims.steps.machine import Machine
from dra_gpu.inventory.model import MigPlacement, View

CLAIM_VARIABLE = "DRA_GPU_CLAIM"
"""Variable in every container of a claim: `namespace/name`. A lost journal is rebuilt from it."""

FOREIGN_VARIABLE = "DRA_GPU_FOREIGN_PARTITION"
"""Variable of a device whose partition is an administrator's: a lost journal must not make it one to destroy."""


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
        placement: the partition of the GPU; None for the GPU itself.
        foreign: the partition is an administrator's.
    """

    cdi_name: str
    device: str
    gpu: str
    view: View
    share: MpsShare | None = None
    placement: MigPlacement | None = None
    foreign: bool = False


class WriteCdiSpec(Form, frozen=True, tag="writeCdiSpec"):
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
