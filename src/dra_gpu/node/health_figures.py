"""What metrics say of the health of GPUs. Pure."""

from collections.abc import Iterator, Mapping

from dra_gpu.health.state import GpuHealth, PartHealth, Verdict
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import MigPlacement, View
from dra_gpu.metrics.gpu_health import GpuHealthMetrics
from dra_gpu.node.figures import names_of_gpus

_Part = tuple[str, str]


def show(
    metrics: GpuHealthMetrics,
    inventory: Inventory,
    states: Mapping[str, GpuHealth],
    events: Mapping[tuple[str, str], int],
) -> None:
    """Set the metrics.

    Args:
        metrics: where to.
        inventory: names of GPUs and partitions.
        states: by UUID.
        events: how often what was reported, by UUID and kind; of XIDs by their number.
    """
    names = names_of_gpus(inventory)
    parts = dict(_parts(states, names, inventory))
    metrics.health.replace(
        {key: float(part.verdict is Verdict.HEALTHY) for key, part in parts.items() if _is_known(part)}
    )
    metrics.faults.replace(
        {
            (*key, taint.key.rpartition("/")[2], taint.value, taint.effect.value): 1.0
            for key, part in parts.items()
            for taint in part.taints
        }
    )
    metrics.stays.replace({key: 1.0 for key, part in parts.items() if part.stays})
    by_name = {(names.get(uuid, uuid), kind): float(count) for (uuid, kind), count in events.items()}
    metrics.xids.replace({key: count for key, count in by_name.items() if key[1].isdigit()})
    metrics.events.replace({key: count for key, count in by_name.items() if not key[1].isdigit()})


def _parts(
    states: Mapping[str, GpuHealth], names: Mapping[str, str], inventory: Inventory
) -> Iterator[tuple[_Part, PartHealth]]:
    for uuid, gpu in states.items():
        name = names.get(uuid, uuid)
        yield (name, ""), gpu.whole
        for placement, part in gpu.partitions.items():
            yield (name, _partition(inventory, uuid, placement)), part


def _partition(inventory: Inventory, uuid: str, placement: MigPlacement) -> str:
    found = (
        device.name
        for device in inventory.devices.values()
        if device.view is View.MIG and device.gpu.uuid == uuid and device.placement == placement
    )
    return next(found, f"{placement.size} units from {placement.start}")


def _is_known(part: PartHealth) -> bool:
    return part.verdict is not Verdict.UNKNOWN
