"""Filling the state of a new node from a profile, and changing single values of it."""

import ctypes
import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

from dra_gpu_sim import placement
from dra_gpu_sim.boards import Board, Profile, mig_tables
from dra_gpu_sim.hotplug import fill_energy
from dra_gpu_sim.nvlinks import fill_links, join, set_links
from dra_gpu_sim.state import MIG_NONE, SimFault, SimGpu, SimState

MIB = 1 << 20
NVIDIA_VENDOR = 0x10DE
NOT_SUPPORTED = 3
_FABRIC_COMPLETED = 3
_ADDRESSING_HMM, _ADDRESSING_ATS = 1, 2
_ALL = "all"
_HEALTHY = 1
# Two bits each (NVML_GPU_FABRIC_HEALTH_MASK_*): 2 "false" for degraded bandwidth, route recovery, route unhealthy and
# access timeout; 1 "none" for incorrect configuration at bit 8.
_HEALTHY_MASK = 0b01_10_10_10_10

_CUDA_BY_DRIVER = ((615, 13040), (590, 13010), (580, 13000), (570, 12080), (560, 12060), (550, 12040), (535, 12020))
_MEMORY_LIMITS_SINCE = 615
MEMORY_LIMIT_SYMBOLS = ("nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1")


def driver_branch(version: str) -> int:
    """The major number of a driver version; 0 if it has none."""
    head = version.split(".", maxsplit=1)[0]
    return int(head) if head.isdigit() else 0


def cuda_version(driver_version: str) -> int:
    """The CUDA version a driver of that version carries, as major * 1000 + minor * 10."""
    branch = driver_branch(driver_version)
    return next((cuda for since, cuda in _CUDA_BY_DRIVER if branch >= since), 11040)


def symbols_missing_in(driver_version: str) -> tuple[str, ...]:
    """What the library of an older driver does not export: memory limits came with driver 615."""
    return MEMORY_LIMIT_SYMBOLS if 0 < driver_branch(driver_version) < _MEMORY_LIMITS_SINCE else ()


def gpu_uuid(seed: str, index: int) -> str:
    """The UUID of the GPU at an index: the same for the same seed."""
    return f"GPU-{uuid.UUID(bytes=hashlib.sha256(f'{seed}/gpu/{index}'.encode()).digest()[:16], version=4)}"


def fill_node(
    state: SimState, profile: Profile, *, gpus: int | None, driver_version: str | None, seed: str, log_calls: bool
) -> None:
    """Write a profile's GPUs and settings into a new state."""
    version = profile.driver_version if driver_version is None else driver_version
    count = len(profile.boards) if gpus is None else gpus
    if not 0 <= count <= len(state.gpus):
        raise ValueError(f"a simulated node holds 0 to {len(state.gpus)} GPUs, not {count}")
    state.profile = profile.name.encode()
    state.driver_version = version.encode()
    state.nvml_version = f"{cuda_version(version) // 1000}.{version}".encode()
    state.cuda_version = cuda_version(version)
    state.log_calls = int(log_calls)
    state.cgroup_root = b"/sys/fs/cgroup"
    state.mps_start_ms, state.context_mib, state.mps_server_mib = 300, 256, 60
    state.cc_gpu_caps = int(any(board.fabric for board in profile.boards))
    state.gpu_count = count
    for index in range(count):
        board = profile.boards[index % len(profile.boards)]
        _fill_gpu(state.gpus[index], board, index, seed, rack=profile.rack)
        add_builtin_faults(state, index, board.unsupported)
    join(state, profile.joints)


def _fill_gpu(gpu: SimGpu, board: Board, index: int, seed: str, *, rack: bool) -> None:
    digest = hashlib.sha256(f"{seed}/serial/{index}".encode()).digest()
    gpu.present = 1
    gpu.minor, gpu.module_id = index, index + 1
    gpu.name, gpu.brand, gpu.architecture = board.name.encode(), board.brand, board.architecture
    gpu.cc_major, gpu.cc_minor = board.compute_capability
    gpu.sm_count = board.sm_count
    gpu.uuid = gpu_uuid(seed, index).encode()
    gpu.serial = f"165{int.from_bytes(digest[:4], 'big') % 10**10:010d}".encode()
    gpu.board_part, gpu.vbios = board.part_number.encode(), board.vbios.encode()
    gpu.memory_total, gpu.memory_reserved = board.memory_mib * MIB, board.reserved_mib * MIB
    gpu.bar1_total = board.bar1_mib * MIB
    gpu.time_slice_supported, gpu.nodeless = int(board.time_slices), int(board.nodeless)
    gpu.ecc_current = gpu.ecc_pending = int(board.ecc)
    gpu.virtualization_mode, gpu.event_types = board.virtualization, board.events
    gpu.addressing_mode = _ADDRESSING_ATS if board.coherent else _ADDRESSING_HMM
    gpu.persistence = 1
    fill_energy(gpu)
    gpu.power_limit_mw, gpu.power_mw, gpu.temperature = board.power_limit_mw, board.power_limit_mw // 9, 31
    _fill_place(gpu, board, index, rack=rack)
    if board.nvlink is not None:
        fill_links(gpu, board.nvlink)
    _fill_fabric(gpu, board, rack=rack)
    _fill_mig(gpu, board)


def _fill_place(gpu: SimGpu, board: Board, index: int, *, rack: bool) -> None:
    where = placement.place(index, rack=rack)
    gpu.pci_device_id = board.pci_device << 16 | NVIDIA_VENDOR if board.pci_device else 0
    gpu.pci_subsystem_id = board.pci_subsystem << 16 | NVIDIA_VENDOR if board.pci_device else 0
    gpu.pci_domain, gpu.pci_bus, gpu.pci_device, gpu.pci_root = where.domain, where.bus, where.device, where.root
    gpu.bus_id = placement.nvml_bus_id(where.domain, where.bus, where.device).encode() if board.pci_device else b""
    gpu.numa_node, gpu.gpu_numa_node = where.numa_node, where.gpu_numa_node if board.coherent else -1
    gpu.cpu_first, gpu.cpu_count = where.cpu_first, where.cpu_count


def _fill_fabric(gpu: SimGpu, board: Board, *, rack: bool) -> None:
    if not board.fabric:
        return
    gpu.fabric_supported, gpu.fabric_state = 1, _FABRIC_COMPLETED
    gpu.fabric_health_mask, gpu.fabric_health_summary = _HEALTHY_MASK, _HEALTHY
    if rack:  # all nodes of a rack are in one cluster: the UUID does not follow the node's seed
        gpu.fabric_clique = 1
        gpu.fabric_cluster[:] = list(uuid.uuid5(uuid.NAMESPACE_DNS, "rack.simulated.nvlink").bytes)


def _fill_mig(gpu: SimGpu, board: Board) -> None:
    if board.mig_table is None:
        gpu.mig_support = MIG_NONE
        return
    table = mig_tables()[board.mig_table]
    gpu.mig_support, gpu.mig_survives_reboot = board.mig_support, int(board.mig_survives_reboot)
    gpu.mig_slices, gpu.mig_memory_units, gpu.profile_count = table.slices, table.units, len(table.profiles)
    for slot, row in zip(gpu.profiles, table.profiles, strict=False):
        slot.used, slot.id, slot.nvml_profile = 1, row.id, row.nvml_profile
        slot.slices, slot.memory_units, slot.sm, slot.memory_mib = row.slices, row.units, row.sm, row.memory_mib
        slot.max_instances = row.max_instances
        slot.copy, slot.dec, slot.enc, slot.jpeg, slot.ofa = row.copy, row.dec, row.enc, row.jpeg, row.ofa
        slot.capabilities = 2 if "+gfx" in row.name else 0
        slot.placement_count = len(row.starts)
        slot.starts[: len(row.starts)] = list(row.starts)
        slot.name = f"MIG {row.name}".encode()


def free_fault(state: SimState) -> SimFault:
    """An unused slot of the fault table, with a serial number of its own.

    Raises:
        RuntimeError: the table is full.
    """
    slots: ctypes.Array[SimFault] = state.faults
    for slot in slots:
        if not slot.used:
            ctypes.memset(ctypes.addressof(slot), 0, ctypes.sizeof(slot))
            state.serial += 1
            slot.serial = state.serial
            return slot
    raise RuntimeError(f"all {len(state.faults)} faults are in use: clear some")


def add_builtin_faults(state: SimState, gpu: int, calls: Iterable[str]) -> None:
    """Make calls NOT_SUPPORTED on a GPU for good: a property of the board that clearing faults leaves."""
    for call in calls:
        slot = free_fault(state)
        slot.call, slot.gpu, slot.code, slot.remaining, slot.builtin = call.encode(), gpu, NOT_SUPPORTED, -1, 1
        slot.used = 1
        state.fault_count += 1


def apply_setting(state: SimState, setting: str) -> None:
    """Apply one ``gpu.N.FIELD=VALUE``, ``gpu.*.FIELD=VALUE`` or ``node.FIELD=VALUE``.

    Fields are those of :class:`SimGpu` and :class:`SimState`; numbers may be hexadecimal. Besides: ``memory`` (MiB),
    ``pci`` (an address: spelled as given in NVML, followed in sysfs), ``unsupported`` (calls, separated by commas),
    ``links_down`` (numbers of NVLinks, separated by commas, or ``all``).

    Raises:
        ValueError: the setting has another form, or names what does not exist.
    """
    target, separator, value = setting.partition("=")
    parts = target.split(".")
    if separator and parts[0] == "node" and len(parts) == 2:  # noqa: PLR2004 - node.FIELD
        _set_field(state, parts[1], value)
        return
    if not separator or parts[0] != "gpu" or len(parts) != 3:  # noqa: PLR2004 - gpu.N.FIELD
        raise ValueError(f"setting {setting!r}: write gpu.N.FIELD=VALUE, gpu.*.FIELD=VALUE or node.FIELD=VALUE")
    if parts[1] != "*" and not (parts[1].isdigit() and int(parts[1]) < state.gpu_count):
        raise ValueError(f"setting {setting!r}: the node has GPUs 0 to {state.gpu_count - 1}")
    for index in range(state.gpu_count) if parts[1] == "*" else [int(parts[1])]:
        _set_gpu(state, index, parts[2], value)


def _set_gpu(state: SimState, index: int, name: str, value: str) -> None:
    gpu = state.gpus[index]
    if name == "memory":
        gpu.memory_total = int(value, 0) * MIB
    elif name == "unsupported":
        add_builtin_faults(state, index, [call for call in value.split(",") if call])
    elif name == "links_down":
        set_links(state, index, None if value == _ALL else [int(link) for link in value.split(",") if link], up=False)
    elif name == "pci":
        gpu.bus_id = value.encode()
        if value:
            gpu.pci_domain, gpu.pci_bus, gpu.pci_device = placement.parse_bus_id(value)
    else:
        _set_field(gpu, name, value)


def _set_field(target: SimGpu | SimState, name: str, value: str) -> None:
    kinds: dict[str, type[Any]] = {item[0]: item[1] for item in target._fields_}
    if name not in kinds:
        raise ValueError(f"{type(target).__name__} has no field {name!r}; it has {', '.join(sorted(kinds))}")
    old = getattr(target, name)
    if isinstance(old, bytes):
        setattr(target, name, value.encode())
    elif isinstance(old, int):
        setattr(target, name, int(value, 0))
    elif issubclass(kinds[name], ctypes.Array) and kinds[name]._type_ is ctypes.c_uint8:
        old[:] = list(uuid.UUID(value).bytes)
    else:
        raise ValueError(f"{name!r} is a table and cannot be set as a whole")
