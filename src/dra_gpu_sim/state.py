"""The state of a simulated node as ctypes structures: the mirror of ``nvml/state.h``, field by field.

The header decides; ``tests/unit/sim/test_layout.py`` has the compiler compare sizes and offsets. Units are in the field
names where they are not bytes. Everything here is layout: opening, locking and waking is in ``statefile``.
"""

from ctypes import Array, Structure, c_char, c_int32, c_uint8, c_uint32, c_uint64
from typing import Any, TypeVar

MAGIC = 0x314D495355504744
LAYOUT_VERSION = 4

MAX_GPUS = 64
MAX_LINKS = 36
MAX_PROFILES = 20
MAX_PLACEMENTS = 14
MAX_GI = 14
MAX_CI = 8
MAX_FAULTS = 256
MAX_EVENTS = 256
MAX_PROCESSES = 512
MAX_SESSIONS = 256
MAX_LIMITS = 256

MIG_NONE, MIG_LIVE, MIG_AFTER_RESET = 0, 1, 2
"""How a change of the MIG mode takes effect."""

FABRIC_MANAGER_BARE_METAL, FABRIC_MANAGER_SHARED = 1, 2
"""How a Fabric Manager runs, 0 if none does: for this machine alone, or so that guests can share the switches."""

NODES_DEVICES, NODES_FILES = 1, 2
"""Whether the simulated /dev holds character devices or regular files."""

PROCESS_COMPUTE, PROCESS_GRAPHICS, PROCESS_MPS_CLIENT, PROCESS_MPS_SERVER = 1, 2, 3, 4

NO_INSTANCE = 0xFFFFFFFF
"""GPU or compute instance of a process or event that is not in MIG (NVML's own value)."""

Field = tuple[str, type[Any]]


def _words(names: str) -> list[Field]:
    return [(name, c_uint32) for name in names.split()]


def _longs(names: str) -> list[Field]:
    return [(name, c_uint64) for name in names.split()]


class SimLink(Structure):
    """One NVLink of a GPU and what is at its other end."""

    _fields_ = _words("state version speed_mbps remote_type remote_domain remote_bus remote_device remote_link")


class SimProfile(Structure):
    """One kind of GPU instance that a GPU can make."""

    _fields_ = [
        *_words("used nvml_profile id slices memory_units sm memory_mib max_instances copy dec enc jpeg ofa"),
        *_words("capabilities placement_count"),
        ("starts", c_uint32 * MAX_PLACEMENTS),
        ("name", c_char * 32),
    ]


class SimComputeInstance(Structure):
    """A compute instance, and with it a MIG device."""

    _fields_ = [
        *_words("used id profile start slices mig_index"),
        ("serial", c_uint64),
        ("uuid", c_char * 64),
    ]


class SimGpuInstance(Structure):
    """A GPU instance with its compute instances."""

    _fields_ = [
        *_words("used id profile start size reserved"),
        ("serial", c_uint64),
        ("ci", SimComputeInstance * MAX_CI),
    ]


class SimGpu(Structure):
    """One GPU: what it is, how it is set, its links and its MIG layout."""

    _fields_ = [
        *_words("present lost minor module_id brand architecture cc_major cc_minor"),
        ("numa_node", c_int32),
        ("gpu_numa_node", c_int32),
        *_words("cpu_first cpu_count sm_count pci_domain pci_bus pci_device pci_device_id pci_subsystem_id pci_root"),
        *_words("addressing_mode virtualization_mode compute_mode time_slice time_slice_supported persistence"),
        *_words("ecc_current ecc_pending power_mw power_limit_mw temperature utilization_gpu utilization_memory"),
        *_words("recovery_action mig_support mig_survives_reboot mig_current mig_pending mig_slices mig_memory_units"),
        *_words("profile_count link_count fabric_supported fabric_state fabric_status fabric_clique"),
        *_words("fabric_health_mask fabric_health_summary"),
        ("fabric_cluster", c_uint8 * 16),
        *_words("nodeless bindings remap_pending remap_failure"),
        *_longs("event_types memory_total memory_reserved bar1_total energy_base energy_since"),
        ("uuid", c_char * 64),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("board_part", c_char * 32),
        ("bus_id", c_char * 32),
        ("vbios", c_char * 32),
        ("links", SimLink * MAX_LINKS),
        ("profiles", SimProfile * MAX_PROFILES),
        ("gi", SimGpuInstance * MAX_GI),
    ]


class SimFault(Structure):
    """One injected fault."""

    _fields_ = [
        ("used", c_uint32),
        ("gpu", c_int32),
        ("code", c_int32),
        *_words("delay_ms block"),
        ("remaining", c_int32),
        *_words("builtin reserved"),
        *_longs("serial hits"),
        ("call", c_char * 64),
    ]


class SimEvent(Structure):
    """One event in the ring."""

    _fields_ = [*_longs("sequence type data"), *_words("gpu gi ci reserved")]


class SimProcess(Structure):
    """A process with memory on a GPU."""

    _fields_ = [
        *_words("used pid gpu kind gi ci sm_percent sm_count uid held"),
        *_longs("serial pid_namespace start_time memory memory_limit"),
        ("name", c_char * 64),
        ("mps_namespace", c_char * 160),
        ("cgroup", c_char * 512),
    ]


class SimSession(Structure):
    """A process that has NVML initialised, and the GPUs whose node it holds open (bit i: GPU i)."""

    _fields_ = [*_words("used pid"), *_longs("pid_namespace start_time gpus")]


class SimLimit(Structure):
    """A memory limit of a cgroup on a GPU."""

    _fields_ = [*_words("used gpu"), *_longs("soft hard"), ("cgroup", c_char * 512)]


class SimState(Structure):
    """The whole node."""

    _fields_ = [
        ("magic", c_uint64),
        *_words("layout_version size gpu_count log_calls device_nodes caps_major cuda_version"),
        *_words("fault_count fault_futex event_futex cc_feature cc_environment cc_devtools cc_multi_gpu"),
        *_words("cc_cpu_caps cc_gpu_caps cc_ready mps_start_ms context_mib mps_server_mib fabric_manager reserved"),
        *_longs("event_sequence serial"),
        ("driver_version", c_char * 80),
        ("nvml_version", c_char * 80),
        ("profile", c_char * 64),
        ("cgroup_root", c_char * 256),
        ("gpus", SimGpu * MAX_GPUS),
        ("faults", SimFault * MAX_FAULTS),
        ("events", SimEvent * MAX_EVENTS),
        ("processes", SimProcess * MAX_PROCESSES),
        ("sessions", SimSession * MAX_SESSIONS),
        ("limits", SimLimit * MAX_LIMITS),
    ]


MIRRORED: dict[str, type[Structure]] = {
    "sim_link": SimLink,
    "sim_profile": SimProfile,
    "sim_ci": SimComputeInstance,
    "sim_gi": SimGpuInstance,
    "sim_gpu": SimGpu,
    "sim_fault": SimFault,
    "sim_event": SimEvent,
    "sim_process": SimProcess,
    "sim_session": SimSession,
    "sim_limit": SimLimit,
    "sim_state": SimState,
}
"""C name of each struct → its mirror."""


Slot = TypeVar("Slot", bound=Structure)


def in_use(slots: "Array[Slot]") -> list[Slot]:
    """The occupied slots of one of the tables, in order."""
    return [slot for slot in slots if slot.used]
