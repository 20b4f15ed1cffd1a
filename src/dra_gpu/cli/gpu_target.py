"""One GPU of a cluster as a person names it: by device name, UUID or PCI address, on a node. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_gpu.api import cordon, resource_v1
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule
from dra_gpu.inventory import attributes, naming, pci
from dra_gpu.inventory.model import View

_PARENT = "parentUUID"  # a partition's attribute: its GPU
_SUFFIXES = ("-shared", "-monitor")


class NoSuchGpuError(Exception):
    """No GPU of the node is called so; the message names those that are."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A GPU and its devices.

    Attributes:
        node: the node it is in.
        driver: the driver that publishes it.
        pool: where its devices are.
        name: what all its devices' names begin with, such as `gpu-0`.
        uuid: the vendor's identity of it; empty where nothing tells it.
        pci: its PCI address, if it is told.
        devices: its devices' views, by name.
    """

    node: str
    driver: str
    pool: str
    name: str
    uuid: str = ""
    pci: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> tuple[str, ...]:
        """The devices that are taken out of service with it: all but the one that only watches."""
        return tuple(name for name, view in self.devices.items() if view != View.MONITOR.value)

    def is_called(self, text: str) -> bool:
        """Tell whether a person may mean this GPU by a name, a UUID or a PCI address."""
        wanted = text.strip().lower()
        names = {self.name, self.uuid.lower(), *self.devices} - {""}
        return wanted in names or (self.pci != "" and pci.normalise(wanted) == self.pci)

    def __str__(self) -> str:
        return f"{self.name} of node {self.node}" + (f" ({self.uuid})" if self.uuid else "")


def published(slices: Iterable[resource_v1.ResourceSlice]) -> list[GpuTarget]:
    """Return the GPUs that are published, in the order of their names."""
    found: dict[tuple[str, str, str], GpuTarget] = {}
    for one in slices:
        spec = one.spec
        for device in spec.devices:
            facts = attributes.summary(device.attributes)
            uuid, name = str(facts.get(_PARENT, facts.get("uuid", ""))), _gpu_name(device.name)
            key = (spec.node_name, spec.pool.name, uuid or name)
            known = found.get(key) or GpuTarget(spec.node_name, spec.driver, spec.pool.name, name, uuid)
            address = known.pci or str(facts.get(attributes.PCI_BUS_ID, ""))
            devices = {**known.devices, device.name: str(facts.get("type", ""))}
            found[key] = GpuTarget(known.node, known.driver, known.pool, known.name, known.uuid, address, devices)
    return sorted(found.values(), key=lambda gpu: (gpu.node, len(gpu.name), gpu.name))


def find(
    gpus: Sequence[GpuTarget], node: str, text: str, rules: Iterable[DeviceTaintRule] = (), driver: str = ""
) -> GpuTarget:
    """Return the one GPU of a node that is called so.

    Args:
        gpus: what is published.
        node: its name.
        text: a name, UUID or PCI address.
        rules: rules of cordoned GPUs: one that is not published any more is known by these.
        driver: of the GPUs that only rules tell.

    Raises:
        NoSuchGpuError: there is none.
    """
    here = [gpu for gpu in gpus if gpu.node == node]
    for gpu in here:
        if gpu.is_called(text):
            return gpu
    for gpu in _of_rules(rules, node, driver):
        if gpu.is_called(text):
            return gpu
    if not here:
        nodes = sorted({gpu.node for gpu in gpus})
        more = f"those with GPUs are {', '.join(nodes[:10])}" if nodes else "no node does"
        raise NoSuchGpuError(f"no GPU is published on node {node!r}: {more}")
    names = ", ".join(f"{gpu.name} ({gpu.uuid}, {gpu.pci or 'no PCI address'})" for gpu in here)
    raise NoSuchGpuError(f"node {node} has no GPU {text!r}: name one by its name, UUID or PCI address: {names}")


def _of_rules(rules: Iterable[DeviceTaintRule], node: str, driver: str) -> list[GpuTarget]:
    """Return the GPUs of a node that rules tell of; its pool has the node's name."""
    found: dict[str, GpuTarget] = {}
    for rule in rules:
        selector = rule.spec.device_selector
        if selector is None or (selector.driver, selector.pool) != (driver, node):
            continue
        uuid = rule.metadata.annotations.get(cordon.GPU_ANNOTATION, "")
        name = _gpu_name(selector.device)
        devices = {**(found[name].devices if name in found else {}), selector.device: ""}
        found[name] = GpuTarget(node, driver, node, name, uuid, devices=devices)
    return list(found.values())


def _gpu_name(device: str) -> str:
    """Return the name of the GPU that a device belongs to."""
    partition = naming.parse_partition(device)
    if partition is not None:
        return partition.gpu
    return next((device.removesuffix(suffix) for suffix in _SUFFIXES if device.endswith(suffix)), device)
