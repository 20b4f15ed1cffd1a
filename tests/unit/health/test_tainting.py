"""What the slices of a node carry when its GPUs are sick."""

import pytest

from dra_gpu.api.resource_v1 import DeviceTaint
from dra_gpu.health.state import Effect, GpuHealth, HealthTaint, PartHealth, Verdict
from dra_gpu.health.tainting import tainted
from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.model import MigPlacement, MigProfile, Scan, View
from dra_gpu.inventory.options import ViewOptions
from tests.unit.health.reports import START
from tests.unit.inventory.builders import GIB, gpu

LEFT, RIGHT = MigPlacement(9, 0, 4), MigPlacement(9, 4, 4)
HALF = MigProfile(9, 9, "3g.40gb", 3, 40 * GIB, 60, placements=(LEFT, RIGHT))
EVERY = ViewOptions(tuple(View), shared_mig_profiles=("3g.40gb",))
SICK = PartHealth(
    Verdict.UNHEALTHY, (HealthTaint("gpu.nvidia.com/xid", Effect.NO_SCHEDULE, "95", START),), "XID 95", START
)
WIRE = DeviceTaint(key="gpu.nvidia.com/xid", value="95", effect="NoSchedule", time_added="2026-05-01T12:00:00Z")


def layout(*gpus):
    return views.build(Scan(gpus=gpus), naming.assign({}, gpus), EVERY)


def board(number, **facts):
    return gpu(number, mig_capable=True, mig_live=True, mig_enabled=False, mig_profiles=(HALF,), **facts)


def taints_of(laid_out):
    return {name: device.wire.taints for name, device in laid_out.inventory.devices.items() if device.wire.taints}


def test_every_view_of_a_sick_gpu_is_tainted_but_the_one_for_watching_it():
    sick, well = board(0), board(1)

    found = taints_of(tainted(layout(sick, well), {sick.uuid: GpuHealth(sick.uuid, SICK)}))

    assert found == {
        name: [WIRE]
        for name in (
            "gpu-0", "gpu-0-shared", "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4",
            "gpu-0-mig-3g40gb-9-0-shared", "gpu-0-mig-3g40gb-9-4-shared",
        )
    }  # fmt: skip


@pytest.mark.case("C103")
def test_a_sick_partition_is_tainted_in_both_of_its_views_and_nothing_else_is():
    sick = board(0)
    health = GpuHealth(sick.uuid, PartHealth(Verdict.HEALTHY), {RIGHT: SICK})

    found = taints_of(tainted(layout(sick), {sick.uuid: health}))

    assert found == {name: [WIRE] for name in ("gpu-0-mig-3g40gb-9-4", "gpu-0-mig-3g40gb-9-4-shared")}


def test_nothing_but_taints_differs():
    one = board(0)
    healthy = layout(one, board(1))

    sick = tainted(healthy, {one.uuid: GpuHealth(one.uuid, SICK)})

    assert list(sick.inventory.devices) == list(healthy.inventory.devices)
    assert sick.counter_sets == healthy.counter_sets
    before, after = slices.arrange(healthy), slices.arrange(sick)
    assert [content.counter_sets for content in before] == [content.counter_sets for content in after]
    for left, right in zip(before, after, strict=True):
        for device, same in zip(left.devices, right.devices, strict=True):
            assert (device.name, device.attributes, device.capacity, device.consumes_counters) == (
                same.name, same.attributes, same.capacity, same.consumes_counters,
            )  # fmt: skip


def test_a_node_whose_gpus_are_well_is_left_as_it_is():
    found = layout(board(0))

    assert tainted(found, {}).inventory.devices == found.inventory.devices


def test_a_taint_of_the_inventory_stays_beside_those_of_health():
    pending = gpu(0, mig_capable=True, mig_enabled=False, mig_pending=True)

    found = taints_of(tainted(layout(pending), {pending.uuid: GpuHealth(pending.uuid, SICK)}))

    assert [taint.key for taint in found["gpu-0"]] == ["gpu.nvidia.com/mig-mode-pending", "gpu.nvidia.com/xid"]
