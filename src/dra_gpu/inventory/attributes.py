"""Attributes of each view, under the names of NVIDIA's driver where it has them.

An attribute belongs to a view and has one type there. What a GPU does not tell is left out: a filler would be equal on
several devices and satisfy `matchAttribute`. At most 32 attributes and capacities a device (Kubernetes v1.37).
"""

from collections.abc import Mapping

from dra_gpu.api.resource_v1 import DeviceAttribute
from dra_gpu.inventory import versions
from dra_gpu.inventory.model import DriverVersions, Gpu, View
from dra_gpu.inventory.partitions import Partition
from dra_gpu.inventory.sharing import Mechanism

PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
_FABRIC_PARTITIONS = (1, 2, 4, 8)
_MAX_TEXT_BYTES = versions.MAX_TEXT_BYTES


def of_whole_gpu(gpu: Gpu, driver: DriverVersions, nvlink_group: str) -> dict[str, DeviceAttribute]:
    """Return the attributes of the `gpu` view."""
    attributes = _common(gpu, driver, View.GPU)
    _put_string(attributes, "nvlinkGroup", nvlink_group)
    generations = [link.version for link in gpu.nvlinks if link.active and link.version is not None]
    _put_int(attributes, "nvlinkVersion", max(generations, default=None))
    _put_string(attributes, "fabricClique", gpu.fabric.clique if gpu.fabric else None)
    _put_int(attributes, "gpuModuleID", gpu.module_id)
    for partition in reversed(gpu.fabric_partitions):
        if partition.size in _FABRIC_PARTITIONS:
            _put_int(attributes, f"partition{partition.size}", partition.partition_id)
    _put_bool(attributes, "confidentialCompute", gpu.confidential_compute)
    _put_bool(attributes, "migCapable", gpu.mig_capable)
    _put_string(attributes, "isolation", "hardware")
    return attributes


def of_shared(gpu: Gpu, driver: DriverVersions, nvlink_group: str) -> dict[str, DeviceAttribute]:
    """Return the attributes of the `shared` view: those by which a share is chosen, and what its limits are worth."""
    attributes = _common(gpu, driver, View.SHARED)
    _put_string(attributes, "nvlinkGroup", nvlink_group)
    _put_string(attributes, "isolation", gpu.isolation)
    return attributes


def of_monitor(gpu: Gpu, driver: DriverVersions) -> dict[str, DeviceAttribute]:
    """Return the attributes of the `monitor` view: what identifies the GPU, nothing that says how it is used."""
    return _common(gpu, driver, View.MONITOR)


def of_mig(gpu: Gpu, driver: DriverVersions, partition: Partition) -> dict[str, DeviceAttribute]:
    """Return the attributes of the `mig` view.

    A UUID has only what the administrator made: one of ours gets its UUID when a claim creates it.
    """
    return _of_partition(gpu, driver, partition, View.MIG, Mechanism.HARDWARE)


def of_shared_mig(gpu: Gpu, driver: DriverVersions, partition: Partition) -> dict[str, DeviceAttribute]:
    """Return the attributes of the `shared-mig` view: inside a partition only MPS's own variables limit a share.

    A share that grows asks for more of its very partition, which has no UUID: it is told apart by its place.
    """
    attributes = _of_partition(gpu, driver, partition, View.SHARED_MIG, Mechanism.COOPERATIVE)
    _put_int(attributes, "placement", partition.placement.start)
    return attributes


def _of_partition(
    gpu: Gpu, driver: DriverVersions, partition: Partition, view: View, isolation: Mechanism
) -> dict[str, DeviceAttribute]:
    attributes = _common(gpu, driver, view)
    del attributes["uuid"]
    _put_string(attributes, "parentUUID", gpu.uuid)
    _put_string(attributes, "profile", partition.profile.name)
    _put_string(attributes, "uuid", partition.instance.uuid if partition.instance is not None else None)
    _put_string(attributes, "isolation", isolation.value)
    return attributes


def _common(gpu: Gpu, driver: DriverVersions, view: View) -> dict[str, DeviceAttribute]:
    attributes: dict[str, DeviceAttribute] = {}
    _put_string(attributes, "type", view.value)
    _put_string(attributes, "uuid", gpu.uuid)
    _put_string(attributes, "productName", gpu.product_name)
    _put_string(attributes, "brand", gpu.brand)
    _put_string(attributes, "architecture", gpu.architecture)
    if gpu.compute_capability is not None:
        major, minor = gpu.compute_capability
        _put_version(attributes, "cudaComputeCapability", f"{major}.{minor}")
    _put_version(attributes, "driverVersion", driver.driver)
    _put_string(attributes, "driverVersionText", driver.driver)
    _put_version(attributes, "cudaDriverVersion", driver.compute_api)
    _put_string(attributes, "addressingMode", gpu.addressing_mode)
    _put_string(attributes, PCI_BUS_ID, gpu.pci_address)
    _put_string(attributes, PCIE_ROOT, gpu.pcie_root)
    if gpu.numa_nodes:
        attributes[NUMA_NODE] = DeviceAttribute(ints=list(gpu.numa_nodes))
    else:
        _put_int(attributes, NUMA_NODE, gpu.numa_node)
    return attributes


def _put_string(attributes: dict[str, DeviceAttribute], name: str, value: str | None) -> None:
    if value:
        attributes[name] = DeviceAttribute(string=truncated(value))


def _put_version(attributes: dict[str, DeviceAttribute], name: str, raw: str) -> None:
    version = versions.semver(raw)
    if version is not None:
        attributes[name] = DeviceAttribute(version=version)


def _put_int(attributes: dict[str, DeviceAttribute], name: str, value: int | None) -> None:
    if value is not None:
        attributes[name] = DeviceAttribute(int_=value)


def _put_bool(attributes: dict[str, DeviceAttribute], name: str, value: bool | None) -> None:  # noqa: FBT001 - a fact, not a switch
    if value is not None:
        attributes[name] = DeviceAttribute(bool_=value)


def truncated(text: str) -> str:
    """Return the text cut to what an attribute may hold, never in the middle of a character."""
    return text.encode()[:_MAX_TEXT_BYTES].decode(errors="ignore")


def summary(attributes: Mapping[str, DeviceAttribute]) -> dict[str, str | int | bool]:
    """Return plain values by name, for tables and logs."""
    values: dict[str, str | int | bool] = {}
    for name, attribute in attributes.items():
        listed = ",".join(map(str, attribute.ints)) if attribute.ints else None
        for value in (attribute.string, attribute.version, attribute.int_, attribute.bool_, listed):
            if value is not None:
                values[name] = value
    return values
