"""The facts about the GPUs of a node, as a vendor's library reports them, and what could not be read.

A fact that a GPU does not have, or that could not be read, is `None`: the attribute is then absent, the GPU is not.
Only the UUID is mandatory.
"""

import enum
from dataclasses import dataclass, field


class View(enum.Enum):
    """A way to use a physical GPU, published as a device of its own. The value is the attribute `type`."""

    GPU = "gpu"
    SHARED = "shared"
    MIG = "mig"
    SHARED_MIG = "shared-mig"
    VFIO = "vfio"
    MONITOR = "monitor"


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU.

    Attributes:
        link: number of the link on its GPU.
        active: it is up.
        version: NVLink generation, 1 and up.
        remote_address: PCI address of the other end, in sysfs' form; None when it cannot be told.
        remote_is_switch: the other end is an NVSwitch, through which every other GPU on it is reached.
    """

    link: int
    active: bool
    version: int | None = None
    remote_address: str | None = None
    remote_is_switch: bool = False


@dataclass(frozen=True, slots=True)
class Fabric:
    """Membership of a multi-node NVLink fabric; only complete registrations are reported."""

    cluster_uuid: str
    clique_id: int

    @property
    def clique(self) -> str:
        """`<cluster UUID>.<clique id>`: equal on GPUs that reach each other."""
        return f"{self.cluster_uuid}.{self.clique_id}"


@dataclass(frozen=True, slots=True)
class FabricPartition:
    """A set of GPUs that Fabric Manager can join for a guest; a GPU is in one of each size.

    Attributes:
        size: how many GPUs it has.
        partition_id: Fabric Manager's number of it.
    """

    size: int
    partition_id: int


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """Where a GPU instance lies: the identity of a partition on its GPU, before it exists and after it is gone.

    Attributes:
        profile: NVML's number of the profile (`NVML_GPU_INSTANCE_PROFILE_*`); names and ids change with drivers.
        start: first memory unit.
        size: number of memory units.
    """

    profile: int
    start: int
    size: int

    @property
    def units(self) -> int:
        """The memory units it takes, as a bit mask."""
        return ((1 << self.size) - 1) << self.start


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of GPU instance that a GPU offers. NVML tells it whether or not MIG is on.

    Attributes:
        profile: NVML's number of the profile (`NVML_GPU_INSTANCE_PROFILE_*`).
        profile_id: id by which this driver creates it; part of device names, as NVIDIA's driver has it.
        name: as NVML spells it, without `MIG `: `1g.10gb`, `1g.10gb+me`.
        slices: compute slices.
        memory_bytes: device memory, in whole MiB.
        multiprocessors: SMs.
        copy_engines: number of copy engines; the same for the engines below.
        decoders: NVDEC.
        encoders: NVENC.
        jpeg_engines: NVJPG.
        ofa_engines: optical flow.
        max_instances: how many of it the GPU can have at once.
        placements: every place where it can lie, by start.
    """

    profile: int
    profile_id: int
    name: str
    slices: int
    memory_bytes: int
    multiprocessors: int
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0
    max_instances: int = 1
    placements: tuple[MigPlacement, ...] = ()


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance that exists.

    Attributes:
        placement: where it lies.
        gpu_instance: id of the GPU instance.
        compute_instance: id of its one compute instance that spans it; None where it has none, or is cut into several,
            and then nobody can be given it as a whole.
        uuid: of the MIG device (`MIG-…`); None where there is no such compute instance.
    """

    placement: MigPlacement
    gpu_instance: int
    compute_instance: int | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU.

    Attributes:
        uuid: the vendor's identity of the device (`GPU-…`); follows the board, not the slot.
        index: position in the vendor library's enumeration; selects nothing stable.
        minor: number of the device node (`/dev/nvidia<minor>`); None where the platform has no such node.
        pci_address: in sysfs' form (`0000:3b:00.0`); None on platforms without PCI.
        memory_bytes: total device memory, rounded down to whole MiB.
        compute_capability: (major, minor).
        multiprocessors: number of SMs.
        pcie_root: `pci<domain>:<bus>` of the root complex.
        numa_node: NUMA node of the PCI device; None instead of -1.
        numa_nodes: that node first, then those of its socket that are nearest to it; empty where none is known or lists
            are not published.
        addressing_mode: HMM, ATS or None, as NVML names it.
        mig_capable: the board can be partitioned.
        mig_enabled: it is in MIG mode now.
        mig_pending: the mode it has after its next reset; None where it cannot be partitioned.
        mig_live: its mode changes at once, without a reset (Hopper and later; MIG User Guide r580).
        mig_profiles: every profile it offers, whether or not MIG is on.
        mig_instances: every GPU instance that exists now, whoever made it.
        nvlinks: every link the board has, active or not.
        nvlink_bandwidth: bytes per second, one direction, of the most links that were active at once since the start.
        fabric: the multi-node fabric it is a member of.
        fabric_registered: it has registered with the fabric of its switches, without which NVLink carries nothing from
            Hopper on; None where there is no such registration.
        module_id: number of its socket on the baseboard, by which Fabric Manager knows it.
        fabric_partitions: the partitions it is in, smallest first; none where Fabric Manager does not share switches.
        confidential_compute: the GPU works in confidential mode.
        isolation: what enforces the limits of a share of this GPU, weakest first; None where it cannot be shared.
    """

    uuid: str
    index: int
    minor: int | None = None
    pci_address: str | None = None
    product_name: str | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    serial: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    numa_nodes: tuple[int, ...] = ()
    addressing_mode: str | None = None
    mig_capable: bool | None = None
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    mig_live: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    nvlinks: tuple[NvLink, ...] = ()
    nvlink_bandwidth: int | None = None
    fabric: Fabric | None = None
    fabric_registered: bool | None = None
    module_id: int | None = None
    fabric_partitions: tuple[FabricPartition, ...] = ()
    confidential_compute: bool | None = None
    isolation: str | None = None

    def mig_profile(self, placement: MigPlacement) -> MigProfile | None:
        """Return the profile of a partition; None when the GPU does not offer it (any more)."""
        return next((profile for profile in self.mig_profiles if profile.profile == placement.profile), None)

    @property
    def mig_slices(self) -> int:
        """How many compute slices the GPU is divided into: those of its largest profile, which is all of it."""
        return max((profile.slices for profile in self.mig_profiles), default=0)


@dataclass(frozen=True, slots=True)
class SickGpu:
    """A GPU that is there but cannot be used: lost, silent, or without a UUID.

    Attributes:
        where: what is known of its place: a PCI address, else `index N`.
        reason: what the library answered, and what to do.
        uuid: its identity, when an earlier scan of this boot knew it.
        last: what it was when it last answered; what it offers stays published, for those who have it and for the
            taints that say what has become of it.
    """

    where: str
    reason: str
    uuid: str | None = None
    last: Gpu | None = None


@dataclass(frozen=True, slots=True)
class DriverVersions:
    """Versions of the vendor's kernel driver and of the compute API it offers, as raw texts."""

    driver: str = ""
    compute_api: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """One look at all GPUs of a node. One sick GPU never hides the others."""

    versions: DriverVersions = field(default_factory=DriverVersions)
    gpus: tuple[Gpu, ...] = ()
    sick: tuple[SickGpu, ...] = ()
