"""The devices of a node: what stands behind each published name."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_gpu.api import resource_v1
from dra_gpu.inventory.model import DriverVersions, Gpu, MigPlacement, SickGpu, View


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """One view of one GPU under the name by which the scheduler allocates it.

    Attributes:
        name: DNS label, unique in the node's pool.
        view: how the GPU is used through this device.
        gpu: the physical GPU behind it; hardware calls follow its UUID.
        wire: the device as it stands in a ResourceSlice.
        placement: the partition that it is, or is a part of; None for views of the whole GPU.
    """

    name: str
    view: View
    gpu: Gpu
    wire: resource_v1.Device
    placement: MigPlacement | None = None

    @property
    def exclusive(self) -> bool:
        """Whoever holds this device holds the whole GPU."""
        return self.view in (View.GPU, View.VFIO)


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything this node offers at one moment.

    Attributes:
        devices: by name; those of a GPU that was lost are still among them.
        versions: raw texts of the driver's versions.
        sick: GPUs that are there and do not work.
        gpus: every GPU that works, by UUID; one may be offered as nothing, and claims still have it.
        lost: every GPU that does not work any more, as it was when it last answered, by UUID.
    """

    devices: Mapping[str, PublishedDevice] = field(default_factory=dict)
    versions: DriverVersions = field(default_factory=DriverVersions)
    sick: tuple[SickGpu, ...] = ()
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    lost: Mapping[str, Gpu] = field(default_factory=dict)

    def known_gpu(self, uuid: str) -> Gpu | None:
        """Return a GPU by its UUID, as it is or as it was when it last answered."""
        return self.gpus.get(uuid) or self.lost.get(uuid)
