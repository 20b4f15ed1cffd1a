"""What metrics say of a node, from its inventory and its journal. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from dra_gpu.claims.record import Access, Record, State
from dra_gpu.claims.steps import CreateMigInstance, WriteCdiSpec
from dra_gpu.inventory import capacities
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import Gpu, View

UNKNOWN = "unknown"
_PERCENT = 100.0


def prepared_by_view(records: Iterable[Record], boot_id: str) -> dict[str, int]:
    """Return how many devices claims have in this boot, by view; every view stands there, with 0 at least."""
    found = Counter({view.value: 0 for view in View} | {UNKNOWN: 0})
    for record in records:
        if record.state is not State.PREPARED or record.boot_id != boot_id:
            continue
        views = {
            one.device: one.view for step in record.steps if isinstance(step, WriteCdiSpec) for one in step.devices
        }
        for device in {(one.device, one.share_id) for one in record.devices}:
            view = views.get(device[0])
            found[view.value if view is not None else UNKNOWN] += 1
    return dict(found)


def by_state(records: Iterable[Record]) -> dict[str, int]:
    """Return how many claims the journal has in each state; every state stands there."""
    found = Counter({state.value: 0 for state in State})
    found.update(record.state.value for record in records)
    return dict(found)


def names_of_gpus(inventory: Inventory) -> dict[str, str]:
    """Return the name of each GPU of which anything is published, by UUID."""
    names: dict[str, str] = {}
    for device in inventory.devices.values():
        parts = device.name.split("-")
        names.setdefault(device.gpu.uuid, "-".join(parts[:2]))
    return names


def capacity_of(inventory: Inventory) -> dict[str, dict[str, float]]:
    """Return what each GPU has, by UUID and capacity; one that it does not tell is left out."""
    found = {}
    for gpu in inventory.gpus.values():
        has = {
            capacities.COMPUTE_PERCENT: _PERCENT,
            capacities.CLIENTS: float(capacities.max_clients(inventory.versions)),
        }
        if gpu.memory_bytes is not None:
            has[capacities.MEMORY] = float(gpu.memory_bytes)
        if gpu.nvlink_bandwidth:
            has[capacities.NVLINK_BANDWIDTH] = float(gpu.nvlink_bandwidth)
        found[gpu.uuid] = has
    return found


def held_of(inventory: Inventory, records: Iterable[Record], boot_id: str) -> dict[str, dict[str, float]]:
    """Return what claims hold of each GPU; never more than it has, and all of it for a GPU that is one claim's."""
    has = capacity_of(inventory)
    held = {uuid: dict.fromkeys(amounts, 0.0) for uuid, amounts in has.items()}
    for record in records:
        if record.boot_id != boot_id:
            continue
        for uuid, amounts in _held_by(record, inventory, has).items():
            for name, amount in amounts.items():
                held[uuid][name] = min(held[uuid].get(name, 0.0) + amount, has[uuid].get(name, 0.0))
    return held


def _held_by(
    record: Record, inventory: Inventory, has: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Return what one claim holds, by GPU. Several shares of one device are one claim's all the same."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for hold in record.holds:
        if hold.gpu not in has:
            continue
        if hold.access is Access.EXCLUSIVE:
            found[hold.gpu] = dict(has[hold.gpu])
        elif hold.access is Access.PARTITION:
            _add(found[hold.gpu], _of_partition(inventory.gpus[hold.gpu], record, hold.units))
    for share in record.shares:
        if share.gpu not in has:
            continue
        amounts = {capacities.MEMORY: float(share.memory_bytes)}
        part = 1.0
        if share.placement is not None:
            part = (
                _of_partition(inventory.gpus[share.gpu], record, share.placement.units).get(
                    capacities.COMPUTE_PERCENT, 0.0
                )
                / _PERCENT
            )
        if share.counted is None:
            amounts[capacities.COMPUTE_PERCENT] = share.percent * part
            amounts[capacities.CLIENTS] = float(share.clients or 0)
            amounts[capacities.NVLINK_BANDWIDTH] = float(share.nvlink_bandwidth or 0)
        _add(found[share.gpu], amounts)
    return found


def _of_partition(gpu: Gpu, record: Record, units: int) -> dict[str, float]:
    """Return what a partition takes of its GPU; nothing where its profile is not known (any more)."""
    places = [
        step.placement for step in record.steps if isinstance(step, CreateMigInstance) and step.gpu == gpu.uuid
    ] + [
        one.placement
        for step in record.steps
        if isinstance(step, WriteCdiSpec)
        for one in step.devices
        if one.gpu == gpu.uuid and one.placement is not None
    ]
    place = next((one for one in places if one.units == units), None)
    profile = gpu.mig_profile(place) if place is not None else None
    if profile is None:
        return {}
    whole = gpu.multiprocessors or 0
    sms = min(1.0, profile.multiprocessors / whole) if whole else profile.slices / max(1, gpu.mig_slices)
    return {capacities.MEMORY: float(profile.memory_bytes), capacities.COMPUTE_PERCENT: sms * _PERCENT}


def _add(into: dict[str, float], amounts: Mapping[str, float]) -> None:
    for name, amount in amounts.items():
        into[name] = into.get(name, 0.0) + amount


def memory_by_claim(
    inventory: Inventory, records: Iterable[Record], boot_id: str
) -> dict[tuple[tuple[str, str], str], float]:
    """Return the device memory that each claim holds, by namespace and name, and by UUID of the GPU."""
    has = capacity_of(inventory)
    found = {}
    for record in records:
        if record.boot_id == boot_id:
            key = record.ref.namespace, record.ref.name or record.ref.uid
            for uuid, amounts in _held_by(record, inventory, has).items():
                found[key, uuid] = amounts.get(capacities.MEMORY, 0.0)
    return found
