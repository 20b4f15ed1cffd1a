"""The boards that can be simulated, and the profiles (which boards a node has) made of them.

Facts: NVIDIA datasheets, published nvidia-smi listings of the boards, and for NVLink the link counts and
one-direction speeds that ``nvidia-smi nvlink -s`` prints. MIG tables are in ``profiles/mig.json``, with their sources.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dra_gpu_sim import nvlinks
from dra_gpu_sim.nvlinks import Joint, NvLinks
from dra_gpu_sim.state import MIG_AFTER_RESET, MIG_LIVE

VOLTA, AMPERE, ADA, HOPPER, BLACKWELL = 5, 7, 8, 9, 10
"""NVML_DEVICE_ARCH_*."""

BRAND_NVIDIA, BRAND_NVIDIA_RTX, BRAND_GRID, BRAND_TESLA = 14, 13, 4, 2
"""NVML_BRAND_*."""

ARCH_UNKNOWN = 0xFFFFFFFF

EVENTS = 0x1 | 0x2 | 0x8 | 0x100 | 0x200 | 0x400 | 0x800 | 0x4000 | 0x8000
"""ECC, Xid, MIG configuration, retirement, unavailable, recovery action: what a data centre board reports."""


@dataclass(frozen=True, slots=True)
class Board:
    """What one GPU is. Memory in MiB as nvidia-smi prints it, power in milliwatts."""

    name: str
    architecture: int
    compute_capability: tuple[int, int]
    sm_count: int
    memory_mib: int
    reserved_mib: int
    pci_device: int
    pci_subsystem: int
    brand: int = BRAND_NVIDIA
    part_number: str = ""
    vbios: str = "96.00.74.00.01"
    power_limit_mw: int = 700_000
    nvlink: NvLinks | None = None
    mig_table: str | None = None
    mig_support: int = MIG_LIVE
    mig_survives_reboot: bool = False
    fabric: bool = False
    coherent: bool = False
    time_slices: bool = True
    ecc: bool = True
    virtualization: int = 0
    events: int = EVENTS
    nodeless: bool = False
    unsupported: tuple[str, ...] = ()
    bar1_mib: int = 0


A100 = Board(
    name="NVIDIA A100-SXM4-80GB",
    architecture=AMPERE,
    compute_capability=(8, 0),
    sm_count=108,
    memory_mib=81_920,
    reserved_mib=614,
    pci_device=0x20B2,
    pci_subsystem=0x147F,
    part_number="692-2G506-0212-002",
    vbios="92.00.45.00.03",
    power_limit_mw=400_000,
    nvlink=nvlinks.GEN3,
    mig_table="A100-80GB",
    mig_support=MIG_AFTER_RESET,
    mig_survives_reboot=True,
    bar1_mib=131_072,
)
A100_PCIE = replace(
    A100,
    name="NVIDIA A100 80GB PCIe",
    pci_device=0x20B5,
    pci_subsystem=0x1533,
    part_number="900-21001-0020-000",
    vbios="92.00.68.00.01",
    power_limit_mw=300_000,
    nvlink=nvlinks.BRIDGED,
)
V100 = Board(
    name="Tesla V100-SXM2-32GB",
    architecture=VOLTA,
    compute_capability=(7, 0),
    sm_count=80,
    memory_mib=32_768,
    reserved_mib=268,
    pci_device=0x1DB5,
    pci_subsystem=0x1249,
    brand=BRAND_TESLA,
    part_number="699-2G503-0203-240",
    vbios="88.00.4F.00.09",
    power_limit_mw=300_000,
    nvlink=nvlinks.CUBE,
    bar1_mib=32_768,
)
H100 = Board(
    name="NVIDIA H100 80GB HBM3",
    architecture=HOPPER,
    compute_capability=(9, 0),
    sm_count=132,
    memory_mib=81_559,
    reserved_mib=551,
    pci_device=0x2330,
    pci_subsystem=0x16C1,
    part_number="692-2G520-0200-000",
    nvlink=nvlinks.GEN4,
    mig_table="H100-80GB",
    fabric=True,
    bar1_mib=131_072,
)
H200 = Board(
    name="NVIDIA H200",
    architecture=HOPPER,
    compute_capability=(9, 0),
    sm_count=132,
    memory_mib=143_771,
    reserved_mib=617,
    pci_device=0x2335,
    pci_subsystem=0x18BE,
    part_number="692-2G520-0280-001",
    nvlink=nvlinks.GEN4,
    mig_table="H200-141GB",
    fabric=True,
    bar1_mib=262_144,
)
B200 = Board(
    name="NVIDIA B200",
    architecture=BLACKWELL,
    compute_capability=(10, 0),
    sm_count=148,
    memory_mib=183_359,
    reserved_mib=717,
    pci_device=0x2901,
    pci_subsystem=0x1999,
    vbios="97.00.82.00.16",
    power_limit_mw=1_000_000,
    nvlink=nvlinks.GEN5,
    mig_table="B200-180GB",
    fabric=True,
    bar1_mib=262_144,
)
GB200 = Board(
    name="NVIDIA GB200",
    architecture=BLACKWELL,
    compute_capability=(10, 0),
    sm_count=152,
    memory_mib=189_471,
    reserved_mib=717,
    pci_device=0x2941,
    pci_subsystem=0x2046,
    vbios="97.00.82.00.37",
    power_limit_mw=1_200_000,
    nvlink=nvlinks.RACK,
    mig_table="GB200-186GB",
    fabric=True,
    coherent=True,
    bar1_mib=262_144,
)
L4 = Board(
    name="NVIDIA L4",
    architecture=ADA,
    compute_capability=(8, 9),
    sm_count=58,
    memory_mib=23_034,
    reserved_mib=461,
    pci_device=0x27B8,
    pci_subsystem=0x16CA,
    part_number="900-2G193-0000-000",
    vbios="95.04.29.00.06",
    power_limit_mw=72_000,
    bar1_mib=32_768,
)
RTX_PRO_6000 = Board(
    name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    architecture=BLACKWELL,
    compute_capability=(12, 0),
    sm_count=188,
    memory_mib=97_887,
    reserved_mib=638,
    pci_device=0x2BB5,
    pci_subsystem=0x204E,
    brand=BRAND_NVIDIA_RTX,
    vbios="98.02.55.00.01",
    power_limit_mw=600_000,
    mig_table="RTX-PRO-6000-96GB",
    bar1_mib=131_072,
)
PLAIN = Board(
    name="NVIDIA RTX A5000",
    architecture=AMPERE,
    compute_capability=(8, 6),
    sm_count=64,
    memory_mib=24_564,
    reserved_mib=357,
    pci_device=0x2231,
    pci_subsystem=0x147E,
    brand=BRAND_NVIDIA_RTX,
    vbios="94.02.6D.00.0D",
    power_limit_mw=230_000,
    ecc=False,
    bar1_mib=256,
)
UNIFIED = Board(
    name="NVIDIA GB10",
    architecture=BLACKWELL,
    compute_capability=(12, 1),
    sm_count=48,
    memory_mib=122_502,
    reserved_mib=0,
    pci_device=0x2E12,
    pci_subsystem=0x21EC,
    vbios="9A.0B.23.00.00",
    power_limit_mw=140_000,
    ecc=False,
    coherent=True,
    unsupported=("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"),
)
TEGRA = Board(
    name="Orin (nvgpu)",
    architecture=AMPERE,
    compute_capability=(8, 7),
    sm_count=16,
    memory_mib=30_697,
    reserved_mib=0,
    pci_device=0,
    pci_subsystem=0,
    vbios="",
    time_slices=False,
    ecc=False,
    events=0,
    nodeless=True,
    unsupported=(
        "nvmlDeviceGetPciInfo*",
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetPower*",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetMemoryInfo*",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetFieldValues",
    ),
)
VGPU = Board(
    name="NVIDIA A40-48Q",
    architecture=ARCH_UNKNOWN,
    compute_capability=(8, 6),
    sm_count=84,
    memory_mib=49_152,
    reserved_mib=3_456,
    pci_device=0x2235,
    pci_subsystem=0x14D8,
    brand=99,
    vbios="00.00.00.00.00",
    ecc=False,
    events=0,
    virtualization=2,
    unsupported=("nvmlDeviceGetSerial", "nvmlDeviceGetPower*", "nvmlDeviceGetEnforcedPowerLimit"),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of node: its boards in order, repeated when more GPUs are asked for than it has.

    ``joints``: which GPUs have direct links to each other.
    """

    name: str
    boards: tuple[Board, ...]
    description: str
    driver_version: str = "615.71.02"
    rack: bool = False
    joints: tuple[Joint, ...] = ()


def _all() -> dict[str, Profile]:
    profiles = [
        Profile("A100", (A100,) * 8, "8 A100 SXM 80 GB; a MIG mode change waits for a reset"),
        Profile("H100", (H100,) * 8, "8 H100 SXM 80 GB"),
        Profile("H200", (H200,) * 8, "8 H200 SXM"),
        Profile("B200", (B200,) * 8, "8 B200 SXM"),
        Profile("GB200", (GB200,) * 4, "a tray of an NVL72: 4 GB200 in a multi-node NVLink fabric", rack=True),
        Profile("L4", (L4,) * 4, "4 L4: no MIG, no NVLink"),
        Profile("RTX-PRO-6000", (RTX_PRO_6000,) * 4, "4 RTX PRO 6000 Blackwell Server Edition"),
        Profile("A100-PCIe", (A100_PCIE,) * 4, "4 A100 PCIe 80 GB, bridged in pairs", joints=nvlinks.PAIRS),
        Profile(
            "V100",
            (V100,) * 8,
            "8 V100 SXM2 in a cube mesh; the first 4 are half of it",
            driver_version="580.95.05",
            joints=nvlinks.CUBE_MESH,
        ),
        Profile("P-plain2", (PLAIN,) * 2, "2 GPUs of 24 GiB, no MIG, no fabric"),
        Profile("P-dc8", (H100,) * 8, "8 GPUs of 80 GiB, MIG can be switched live, NVLink"),
        Profile("P-a100", (A100,) * 8, "as P-dc8, but a MIG mode change stays pending until a reset"),
        Profile("P-mixed", (PLAIN, H100), "a GPU without MIG and one with it"),
        Profile("P-mig3", (H100, A100, L4), "MIG that is switched live, MIG that waits for a reset, and no MIG"),
        Profile("P-uma1", (UNIFIED,), "unified memory: memory queries are not supported"),
        Profile("P-nvl4", (GB200,) * 4, "4 GPUs, fabric completed, cluster UUID and clique set", rack=True),
        Profile("P-tegra1", (TEGRA,), "an integrated GPU: no PCI, no device node, few queries"),
        Profile("P-vgpu1", (VGPU,), "a vGPU guest: unknown architecture and brand, no MIG, fabric or events"),
    ]
    return {profile.name.lower(): profile for profile in profiles}


PROFILES = _all()
"""Profiles by lower-case name."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One row of a MIG table; ``starts`` and ``units`` in memory units, memory in MiB."""

    name: str
    id: int
    nvml_profile: int
    slices: int
    units: int
    sm: int
    memory_mib: int
    max_instances: int
    starts: tuple[int, ...]
    copy: int
    dec: int
    enc: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True)
class MigTable:
    """The MIG geometry of a board."""

    slices: int
    units: int
    profiles: tuple[MigProfile, ...]


@cache
def mig_tables() -> dict[str, MigTable]:
    """MIG tables by the name a :class:`Board` uses."""
    document = json.loads((Path(__file__).parent / "profiles" / "mig.json").read_text())
    tables = {}
    for name, board in document["boards"].items():
        rows = tuple(
            MigProfile(
                name=row["name"],
                id=row["id"],
                nvml_profile=row["nvml"],
                slices=row["slices"],
                units=row["units"],
                sm=row["sm"],
                memory_mib=round(row["gib"] * 8) * 128,  # listings print two decimals of an eighth of a GiB
                max_instances=row["max"],
                starts=tuple(row["starts"]),
                copy=row["engines"][0],
                dec=row["engines"][1],
                enc=row["engines"][2],
                jpeg=row["engines"][3],
                ofa=row["engines"][4],
            )
            for row in board["profiles"]
        )
        tables[name] = MigTable(board["slices"], board["units"], rows)
    return tables


def profile_named(name: str) -> Profile:
    """The profile of that name, in any case.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    try:
        return PROFILES[name.lower()]
    except KeyError:
        known = ", ".join(profile.name for profile in PROFILES.values())
        raise ValueError(f"profile {name!r} does not exist: use one of {known}") from None
