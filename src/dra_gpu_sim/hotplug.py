"""GPUs that come and go on a running node: bound and unbound by the driver, fallen off the bus, at another address.

What the kernel shows follows: the device's directory and the link that its driver has of it. On a real system each of
them has an inode number that is not used again; here the old ones are kept aside, so that theirs are not either.
"""

import ctypes
import time
import uuid
from pathlib import Path

from dra_gpu_sim import tree
from dra_gpu_sim.placement import nvml_bus_id, parse_bus_id
from dra_gpu_sim.state import SimGpu, SimState, in_use
from dra_gpu_sim.statefile import wake

ENERGY_MJ = 10**10
"""What a GPU of a new node has used: some hours' worth."""


def bind(state: SimState, root: Path, index: int) -> None:
    """Let the driver bind a GPU, anew if it has it: it works, and nothing of what it did before is left.

    Whoever has initialised NVML before does not see it till he does again.
    """
    gpu = state.gpus[index]
    _forget_processes(state, index)
    forget_volatile(gpu, root)
    gpu.present, gpu.lost = 1, 0
    gpu.bindings += 1
    gpu.energy_base, gpu.energy_since = 0, _now_ms()
    if gpu.pci_device_id:
        _discard(root, driver_link(root, gpu))
        tree.link_driver(root / "sys", gpu)
    wake(state, "event_futex")


def unbind(state: SimState, root: Path, index: int) -> None:
    """Let the driver give a GPU up. Its device node stays, as it does on a real node."""
    gpu = state.gpus[index]
    _forget_processes(state, index)
    gpu.present = 0
    if gpu.pci_device_id:
        _discard(root, driver_link(root, gpu))
        (device(root, gpu) / "driver").unlink(missing_ok=True)
    wake(state, "event_futex")


def move(state: SimState, root: Path, index: int, address: str) -> None:
    """Put a board into another slot, and let the driver bind it there.

    Raises:
        ValueError: that is no PCI address, or another GPU has it.
    """
    gpu = state.gpus[index]
    domain, bus, slot = parse_bus_id(address)
    places = [(one.pci_domain, one.pci_bus, one.pci_device) for one in state.gpus[: state.gpu_count]]
    if (domain, bus, slot) in places:
        raise ValueError(f"a GPU has {address} already: give a free address")
    unbind(state, root, index)
    name = tree.address(gpu)
    (root / "sys/bus/pci/devices" / name).unlink()
    for group in (root / "sys/kernel/iommu_groups").glob(f"*/devices/{name}"):
        group.unlink()
        group.parent.rmdir()
        group.parent.parent.rmdir()
    gpu.pci_domain, gpu.pci_bus, gpu.pci_device = domain, bus, slot
    gpu.bus_id = nvml_bus_id(domain, bus, slot).encode()
    tree.make_pci_device(root / "sys", gpu, index)
    bind(state, root, index)


def reload_driver(state: SimState, root: Path) -> None:
    """Unload the kernel module and load it again; every GPU is bound anew. Nobody may have NVML open."""
    module = root / "sys/module/nvidia"
    _discard(root, module)
    tree.make_module(root / "sys", state)
    for index in range(state.gpu_count):
        bind(state, root, index)


def forget_volatile(gpu: SimGpu, root: Path) -> None:
    """Let a GPU forget what it does not keep: instances, modes, what it recommends.

    MIG mode survives on boards that keep it in their InfoROM (Ampere). Source: MIG User Guide r580.
    """
    for instance in in_use(gpu.gi):
        instance.used = 0
    gpu.mig_current = gpu.mig_pending if gpu.mig_survives_reboot else 0
    gpu.mig_pending = gpu.mig_current
    gpu.compute_mode = gpu.time_slice = gpu.recovery_action = gpu.remap_pending = gpu.lost = 0
    gpu.ecc_current = gpu.ecc_pending
    tree.remove_capabilities(root, gpu)


def fill_energy(gpu: SimGpu) -> None:
    """Let a GPU of a new node have been in use for hours."""
    gpu.energy_base, gpu.energy_since = ENERGY_MJ, _now_ms()


def device(root: Path, gpu: SimGpu) -> Path:
    """The directory of a GPU in sysfs."""
    return root / "sys/bus/pci/devices" / tree.address(gpu)


def driver_link(root: Path, gpu: SimGpu) -> Path:
    """The link that the driver has of a GPU that it has bound."""
    return root / "sys/bus/pci/drivers/nvidia" / tree.address(gpu)


def _forget_processes(state: SimState, index: int) -> None:
    for slot in in_use(state.processes):
        if slot.gpu == index:
            ctypes.memset(ctypes.addressof(slot), 0, ctypes.sizeof(slot))


def _discard(root: Path, path: Path) -> None:
    """Take something out of sysfs whose inode number must not come again."""
    if not path.is_symlink() and not path.exists():
        return
    gone = root / "gone"
    gone.mkdir(exist_ok=True)
    path.rename(gone / uuid.uuid4().hex)


def _now_ms() -> int:
    return time.monotonic_ns() // 10**6
