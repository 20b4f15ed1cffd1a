"""What a container with an NVIDIA GPU gets: device nodes, driver files, hooks, and a word to NVIDIA's own runtime.

Nothing names a GPU in the environment: variables of several devices in one container overwrite each other, and NVML
and CUDA list exactly the GPUs whose nodes are there. `NVIDIA_VISIBLE_DEVICES=void` keeps NVIDIA's container runtime,
where it is the default runtime, from adding GPUs of its own choice.
Source: NVIDIA Container Toolkit documentation, "Environment variables"; its nvcdi package for the set of edits.
"""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from dra_gpu.cdi.extra_edits import ExtraEdits, MissingExtraError
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import ContainerEdits, DeviceNode, Mount
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import Gpu, MigInstance, View
from dra_gpu.vendors.base import FailureKind, NotReadyError, VendorError
from dra_gpu.vendors.nvidia import libraries, nodes
from dra_gpu.vendors.nvidia.capabilities import Capabilities
from dra_gpu.vendors.nvidia.driver_root import DriverFile, DriverFiles, DriverRoot
from dra_gpu.vendors.nvidia.toolkit import Toolkit, ToolkitSearch

_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = (*_READ_ONLY, "noexec")


class NvidiaEdits:
    """Makes the container edits from what is on the node at the moment of the call.

    Args:
        driver_root: the driver installation.
        dev: the directory of device nodes.
        host: the host's root, in which the container toolkit is looked for; None when this process does not see it.
        hook_program: the toolkit's program by its path on the host, where it is in an unusual place.
        capabilities: the device nodes of partitions; those of this machine without.
        extra: what the operator adds to every container.
    """

    def __init__(
        self,
        driver_root: DriverRoot,
        dev: HostDirectory,
        *,
        host: HostDirectory | None = None,
        hook_program: PurePosixPath | None = None,
        capabilities: Capabilities | None = None,
        extra: ExtraEdits | None = None,
    ) -> None:
        self._driver_root = driver_root
        self._dev = dev
        self._host = host
        self._toolkit = ToolkitSearch(host, hook_program)
        self._capabilities = capabilities or Capabilities(Path("/proc"), dev)
        self._extra = extra if extra is not None else ExtraEdits()
        self._made: tuple[tuple[object, ...], ContainerEdits] | None = None

    def installation(self) -> Hashable:
        """Return what changes when the driver installation or the device nodes do; None when there is no driver."""
        driver = self._driver_root.mark()
        try:
            nodes_changed = self._dev.process.stat().st_mtime_ns
        except OSError:
            return None
        return None if driver is None else (driver, nodes_changed)

    def common_edits(self) -> ContainerEdits:
        """What every container with a GPU gets.

        Raises:
            NotReadyError: the driver root, a control node, or something the operator requires is not there.
        """
        control = nodes.required_nodes(self._dev, nodes.CONTROL)
        control += nodes.optional_nodes(self._dev, nodes.OPTIONAL_CONTROL)
        files = self._driver_root.files()
        toolkit = self._toolkit.find()
        sockets = self._driver_root.sockets()
        try:
            extra = self._extra.on_node(self._dev, self._host)
        except MissingExtraError as error:
            raise NotReadyError(str(error)) from error
        found = (control, files, toolkit, sockets, extra)
        made = self._made  # other threads may be here too
        if made is None or made[0] != found:
            made = (found, _combined(control, files, toolkit, sockets).merged(extra))
            self._made = made
        return made[1]

    def device_edits(
        self,
        devices: Sequence[PublishedDevice],
        instances: Mapping[str, MigInstance] | None = None,
    ) -> ContainerEdits:
        """What the given devices add on top of `common_edits`, for one container that gets them together.

        Raises:
            NotReadyError: a device node is missing; names each.
            VendorError: a device cannot be given to a container by this driver (UNSUPPORTED).
        """
        names: list[PurePosixPath] = []
        more: list[DeviceNode] = []
        for device in devices:
            match device.view:
                case View.GPU | View.SHARED | View.MONITOR:
                    names.append(_gpu_node(device.gpu))
                    if device.gpu.pci_address is not None:
                        more += nodes.dri_nodes(self._dev, device.gpu.pci_address)
                case View.MIG | View.SHARED_MIG:
                    names.append(_gpu_node(device.gpu))
                    more += self._capability_nodes(device, (instances or {}).get(device.name))
                case _:
                    raise VendorError(
                        FailureKind.UNSUPPORTED,
                        f"device {device.name}: this release cannot give the view {device.view.value!r} to a "
                        "container; take it out of the driver's views, or claim a whole GPU",
                    )
        required = nodes.required_nodes(self._dev, dict.fromkeys(names))
        return ContainerEdits(device_nodes=required).merged(ContainerEdits(device_nodes=tuple(more)))

    def _capability_nodes(self, device: PublishedDevice, instance: MigInstance | None) -> tuple[DeviceNode, ...]:
        if instance is None or instance.compute_instance is None or device.gpu.minor is None:
            raise NotReadyError(f"device {device.name}: its MIG instance on GPU {device.gpu.uuid} is not there")
        return self._capabilities.nodes(device.gpu.minor, instance.gpu_instance, instance.compute_instance)


def _combined(
    control: tuple[DeviceNode, ...], files: DriverFiles, toolkit: Toolkit | None, sockets: tuple[DriverFile, ...]
) -> ContainerEdits:
    edits = ContainerEdits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        device_nodes=control,
        mounts=tuple(_mount(file) for file in (*files.programs, *files.firmware))
        + tuple(_mount(file, _SOCKET) for file in sockets),
    )
    return edits.merged(_hooked_libraries(files, toolkit) if toolkit is not None else _plain_libraries(files))


def _gpu_node(gpu: Gpu) -> PurePosixPath:
    if gpu.minor is None:
        raise VendorError(
            FailureKind.UNSUPPORTED,
            f"GPU {gpu.uuid} has no device node of its own on this platform, so that a container cannot be given it "
            "alone; integrated GPUs are not supported yet",
        )
    return nodes.gpu_node(gpu.minor)


def _mount(file: DriverFile, options: tuple[str, ...] = _READ_ONLY) -> Mount:
    return Mount(str(file.host), str(file.container), options)


def _hooked_libraries(files: DriverFiles, toolkit: Toolkit) -> ContainerEdits:
    """Mount the libraries where the driver root has them; the toolkit's hooks make the loader find them."""
    folders = dict.fromkeys(str(library.file.container.parent) for library in files.libraries)
    return ContainerEdits(
        env=(f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(folders)}",),
        mounts=tuple(_mount(library.file) for library in files.libraries),
        hooks=toolkit.edits(files),
    )


def _plain_libraries(files: DriverFiles) -> ContainerEdits:
    """Mount the libraries, under every name they are loaded by, where any container's loader looks by itself.

    Without hooks nothing can make links or renew the loader's cache in the container.
    """
    return ContainerEdits(
        mounts=tuple(
            Mount(str(library.file.host), str(directory / name), _READ_ONLY)
            for directory in libraries.loader_directories()
            for library in files.libraries
            for name in (library.file.container.name, *library.loaded_as)
        )
    )
