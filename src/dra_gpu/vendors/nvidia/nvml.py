"""NVML by nvidia-ml-py: opening it, and reading what it tells of a GPU, so that versions and oddities end here.

Everything here blocks; callers run it under a watchdog. A query that a GPU, a driver or an old library does not know
answers None: only the UUID is mandatory, and no optional query ever removes a GPU.
"""

import ctypes
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pynvml

from dra_gpu.inventory import pci
from dra_gpu.inventory.model import DriverVersions, Gpu
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia import mig_facts, names, nvlink
from dra_gpu.vendors.nvidia.queries import optional, text

_MIB = 2**20
# Hopper and later change their MIG mode without a reset. Source: MIG User Guide r580, "Enable MIG Mode".
_LIVE_SINCE = (9, 0)
# NVML_ERROR_* by what a caller can do about them (NVML API reference, nvmlReturn_t).
_KINDS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: FailureKind.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: FailureKind.UNSUPPORTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: FailureKind.LOST,
    pynvml.NVML_ERROR_NO_PERMISSION: FailureKind.REFUSED,
    pynvml.NVML_ERROR_IN_USE: FailureKind.IN_USE,
    pynvml.NVML_ERROR_TIMEOUT: FailureKind.TRANSIENT,
}
# Where the code says more than the kind (NVML API reference, nvmlReturn_t).
_REMEDIES = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the kernel module nvidia is not loaded: modprobe nvidia",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the kernel module that is loaded is of another release than this library: reload it, or reboot the node"
    ),
}


class Nvml:
    """NVML, open while it is being used and closed otherwise, so that a GPU can be reset or put into MIG mode."""

    def __init__(self, find_library: Callable[[], Path], presence: Callable[[], Hashable] = lambda: None) -> None:
        """Remember how to find the library; nothing is loaded yet.

        Args:
            find_library: returns the path of `libnvidia-ml.so.1`; called at each opening until one loads.
            presence: returns a mark of the GPUs that the kernel driver has now.
        """
        self._find_library = find_library
        self._presence = presence
        self._listed: Hashable = None
        self._lock = threading.Lock()
        self._users = 0

    @property
    def is_open(self) -> bool:
        """Whether anybody in this process uses it now."""
        return self._users > 0

    @property
    def is_stale(self) -> bool:
        """Whether it is open and lists other GPUs than there are: those that were there when it was initialised."""
        return self.is_open and self._listed != self._presence()

    def open(self) -> None:
        """Initialise NVML, or count one more user of it.

        Raises:
            VendorError: the library is missing, or the kernel driver does not answer it.
        """
        with self._lock:
            if self._users == 0:
                self._initialise()
            self._users += 1

    def close(self) -> None:
        """Count one user less; the last one shuts NVML down."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                optional(pynvml.nvmlShutdown)

    def _initialise(self) -> None:
        if pynvml.nvmlLib is None:
            path = self._find_library()
            try:
                pynvml.nvmlLib = ctypes.CDLL(str(path))
            except OSError as error:
                raise VendorError(
                    FailureKind.TRANSIENT, f"NVML: {path} cannot be loaded ({error}): check the driver installation"
                ) from error
        self._listed = self._presence()  # before: whoever comes meanwhile makes it stale
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise failure(f"NVML in {pynvml.nvmlLib._name}", "nvmlInit_v2", error) from error  # noqa: SLF001 - its path

    @staticmethod
    def versions() -> DriverVersions:
        """Return the versions of the kernel driver and of CUDA (`13.4`), empty where they cannot be read."""
        cuda = optional(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0
        return DriverVersions(
            driver=text(optional(pynvml.nvmlSystemGetDriverVersion)) or "",
            compute_api=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )

    @staticmethod
    def count() -> int:
        """Return the number of GPUs.

        Raises:
            VendorError: NVML does not answer.
        """
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise failure("NVML", "nvmlDeviceGetCount_v2", error) from error

    @staticmethod
    def read(index: int) -> Gpu:
        """Return every fact about one GPU that NVML tells.

        Raises:
            VendorError: there is no handle or no UUID: the GPU is lost, or NVML is broken.
        """
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            raise failure(f"GPU {index}", "nvmlDeviceGetHandleByIndex_v2", error) from error
        try:
            uuid = text(pynvml.nvmlDeviceGetUUID(handle))
        except (pynvml.NVMLError, AttributeError, ValueError) as error:  # the latter two: see `queries.optional`
            raise failure(f"GPU {index}", "nvmlDeviceGetUUID", error) from error
        if not uuid:
            raise VendorError(FailureKind.UNSUPPORTED, f"GPU {index}: NVML gives it an empty UUID; reload the driver")
        return _facts(index, handle, uuid)


def failure(subject: str, call: str, error: Exception) -> VendorError:
    """Return an NVML error as a typed one, with what to do about it."""
    code = getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN)
    kind = _KINDS.get(code, FailureKind.TRANSIENT)
    remedy = {
        FailureKind.UNSUPPORTED: "this GPU or driver version cannot do it",
        FailureKind.LOST: "the GPU has fallen off the bus: reset it or reboot the node",
        FailureKind.REFUSED: "the driver needs more rights: run it privileged",
        FailureKind.TRANSIENT: "it is tried again; see the kernel log if it stays so",
        FailureKind.IN_USE: "somebody holds it open; it is tried again",
    }[kind]
    return VendorError(kind, f"{subject}: {call} answered {error} ({code}); {_REMEDIES.get(code, remedy)}")


def handle_of(gpu: Gpu) -> Any:
    """Return a GPU's handle, found by its place: looking up a UUID fails as soon as any GPU is lost.

    A change of the MIG mode may give a GPU another device node (NVML API reference r580, nvmlDeviceSetMigMode), and its
    former one to another GPU: what a container gets must not go by the number of the last look.

    Raises:
        VendorError: NVML does not answer for it, another GPU is in its place now, or it has another device node.
    """
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError as error:
        raise failure(f"GPU {gpu.uuid}", "nvmlDeviceGetHandleByIndex_v2", error) from error
    if uuid != gpu.uuid:
        raise VendorError(
            FailureKind.TRANSIENT, f"GPU {gpu.uuid} is no longer at index {gpu.index}: it is looked for again shortly"
        )
    minor = optional(pynvml.nvmlDeviceGetMinorNumber, handle)
    if minor is not None and minor != gpu.minor:
        raise VendorError(
            FailureKind.TRANSIENT,
            f"GPU {gpu.uuid} has become /dev/nvidia{minor}, and was /dev/nvidia{gpu.minor} at the last look: it is "
            "looked at again shortly",
        )
    return handle


def _facts(index: int, handle: Any, uuid: str) -> Gpu:
    memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    capability = optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    cores = optional(pynvml.nvmlDeviceGetNumGpuCores, handle)
    mig = mig_facts.read(handle)
    addressing = optional(pynvml.nvmlDeviceGetAddressingMode, handle)
    brand = optional(pynvml.nvmlDeviceGetBrand, handle)
    architecture = optional(pynvml.nvmlDeviceGetArchitecture, handle)
    links = tuple(nvlink.links(handle))
    registration = nvlink.registration(handle)
    return Gpu(
        uuid=uuid,
        index=index,
        minor=optional(pynvml.nvmlDeviceGetMinorNumber, handle),
        pci_address=_address(handle),
        product_name=text(optional(pynvml.nvmlDeviceGetName, handle)),
        brand=names.brand(brand),
        architecture=names.architecture(architecture),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
        memory_bytes=None if memory is None or not memory.total else int(memory.total) // _MIB * _MIB,
        multiprocessors=names.multiprocessors(cores, capability),
        serial=text(optional(pynvml.nvmlDeviceGetSerial, handle)),
        addressing_mode=names.addressing_mode(addressing),
        mig_capable=mig.mode is not None,
        mig_enabled=None if mig.mode is None else mig.mode.current,
        mig_pending=None if mig.mode is None else mig.mode.pending,
        mig_live=mig.mode is not None and capability is not None and tuple(capability) >= _LIVE_SINCE,
        mig_profiles=mig.profiles,
        mig_instances=mig.instances,
        nvlinks=links,
        nvlink_bandwidth=nvlink.bandwidth(handle, links),
        fabric=registration.fabric,
        fabric_registered=registration.complete,
        # Without an integer of its own the call writes into one that all threads share.
        module_id=optional(pynvml.nvmlDeviceGetModuleId, handle, ctypes.c_uint()),
        confidential_compute=_confidential_compute(),
    )


def _address(handle: Any) -> str | None:
    info = optional(pynvml.nvmlDeviceGetPciInfo, handle)
    return None if info is None else pci.normalise(text(info.busId) or "")


def _confidential_compute() -> bool | None:
    state = optional(pynvml.nvmlSystemGetConfComputeState)
    return None if state is None else state.ccFeature == pynvml.NVML_CC_SYSTEM_FEATURE_ENABLED
