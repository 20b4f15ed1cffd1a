"""What metrics say of resizes."""

from msgspec.structs import replace

from dra_gpu.claims.resize.state import Resize
from dra_gpu.inventory.amounts import NOTHING, Amounts
from dra_gpu.metrics.registry import Registry
from dra_gpu.metrics.resizes import ResizeMetrics
from dra_gpu.node import resize_figures
from tests.unit.claims.world import inventory_of, share_id
from tests.unit.inventory.builders import gpu

GIB = 2**30
AMOUNTS = Amounts(20, 10 * GIB, 1)


def resized(number: int, **changes) -> Resize:
    one = Resize(f"c{number}", "gpu-0-shared", share_id(number), "team", "c", "o", AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
    return replace(one, **changes)


async def test_states_and_what_was_given_back_of_each_gpu_are_told():
    registry = Registry("node")
    metrics = ResizeMetrics.of(registry)
    given = Amounts(10, 4 * GIB)
    resizes = [
        resized(1, offered=given),
        resized(2, offered=given),
        resized(3, goal=NOTHING),
        resized(4),
        resized(5),
    ]
    reasons = {resizes[3].key: "WaitingForWorkload", resizes[4].key: "ShareNotFree", resizes[0].key: ""}

    resize_figures.show(metrics, inventory_of([gpu(0)]), resizes, reasons)

    text = (await registry.render()).decode()
    told = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}
    states = {name.split('"')[1]: value for name, value in told.items() if name.startswith("dra_gpu_resizes{")}
    assert states == {"in-force": 2, "changing": 1, "waiting-for-workload": 1, "no-room": 1}
    assert told['dra_gpu_capacity_given_back{capacity="computePercent",gpu="gpu-0"}'] == 20
    assert told['dra_gpu_capacity_given_back{capacity="memory",gpu="gpu-0"}'] == 8 * GIB
