"""What metrics say of the health of GPUs."""

import pytest

from dra_gpu.health.state import GpuHealth
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.model import MigPlacement, MigProfile, Scan
from dra_gpu.metrics.gpu_health import GpuHealthMetrics
from dra_gpu.metrics.registry import Registry
from dra_gpu.node.health_figures import show
from tests.unit.health.reports import Gpu, xid
from tests.unit.inventory.builders import GIB, gpu

PLACE = MigPlacement(9, 0, 4)
HALF = MigProfile(9, 9, "3g.40gb", 3, 40 * GIB, 60, placements=(PLACE,))
BOARD = gpu(0, mig_capable=True, mig_live=True, mig_enabled=True, mig_profiles=(HALF,))


@pytest.fixture
def shown():
    """Return the lines of health that a scrape has for the state of one GPU and what was reported of it."""
    registry = Registry("test")
    metrics = GpuHealthMetrics.of(registry)
    inventory = views.build(Scan(gpus=(BOARD,)), naming.assign({}, (BOARD,))).inventory

    async def lines(state: GpuHealth, events=None):
        show(metrics, inventory, {BOARD.uuid: state}, events or {})
        text = (await registry.render()).decode()
        return sorted(line for line in text.splitlines() if line.startswith(("dra_gpu_health", "dra_gpu_xid")))

    return lines


async def test_before_the_first_look_nothing_is_said(shown):
    assert await shown(Gpu().told) == []


async def test_a_gpu_that_is_well(shown):
    found = Gpu()
    found.looks(0)

    assert await shown(found.told) == ['dra_gpu_health{gpu="gpu-0",partition=""} 1.0']


async def test_a_sick_gpu_with_what_is_wrong(shown):
    found = Gpu()
    found.looks(0)
    found.happens(xid(95), 1)
    found.happens(xid(31), 2)

    assert await shown(found.told) == [
        'dra_gpu_health_fault{effect="NoSchedule",fault="xid",gpu="gpu-0",partition="",value="95"} 1.0',
        'dra_gpu_health_fault{effect="None",fault="xid-notice",gpu="gpu-0",partition="",value="31"} 1.0',
        'dra_gpu_health{gpu="gpu-0",partition=""} 0.0',
    ]


async def test_a_sick_partition_by_the_name_of_its_device(shown):
    found = Gpu()
    found.looks(0)
    found.happens(xid(95, gpu_instance=7), 1, PLACE)

    lines = await shown(found.told)

    assert 'dra_gpu_health{gpu="gpu-0",partition=""} 1.0' in lines
    assert 'dra_gpu_health{gpu="gpu-0",partition="gpu-0-mig-3g40gb-9-0"} 0.0' in lines


async def test_a_gpu_that_waits_for_a_person(shown):
    found = Gpu()
    for number in range(4):
        found.looks(10 * number)
        found.looks(10 * number + 1, reset_mark=f"reset {number}")
        found.happens(xid(95), 10 * number + 2)

    assert 'dra_gpu_health_stays{gpu="gpu-0",partition=""} 1.0' in await shown(found.told)


async def test_what_was_reported_is_counted_xids_by_number(shown):
    lines = await shown(Gpu().told, {(BOARD.uuid, "95"): 2, (BOARD.uuid, "ecc"): 3, ("GPU-gone", "79"): 1})

    assert lines == [
        'dra_gpu_health_events_total{event="ecc",gpu="gpu-0"} 3.0',
        'dra_gpu_xid_errors_total{gpu="GPU-gone",xid="79"} 1.0',
        'dra_gpu_xid_errors_total{gpu="gpu-0",xid="95"} 2.0',
    ]
