"""What claims hold of each GPU, and what is left."""

from dra_gpu.api.dra_gpu_v1alpha1 import SharedStrategy
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.claims.shares import HeldShare
from dra_gpu.claims.steps import CdiDevice, WriteCdiSpec
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import MigPlacement, MigProfile, View
from dra_gpu.inventory.sharing import Mechanism
from dra_gpu.node import figures
from tests.unit.inventory.builders import GIB, gpu

PLACE = MigPlacement(profile=0, start=0, size=1)
PROFILE = MigProfile(0, 19, "1g.10gb", 1, 10 * GIB, 33, placements=(PLACE,))
FIRST, SECOND = gpu(0, nvlink_bandwidth=450 * 10**9, mig_profiles=(PROFILE,)), gpu(1)
NODE = Inventory(gpus={one.uuid: one for one in (FIRST, SECOND)})


def record(uid: str, *holds: Hold, boot: str = "boot", state: State = State.PREPARED, **facts) -> Record:
    return Record(ref=ClaimRef("team", uid, uid), boot_id=boot, state=state, holds=holds, **facts)


def share(device: str, percent: int, gib: int) -> HeldShare:
    return HeldShare(
        device,
        "id",
        FIRST.uuid,
        SharedStrategy.MPS,
        percent,
        gib * GIB,
        Mechanism.NAMESPACE,
        Mechanism.CGROUP,
        clients=2,
        nvlink_bandwidth=10**9,
    )


def test_a_gpu_that_nobody_holds_is_free():
    held = figures.held_of(NODE, [], "boot")

    assert set(held) == {FIRST.uuid, SECOND.uuid}
    assert all(amount == 0 for amounts in held.values() for amount in amounts.values())
    assert set(held[FIRST.uuid]) == {"computePercent", "clients", "memory", "nvlinkBandwidth"}
    assert "nvlinkBandwidth" not in held[SECOND.uuid]


def test_a_whole_gpu_is_held_whole():
    held = figures.held_of(NODE, [record("a", Hold("gpu-1", SECOND.uuid, Access.EXCLUSIVE))], "boot")

    assert held[SECOND.uuid] == figures.capacity_of(NODE)[SECOND.uuid]
    assert held[FIRST.uuid]["memory"] == 0


def test_shares_add_up():
    hold = Hold("gpu-0-shared", FIRST.uuid, Access.SHARED, "id")
    records = [record(uid, hold, shares=(share("gpu-0-shared", 20, 10),)) for uid in "abc"]
    held = figures.held_of(NODE, records, "boot")[FIRST.uuid]

    assert held == {"computePercent": 60, "memory": 30 * GIB, "clients": 6, "nvlinkBandwidth": 3 * 10**9}


def test_a_partition_is_held_by_its_memory_and_its_part_of_the_sms():
    device = CdiDevice("c", "gpu-0-mig", FIRST.uuid, View.MIG, placement=PLACE)
    one = record(
        "a",
        Hold("gpu-0-mig", FIRST.uuid, Access.PARTITION, units=PLACE.units),
        steps=(WriteCdiSpec("a", "c", (device,)),),
    )

    held = figures.held_of(NODE, [one], "boot")[FIRST.uuid]
    assert (held["memory"], held["computePercent"]) == (10 * GIB, 25)


def test_watching_and_earlier_boots_hold_nothing():
    records = [
        record("a", Hold("gpu-0-monitor", FIRST.uuid, Access.OBSERVER)),
        record("b", Hold("gpu-0", FIRST.uuid, Access.EXCLUSIVE), boot="before"),
    ]

    assert set(figures.held_of(NODE, records, "boot")[FIRST.uuid].values()) == {0}


def test_devices_are_counted_by_view_and_only_those_that_are_prepared():
    step = WriteCdiSpec("a", "c", (CdiDevice("c", "gpu-0", FIRST.uuid, View.GPU),))
    device = PreparedDevice((), "node", "gpu-0", ("gpu.nvidia.com/c=c",))
    records = [
        record("a", steps=(step,), devices=(device,)),
        record("b", devices=(device,)),
        record("c", steps=(step,), devices=(device,), state=State.PREPARING),
        record("d", steps=(step,), devices=(device,), boot="before"),
    ]

    counted = figures.prepared_by_view(records, "boot")
    assert {view: count for view, count in counted.items() if count} == {"gpu": 1, "unknown": 1}
    assert {view.value for view in View} < set(counted)
