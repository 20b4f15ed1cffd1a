"""What the device classes of this driver give: a view of a GPU, the config it takes, the capacities to ask for."""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_gpu.api import opaque
from dra_gpu.api.compute_domain import ComputeDomainChannelConfig, ComputeDomainDaemonConfig
from dra_gpu.api.dra_gpu_v1alpha1 import SharedGpuConfig
from dra_gpu.api.nvidia_v1beta1 import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from dra_gpu.inventory.model import View

KIND_OF_VIEW: Mapping[View, type[opaque.OpaqueConfig]] = {
    View.GPU: GpuConfig,
    View.SHARED: SharedGpuConfig,
    View.MONITOR: GpuConfig,
    View.MIG: MigDeviceConfig,
    View.SHARED_MIG: SharedGpuConfig,
    View.VFIO: VfioDeviceConfig,
}

_ENGINES = ("copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """What is known of the devices of a class.

    Attributes:
        driver: whose devices they are.
        kind: the config that they take.
        view: how they use a GPU; None for devices that are no GPUs.
        capacities: what can be asked for, spelled as the devices publish it.
    """

    driver: str
    kind: type[opaque.AnyConfig]
    view: View | None = None
    capacities: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Several claims have parts of one device."""
        return self.view in (View.SHARED, View.SHARED_MIG)

    @property
    def partition(self) -> bool:
        """The devices are partitions, of which a GPU has at most seven at once."""
        return self.view in (View.MIG, View.SHARED_MIG)


def _gpu(view: View, *capacities: str) -> ClassFacts:
    return ClassFacts(opaque.GPU_DRIVER, KIND_OF_VIEW[view], view, capacities)


# `shares` is there where the operator lets whole GPUs and partitions be shared (`consumableShares`).
CLASSES: Mapping[str, ClassFacts] = {
    "gpu.nvidia.com": _gpu(View.GPU, "memory", "shares"),
    "shared.gpu.nvidia.com": _gpu(View.SHARED, "computePercent", "memory", "clients", "nvlinkBandwidth"),
    "mig.nvidia.com": _gpu(View.MIG, "memory", "multiprocessors", *_ENGINES, "shares"),
    "shared.mig.nvidia.com": _gpu(View.SHARED_MIG, "computePercent", "memory", "clients"),
    "vfio.gpu.nvidia.com": _gpu(View.VFIO, "addressableMemory"),
    "monitor.nvidia.com": _gpu(View.MONITOR),
    "compute-domain-default-channel.nvidia.com": ClassFacts(opaque.DOMAIN_DRIVER, ComputeDomainChannelConfig),
    "compute-domain-daemon.nvidia.com": ClassFacts(opaque.DOMAIN_DRIVER, ComputeDomainDaemonConfig),
}
