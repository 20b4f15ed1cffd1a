"""Classes, views, attributes and capacities, from the inventory's own code: a GPU that has everything, published."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml
from tools.reference.tables import code, table

from dra_gpu.api.resource_v1 import DeviceAttribute, DeviceCapacity
from dra_gpu.inventory import attributes, views
from dra_gpu.inventory.devices import PublishedDevice
from dra_gpu.inventory.model import (
    DriverVersions,
    Fabric,
    FabricPartition,
    Gpu,
    MigInstance,
    MigPlacement,
    MigProfile,
    NvLink,
    Scan,
    View,
)
from dra_gpu.inventory.options import ViewOptions

_CLASSES = Path(__file__).parents[2] / "deploy" / "deviceclasses.yaml"
_DRIVER = "gpu.nvidia.com"
_MIB = 1 << 20
_PLACE = MigPlacement(profile=0, start=0, size=1)
_PROFILE = MigProfile(
    profile=0,
    profile_id=19,
    name="1g.10gb",
    slices=1,
    memory_bytes=9856 * _MIB,
    multiprocessors=16,
    copy_engines=1,
    decoders=1,
    jpeg_engines=1,
    max_instances=7,
    placements=(_PLACE,),
)
_GPU = Gpu(
    uuid="GPU-e0657d82-a191-4ffd-9ecb-ae58dfc6091d",
    index=0,
    minor=0,
    pci_address="0000:3b:00.0",
    product_name="NVIDIA H100 80GB HBM3",
    brand="Nvidia",
    architecture="Hopper",
    compute_capability=(9, 0),
    memory_bytes=81559 * _MIB,
    multiprocessors=132,
    pcie_root="pci0000:3a",
    numa_node=0,
    addressing_mode="HMM",
    mig_capable=True,
    mig_enabled=False,
    mig_pending=False,
    mig_live=True,
    mig_profiles=(_PROFILE,),
    nvlinks=(NvLink(0, active=True, version=4, remote_is_switch=True),),
    nvlink_bandwidth=450_000_000_000,
    fabric=Fabric("5f2c0d8e-7a35-4b1c-9d27-6f0e8a1b3c4d", 0),
    module_id=1,
    fabric_partitions=tuple(FabricPartition(size, size) for size in (1, 2, 4, 8)),
    confidential_compute=False,
    isolation="namespace",
)
_CUT = replace(
    _GPU,
    mig_enabled=True,
    mig_pending=True,
    mig_instances=(MigInstance(_PLACE, 7, 0, "MIG-3f4291d6-0b96-5c97-8d8a-754497623acc"),),
)
_VERSIONS = DriverVersions("615.71.05", "13.1")
_OPTIONS = ViewOptions(shared_mig_profiles=(_PROFILE.name,))

#: What a view is.
VIEWS = {
    View.GPU: "A whole GPU. Nobody else has any of it.",
    View.SHARED: "Fractions of a GPU: a claim says how much with `capacity.requests`. The first share takes the GPU "
    "out of the other views, the last one gives it back.",
    View.MIG: "A partition, one device for each profile and place where it can lie. It is made when a claim is "
    "prepared and destroyed with it; one that an administrator made is used as it is.",
    View.SHARED_MIG: "Fractions of a partition, of the profiles that the operator lists (`sharedMigProfiles`).",
    View.MONITOR: "For watching a GPU that others use. For admin access only.",
}
ATTRIBUTES = {
    "type": "the view",
    "uuid": "of the GPU; of a partition (`mig`, `shared-mig`) only where an administrator made it",
    "parentUUID": "the GPU that a partition is of",
    "placement": "its first memory slice, by which partitions of a profile are told apart",
    "profile": "as `nvidia-smi mig -lgip` names it",
    "productName": "as NVML names the board",
    "brand": "as NVML names it",
    "architecture": "as NVML names it",
    "cudaComputeCapability": "major and minor, as a semantic version",
    "driverVersion": "of the kernel driver, as a semantic version; absent where it makes none",
    "driverVersionText": "the same as it is",
    "cudaDriverVersion": "newest CUDA that the driver serves, as a semantic version",
    "addressingMode": "HMM or ATS; absent where there is neither",
    attributes.PCI_BUS_ID: "address of the PCI device, as sysfs writes it",
    attributes.PCIE_ROOT: "root complex; equal on devices behind the same one",
    attributes.NUMA_NODE: "of the PCI device; a list of the nearest ones with `numaLists`",
    "nvlinkGroup": "equal on GPUs of which every pair has an NVLink path, directly or through switches; the GPU's own "
    "UUID where it has no active link",
    "nvlinkVersion": "generation of the links that are up",
    "fabricClique": "cluster UUID and clique of a multi-node NVLink fabric",
    "gpuModuleID": "socket on the baseboard, by which Fabric Manager knows it",
    "partition1": "Fabric Manager's partition with this GPU alone",
    "partition2": "that of two GPUs",
    "partition4": "that of four",
    "partition8": "that of eight",
    "confidentialCompute": "the GPU works in confidential mode",
    "migCapable": "the board can be partitioned",
    "isolation": "what enforces the limits of a claim on it, the weakest of them: "
    "[what a limit is worth](../../README.md#what-a-limit-is-worth)",
}
CAPACITIES = {
    "memory": "device memory",
    "computePercent": "percent of the SMs of the GPU or partition",
    "clients": "processes under MPS at once; counted, not limited",
    "nvlinkBandwidth": "bytes per second in one direction over all links; counted, not limited",
    "multiprocessors": "SMs",
    "copyEngines": "copy engines",
    "decoders": "NVDEC",
    "encoders": "NVENC",
    "jpegEngines": "NVJPG",
    "ofaEngines": "optical flow",
}
_HEAD = """# Devices

{note}
What a ResourceSlice of the driver `gpu.nvidia.com` has. The pool is the node. A claim selects with CEL, such as
`device.attributes['gpu.nvidia.com'].productName.matches('.*H100.*')` or
`device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0`. Names without a domain are of
`gpu.nvidia.com`. What a GPU does not tell is absent, never filled: a selector asks with `'nvlinkGroup' in
device.attributes['gpu.nvidia.com']` where that may be. Every device of a view has the same attributes with the same
types. The examples are those of an H100.

"""


def page(note: str) -> str:
    """Return the page."""
    found = {view: of_view(view) for view in VIEWS}
    parts = [_HEAD.format(note=note.format(source="src/dra_gpu/inventory and deploy/deviceclasses.yaml"))]
    parts.append("## Classes\n\n")
    parts.append(table(("Class", "View", "Extended resource"), _classes()))
    for view, meaning in VIEWS.items():
        device = found[view][0].wire
        parts.append(f"\n## {view.value}\n\n{meaning} Device names are like {code(device.name)}.\n\n")
        if device.capacity:
            rows = _capacities(device.capacity)
            parts.append(table(("Capacity", "For example", "Asked for in part", "Meaning"), rows))
    parts.append("\n## Attributes\n\n")
    parts.append(table(("Attribute", "Type", "For example", "Views", "Meaning"), _attributes(found)))
    return "".join(parts)


def of_view(view: View) -> list[PublishedDevice]:
    """Return its devices of a GPU that nobody cut, then those of one that an administrator did."""
    found = []
    for gpu in (_GPU, _CUT):
        scan = Scan(_VERSIONS, (gpu,))
        layout = views.build(scan, {gpu.pci_address or "": "gpu-0"}, _OPTIONS)
        found += [one for one in layout.inventory.devices.values() if one.view is view]
    return found


def _classes() -> Iterator[tuple[str, str, str]]:
    for one in yaml.safe_load_all(_CLASSES.read_text()):
        (selector,) = one["spec"]["selectors"]
        view = selector["cel"]["expression"].rpartition("type == ")[2].strip("'")
        yield code(one["metadata"]["name"]), code(view), code(one["spec"].get("extendedResourceName", ""))


def _attributes(found: dict[View, list[PublishedDevice]]) -> Iterator[tuple[str, str, str, str, str]]:
    of_view = {
        view: {name: value for one in reversed(devices) for name, value in one.wire.attributes.items()}
        for view, devices in found.items()
    }
    for name in dict.fromkeys(name for values in of_view.values() for name in values):
        views_with = [view for view, values in of_view.items() if name in values]
        everywhere = len(views_with) == len(of_view)
        where = "all" if everywhere else ", ".join(code(view.value) for view in views_with)
        yield code(name), *_shown(of_view[views_with[0]][name]), where, ATTRIBUTES[name]


def _shown(value: DeviceAttribute) -> tuple[str, str]:
    (shown,) = attributes.summary({"": value}).values()
    kind = "version" if value.version is not None else {str: "string", int: "int", bool: "bool"}[type(shown)]
    return kind, code(str(shown).lower() if isinstance(shown, bool) else shown)


def _capacities(found: dict[str, DeviceCapacity]) -> Iterator[tuple[str, str, str, str]]:
    for name, capacity in found.items():
        policy = capacity.request_policy
        part = ""
        if policy is not None and policy.valid_range is not None:
            step = f", in steps of {code(policy.valid_range.step)}" if policy.valid_range.step else ""
            part = f"at least {code(policy.valid_range.min)}{step}; {code(policy.default)} where it is not asked for"
        yield code(name), code(capacity.value), part, CAPACITIES[name]
