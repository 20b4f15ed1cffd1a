"""Pools of devices that a node reaches, in the order in which the scheduler tries them.

Only the highest generation counts. A pool with slices missing, or one that contradicts itself, gives nothing. Order:
driver, pool name; in a pool slice names; in a slice the order of the devices.
Source: pools_incubating.go `GatherPools`, `buildPool`.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dra_gpu.api.resource_v1 import CounterSet, Device, ResourceSlice
from dra_gpu.scheduler import nodes
from dra_gpu.scheduler.model import Candidate, DeviceId, Node, PoolId


class PoolState(enum.Enum):
    """Whether devices of a pool can be allocated."""

    USABLE = "usable"
    INCOMPLETE = "incomplete"  # the driver is writing it: slices of its generation are missing
    INVALID = "invalid"  # it contradicts itself


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool as a node sees it.

    Attributes:
        id: driver and name.
        state: whether its devices can be allocated; if not, it has none here.
        problem: what is wrong with it, for a reader.
        candidates: devices of slices that target the node.
        elsewhere: devices of the pool's other slices; they draw on the same counters.
        counter_sets: by name.
    """

    id: PoolId
    state: PoolState = PoolState.USABLE
    problem: str = ""
    candidates: tuple[Candidate, ...] = ()
    elsewhere: tuple[Candidate, ...] = ()
    counter_sets: dict[str, CounterSet] = field(default_factory=dict)


def gather(slices: Sequence[ResourceSlice], node: Node) -> list[Pool]:
    """Return the pools that reach a node, in the scheduler's order."""
    targeting: dict[PoolId, list[ResourceSlice]] = {}
    for published in slices:
        if _targets(published, node):
            _add(targeting.setdefault(_pool_id(published), []), published)
    found = (_pool(pool_id, mine, slices) for pool_id, mine in targeting.items())
    return sorted((pool for pool in found if pool is not None), key=lambda pool: pool.id)


def _pool_id(published: ResourceSlice) -> PoolId:
    return PoolId(published.spec.driver, published.spec.pool.name)


def device_reaches(device: Device, node: Node) -> bool:
    """Tell whether a device whose slice leaves the choice of nodes to each device reaches a node."""
    return nodes.reaches(node, name=device.node_name, all_nodes=device.all_nodes, selector=device.node_selector)


def _targets(published: ResourceSlice, node: Node) -> bool:
    spec = published.spec
    if spec.node_name or spec.all_nodes or spec.node_selector is not None:
        return nodes.reaches(node, name=spec.node_name, all_nodes=spec.all_nodes, selector=spec.node_selector)
    return spec.per_device_node_selection and any(device_reaches(device, node) for device in spec.devices)


def _add(mine: list[ResourceSlice], published: ResourceSlice) -> None:
    """Keep the slices of the highest generation only."""
    generation = published.spec.pool.generation
    if mine and generation < mine[0].spec.pool.generation:
        return
    if mine and generation > mine[0].spec.pool.generation:
        mine.clear()
    mine.append(published)


def _pool(pool_id: PoolId, mine: list[ResourceSlice], everything: Iterable[ResourceSlice]) -> Pool | None:
    """Build a pool; None for one whose newer generation has nothing for the node."""
    generation, expected = mine[0].spec.pool.generation, mine[0].spec.pool.resource_slice_count
    all_slices = mine
    if len(mine) != expected:
        same_pool = [published for published in everything if _pool_id(published) == pool_id]
        if any(published.spec.pool.generation > generation for published in same_pool):
            return None
        all_slices = [published for published in same_pool if published.spec.pool.generation == generation]
        if len(all_slices) != expected:
            return Pool(
                pool_id,
                PoolState.INCOMPLETE,
                f"{len(all_slices)} of {expected} slices of generation {generation} exist: the driver is writing it",
            )
    names = {published.metadata.name for published in mine}
    return _checked(
        pool_id,
        sorted(mine, key=lambda published: published.metadata.name),
        [published for published in all_slices if published.metadata.name not in names],
    )


def _checked(pool_id: PoolId, here: list[ResourceSlice], there: list[ResourceSlice]) -> Pool:
    sets: dict[str, CounterSet] = {}
    problems = _duplicates(here)
    for counter_set in (entry for published in (*here, *there) for entry in published.spec.shared_counters):
        if counter_set.name in sets:
            problems.append(f"duplicate counter set name {counter_set.name}")
        sets[counter_set.name] = counter_set
    for device in (entry for published in (*here, *there) for entry in published.spec.devices):
        problems.extend(_dangling(device, sets))
    if problems:
        return Pool(pool_id, PoolState.INVALID, problems[0])
    return Pool(
        pool_id,
        candidates=tuple(_candidates(pool_id, here)),
        elsewhere=tuple(_candidates(pool_id, there)),
        counter_sets=sets,
    )


def _candidates(pool_id: PoolId, slices: list[ResourceSlice]) -> Iterable[Candidate]:
    for published in slices:
        # Validation allows counters or devices in a slice; a slice with both counts for its counters alone.
        if not published.spec.shared_counters:
            for device in published.spec.devices:
                yield Candidate(DeviceId(*pool_id, device.name), device, published)


def _duplicates(slices: list[ResourceSlice]) -> list[str]:
    seen: set[str] = set()
    problems = []
    for device in (entry for published in slices for entry in published.spec.devices):
        if device.name in seen:
            problems.append(f"duplicate device name {device.name}")
        seen.add(device.name)
    return problems


def _dangling(device: Device, sets: dict[str, CounterSet]) -> Iterable[str]:
    for consumption in device.consumes_counters:
        counter_set = sets.get(consumption.counter_set)
        if counter_set is None:
            yield f"device {device.name}: counter set {consumption.counter_set} not found"
            continue
        for name in consumption.counters:
            if name not in counter_set.counters:
                yield f"device {device.name}: counter {name} not found in counter set {consumption.counter_set}"
