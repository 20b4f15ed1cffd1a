"""What metrics say of resizes. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from dra_gpu.claims.resize.state import Resize, ShareKey
from dra_gpu.inventory import capacities
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.inventory.devices import Inventory
from dra_gpu.metrics.resizes import ResizeMetrics
from dra_gpu.node.figures import names_of_gpus

_STATES = {
    "WaitingForWorkload": "waiting-for-workload",
    "ShareNotFree": "no-room",
    "LimitsNotSet": "limits-not-set",
    "NotPrepared": "not-prepared",
}


def show(
    metrics: ResizeMetrics, inventory: Inventory, resizes: Iterable[Resize], reasons: Mapping[ShareKey, str]
) -> None:
    """Set the metrics.

    Args:
        metrics: where to.
        inventory: devices and the names of their GPUs.
        resizes: as the journal has them.
        reasons: why some are not as wanted.
    """
    names = names_of_gpus(inventory)
    states: Counter[str] = Counter({"in-force": 0})
    given_back: dict[str, Amounts] = {}
    for one in resizes:
        state = _STATES.get(reasons.get(one.key, ""), "in-force" if one.settled else "changing")
        states[state] += 1
        device = inventory.devices.get(one.device)
        if device is not None and one.offered:
            gpu = names.get(device.gpu.uuid, device.gpu.uuid)
            given_back[gpu] = given_back.get(gpu, NOTHING) + one.offered
    metrics.states.replace({(state,): float(count) for state, count in states.items()})
    metrics.given_back.replace(
        {(gpu, name): amount for gpu, more in given_back.items() for name, amount in _named(more).items() if amount}
    )


def _named(amounts: Amounts) -> dict[str, float]:
    return {
        capacities.COMPUTE_PERCENT: float(amounts.compute_percent),
        capacities.MEMORY: float(amounts.memory),
        capacities.CLIENTS: float(amounts.clients),
        capacities.NVLINK_BANDWIDTH: float(amounts.nvlink_bandwidth),
    }
