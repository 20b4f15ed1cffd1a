"""The files of a simulated node: /dev, /proc, sysfs and the driver root, as the NVIDIA driver lays them out.

Sources: the driver's README ("/proc interface", "device node files"), the kernel's sysfs-pci layout, the file lists of
the driver's packages for Debian and the runfile.
"""

import os
import shutil
import stat
import sys
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from dra_gpu_sim.build import STUB_LIBRARIES, Build
from dra_gpu_sim.placement import bdf
from dra_gpu_sim.state import NODES_DEVICES, NODES_FILES, SimGpu, SimState

NVIDIA_MAJOR, DRM_MAJOR = 195, 226
UVM_MAJOR, CAPS_MAJOR, IMEX_MAJOR = 501, 502, 503
"""The last three are given out dynamically on a real node; here they are fixed and out of the kernel's usual range."""

_CONTROL_MINOR, _MODESET_MINOR = 255, 254
_GI_PER_GPU, _CI_PER_GI, _FIRST_GI_MINOR = 15, 8, 3


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A node below the simulated /dev."""

    path: str
    major: int
    minor: int
    mode: int = 0o666


def device_nodes(state: SimState) -> list[DeviceNode]:
    """The nodes of all GPUs and of the driver itself."""
    nodes = [
        DeviceNode("nvidiactl", NVIDIA_MAJOR, _CONTROL_MINOR),
        DeviceNode("nvidia-modeset", NVIDIA_MAJOR, _MODESET_MINOR),
        DeviceNode("nvidia-uvm", UVM_MAJOR, 0),
        DeviceNode("nvidia-uvm-tools", UVM_MAJOR, 1),
        DeviceNode("nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1, 0o400),
        DeviceNode("nvidia-caps/nvidia-cap2", CAPS_MAJOR, 2, 0o444),
    ]
    for gpu in _gpus(state):
        if gpu.nodeless:
            continue
        nodes.append(DeviceNode(f"nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor))
        nodes.append(DeviceNode(f"dri/card{gpu.minor}", DRM_MAJOR, gpu.minor, 0o660))
        nodes.append(DeviceNode(f"dri/renderD{128 + gpu.minor}", DRM_MAJOR, 128 + gpu.minor))
    return nodes


def _gpus(state: SimState) -> list[SimGpu]:
    return [state.gpus[index] for index in range(state.gpu_count)]


def address(gpu: SimGpu) -> str:
    """The GPU's address as the kernel spells it."""
    return bdf(gpu.pci_domain, gpu.pci_bus, gpu.pci_device)


def make_dev(root: Path, state: SimState, *, devices: bool) -> None:
    """Make /dev: character devices, or regular files where that is not permitted (said on stderr)."""
    (root / "dri" / "by-path").mkdir(parents=True)
    (root / "nvidia-caps").mkdir()
    real = devices
    for node in device_nodes(state):
        path = root / node.path
        if real:
            try:
                os.mknod(path, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
            except PermissionError:
                print(f"{path}: making devices is not permitted, regular files stand in for them", file=sys.stderr)
                real = False
        if not real:
            path.touch()
        path.chmod(node.mode)
    for gpu in _gpus(state):
        if gpu.nodeless or not gpu.pci_device_id:
            continue
        (root / "dri" / "by-path" / f"pci-{address(gpu)}-card").symlink_to(f"../card{gpu.minor}")
        (root / "dri" / "by-path" / f"pci-{address(gpu)}-render").symlink_to(f"../renderD{128 + gpu.minor}")
    state.device_nodes = NODES_DEVICES if real else NODES_FILES
    state.caps_major = CAPS_MAJOR


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mode != 0o644:  # noqa: PLR2004 - the default of new files
        path.chmod(mode)


def make_proc(root: Path, state: SimState) -> None:
    """Make /proc: device majors, driver version and parameters, one directory per GPU, MIG capabilities."""
    version = state.driver_version.decode()
    _write(
        root / "devices",
        "Character devices:\n  1 mem\n  5 /dev/tty\n"
        f"{NVIDIA_MAJOR} nvidia\n{NVIDIA_MAJOR} nvidia-modeset\n{NVIDIA_MAJOR} nvidiactl\n{DRM_MAJOR} drm\n"
        f"{UVM_MAJOR} nvidia-uvm\n{CAPS_MAJOR} nvidia-caps\n{IMEX_MAJOR} nvidia-caps-imex-channels\n"
        "\nBlock devices:\n  8 sd\n259 blkext\n",
    )
    driver = root / "driver" / "nvidia"
    _write(driver / "version", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n")
    _write(
        driver / "params",
        "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
        'CreateImexChannel0: 0\nImexChannelCount: 2048\nRegistryDwords: ""\n',
    )
    capabilities = driver / "capabilities"
    _write(capabilities / "mig" / "config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    _write(capabilities / "mig" / "monitor", "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    minors = ["config 1", "monitor 2"]
    for gpu in _gpus(state):
        (capabilities / f"gpu{gpu.minor}" / "mig").mkdir(parents=True)
        minors += _mig_minors(gpu.minor)
        if gpu.pci_device_id:
            _write(driver / "gpus" / address(gpu) / "information", _information(gpu, version))
    _write(root / "driver" / "nvidia-caps" / "mig-minors", "\n".join(minors) + "\n")


def _information(gpu: SimGpu, version: str) -> str:
    return (
        f"Model: \t\t {gpu.name.decode()}\nIRQ:   \t\t {100 + gpu.minor}\nGPU UUID: \t {gpu.uuid.decode()}\n"
        f"Video BIOS: \t {gpu.vbios.decode()}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
        f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {address(gpu)}\nDevice Minor: \t {gpu.minor}\n"
        f"GPU Firmware: \t {version}\nGPU Excluded:\t No\n"
    )


def _mig_minors(gpu_minor: int) -> list[str]:
    lines = []
    for gi in range(_GI_PER_GPU):
        first = _FIRST_GI_MINOR + (gpu_minor * _GI_PER_GPU + gi) * (_CI_PER_GI + 1)
        lines.append(f"gpu{gpu_minor}/gi{gi}/access {first}")
        lines += [f"gpu{gpu_minor}/gi{gi}/ci{ci}/access {first + 1 + ci}" for ci in range(_CI_PER_GI)]
    return lines


def make_sys(root: Path, state: SimState) -> None:
    """Make sysfs: PCI devices under their root complexes, their driver, NUMA node and IOMMU group."""
    bus = root / "bus" / "pci"
    for driver in ("nvidia", "vfio-pci"):
        for name in ("bind", "unbind", "new_id"):
            _write(bus / "drivers" / driver / name, "")
    (bus / "devices").mkdir(parents=True)
    _write(bus / "drivers_probe", "")
    make_module(root, state)
    for number, gpu in enumerate(_gpus(state)):
        if gpu.pci_device_id:
            make_pci_device(root, gpu, number)
            link_driver(root, gpu)
    _make_numa_nodes(root, _gpus(state))


def make_module(root: Path, state: SimState) -> None:
    """Make what sysfs shows of the loaded kernel module."""
    _write(root / "module" / "nvidia" / "version", f"{state.driver_version.decode()}\n")


def link_driver(root: Path, gpu: SimGpu) -> None:
    """Let driver and device point to each other in sysfs: the driver has bound it."""
    driver, name = root / "bus" / "pci" / "drivers" / "nvidia", address(gpu)
    device = (root / "bus" / "pci" / "devices" / name).resolve()
    (driver / name).symlink_to(os.path.relpath(device, driver))
    (device / "driver").unlink(missing_ok=True)
    (device / "driver").symlink_to(os.path.relpath(driver, device))


def remove_capabilities(root: Path, gpu: SimGpu) -> None:
    """Remove what /proc and /dev show of a GPU's MIG instances."""
    for capability in (root / "proc").glob(f"driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi*"):
        for access in capability.rglob("access"):
            minor = access.read_text().partition("DeviceFileMinor:")[2].split()[0]
            (root / "dev" / "nvidia-caps" / f"nvidia-cap{minor}").unlink(missing_ok=True)
        shutil.rmtree(capability)


_LOCAL, _OTHER_SOCKET, _OTHER_SOCKET_COHERENT, _OWN_GPU, _OTHER_GPU, _UNREACHED = 10, 21, 40, 80, 120, 255
"""Distances between NUMA nodes as the firmware of an x86 server and of a Grace one states them (ACPI SLIT)."""


def _make_numa_nodes(root: Path, gpus: list[SimGpu]) -> None:
    """Make a NUMA node for each socket, and on a coherent platform one without processors for each GPU's memory."""
    cpus = {gpu.numa_node: (gpu.cpu_first, gpu.cpu_count) for gpu in gpus if gpu.numa_node >= 0}
    sockets = {node: node for node in cpus} | {
        gpu.gpu_numa_node: gpu.numa_node for gpu in gpus if gpu.gpu_numa_node >= 0
    }
    nodes = root / "devices" / "system" / "node"
    _write(nodes / "online", ",".join(map(str, sorted(sockets))) + "\n")
    for node in sockets:
        row = [_distance(node, other, sockets, cpus) for other in sorted(sockets)]
        _write(nodes / f"node{node}" / "distance", " ".join(map(str, row)) + "\n")
        first, count = cpus.get(node, (0, 0))
        _write(nodes / f"node{node}" / "cpulist", f"{first}-{first + count - 1}\n" if count else "\n")
        if count:
            package = root / "devices" / "system" / "cpu" / f"cpu{first}" / "topology" / "physical_package_id"
            _write(package, f"{sockets[node]}\n")


def _distance(node: int, other: int, sockets: dict[int, int], cpus: Container[int]) -> int:
    if node == other:
        return _LOCAL
    if node in cpus and other in cpus:
        return _OTHER_SOCKET if len(sockets) == len(set(sockets.values())) else _OTHER_SOCKET_COHERENT
    if node not in cpus and other not in cpus:
        return _UNREACHED
    return _OWN_GPU if sockets[node] == sockets[other] else _OTHER_GPU


def make_pci_device(root: Path, gpu: SimGpu, number: int) -> None:
    """Make a PCI device without a driver; `number` chooses the bridge that it hangs on."""
    name = address(gpu)
    bridge = f"{gpu.pci_domain:04x}:{gpu.pci_root:02x}:{1 + number % 8:02x}.0"
    device = root / "devices" / f"pci{gpu.pci_domain:04x}:{gpu.pci_root:02x}" / bridge / name
    last = gpu.cpu_first + gpu.cpu_count - 1
    files = {
        "vendor": "0x10de",
        "device": f"0x{gpu.pci_device_id >> 16:04x}",
        "subsystem_vendor": "0x10de",
        "subsystem_device": f"0x{gpu.pci_subsystem_id >> 16:04x}",
        "class": "0x030200",
        "revision": "0xa1",
        "numa_node": str(gpu.numa_node),
        "local_cpulist": f"{gpu.cpu_first}-{last}",
        "driver_override": "(null)",
        "current_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "16",
    }
    for file, text in files.items():
        _write(device / file, text + "\n")
    (device / "drm" / f"card{gpu.minor}").mkdir(parents=True)
    (device / "drm" / f"renderD{128 + gpu.minor}").mkdir()
    relative = os.path.relpath(device, root / "bus" / "pci" / "devices")
    (root / "bus" / "pci" / "devices" / name).symlink_to(relative)
    group = root / "kernel" / "iommu_groups" / str(20 + number)
    (group / "devices").mkdir(parents=True)
    (group / "devices" / name).symlink_to(os.path.relpath(device, group / "devices"))
    (device / "iommu_group").symlink_to(os.path.relpath(group, device))


_SCRIPTS = {
    "nvidia-debugdump": "echo 'simulated: nothing to dump'",
    "nvidia-persistenced": "exec sleep infinity",
    "nvidia-modprobe": "exit 0",
}


def make_driver(root: Path, version: str, build: Build, without: tuple[str, ...]) -> None:
    """Make the driver root: binaries, libraries with their SONAME links, GSP firmware."""
    binaries, libraries = root / "usr" / "bin", root / "usr" / "lib" / "x86_64-linux-gnu"
    firmware = root / "lib" / "firmware" / "nvidia" / version
    for folder in (binaries, libraries, firmware, root / "run" / "nvidia-persistenced"):
        folder.mkdir(parents=True)
    for name in ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        _program(build, name, binaries)
    for name, command in _SCRIPTS.items():
        _write(binaries / name, f"#!/bin/sh\n{command}\n", 0o755)
    _install(build.library(without), libraries, "libnvidia-ml.so.1", version)
    for soname in STUB_LIBRARIES:
        _install(build.stub(soname), libraries, soname, version)
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")
    (libraries / "libnvidia-ml.so").symlink_to("libnvidia-ml.so.1")
    for chip in ("ga10x", "tu10x"):
        (firmware / f"gsp_{chip}.bin").write_bytes(b"simulated firmware\n")


def make_fabric_manager(root: Path, build: Build) -> None:
    """Add what a Fabric Manager brings to a driver root: its library, and the socket of its command interface."""
    library = root / "usr" / "lib" / "x86_64-linux-gnu" / "libnvfm.so.1"
    shutil.copyfile(build.fabric_manager_library, library)
    library.chmod(0o755)
    _write(root / "run" / "nvidia-fabricmanager" / "socket", "")


def make_bin(root: Path, build: Build) -> None:
    """Make the programs that are no part of a driver: what a container's image would bring."""
    root.mkdir()
    _program(build, "cuda-client", root)


def _program(build: Build, name: str, folder: Path) -> None:
    shutil.copyfile(build.program(name), folder / name)
    (folder / name).chmod(0o755)


def _install(source: Path, folder: Path, soname: str, version: str) -> None:
    """Copy a library under its full name; its SONAME becomes a link, as ldconfig would make it."""
    base = soname.partition(".so")[0]
    target = folder / f"{base}.so.{version}"
    if target.name == soname or not version:
        target = folder / (soname if not version else target.name)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    link = folder / soname
    if link.name != target.name:
        link.symlink_to(target.name)
