"""How well this node's devices are, as the kubelet is told: from the health of GPUs and partitions to names of devices.

Every published device is told, and every device that a claim holds although it is not published any more: a pod that
runs on it has a status, too. What is held comes first, should there be more devices than the kubelet takes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.record import Hold, Record
from dra_gpu.health.state import GpuHealth, HealthStates, PartHealth, Verdict, of_device
from dra_gpu.inventory.devices import Inventory
from dra_gpu.kubelet.health import DeviceHealth, HealthFeed, HealthStatus

_STATUS = {
    Verdict.HEALTHY: HealthStatus.HEALTHY,
    Verdict.UNHEALTHY: HealthStatus.UNHEALTHY,
    Verdict.UNKNOWN: HealthStatus.UNKNOWN,
}

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class DeviceHealthReader:
    """Reads how well devices are when a stream asks.

    Attributes:
        pool: the pool of this node.
        inventory: returns what the node offers now.
        health: how well GPUs are.
        records: returns the claims of this node.
        boot_id: of this boot; what was held in an earlier one is held by nobody.
    """

    pool: str
    inventory: Callable[[], Inventory]
    health: HealthStates
    records: Callable[[], Awaitable[Sequence[Record]]]
    boot_id: str
    _complaint: str = field(default="", init=False)

    def feed(self) -> HealthFeed:
        """Return what the kubelet's streams tell, at once with each change of a GPU's health."""
        feed = HealthFeed(self.read)
        self.health.subscribe(feed.changed)
        return feed

    async def read(self) -> list[DeviceHealth]:
        """Return every device; while the journal cannot be read, those that are published."""
        held: list[Hold] = []
        try:
            held = [hold for one in await self.records() if one.boot_id == self.boot_id for hold in one.holds]
            self._complaint = ""
        except JournalError as error:
            if str(error) != self._complaint:  # once, not every few seconds
                self._complaint = str(error)
                _log.warning("the kubelet is told of published devices only", reason=self._complaint)
        return device_health(self.pool, self.inventory(), self.health.states(), held)


def device_health(
    pool: str, inventory: Inventory, states: Mapping[str, GpuHealth], held: Iterable[Hold]
) -> list[DeviceHealth]:
    """Return how well each device is: first those that are held, then those that are sick, then the rest.

    Args:
        pool: the pool of this node.
        inventory: what the node offers.
        states: the health of GPUs, by UUID.
        held: what claims hold.
    """
    found: dict[str, PartHealth] = {}
    for hold in held:
        device = inventory.devices.get(hold.device)
        published = device is not None and device.gpu.uuid == hold.gpu
        found[hold.device] = of_device(states, device) if device and published else _of_hold(states, hold)
    rest = {name: of_device(states, device) for name, device in inventory.devices.items() if name not in found}
    found.update({name: part for name, part in rest.items() if part.verdict is Verdict.UNHEALTHY})
    found.update(rest)
    return [DeviceHealth(pool, name, _STATUS[part.verdict], part.reason) for name, part in found.items()]


def _of_hold(states: Mapping[str, GpuHealth], hold: Hold) -> PartHealth:
    """Return the health behind a device that is not published: its GPU, or the partition in the units that it holds."""
    gpu = states.get(hold.gpu)
    if gpu is None:
        return PartHealth(reason=f"GPU {hold.gpu} has not been seen since the node plugin started")
    placement = next((one for one in gpu.partitions if hold.units and one.units == hold.units), None)
    return gpu.of(placement)
