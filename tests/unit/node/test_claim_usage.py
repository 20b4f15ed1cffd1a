"""Whose process it is: a claim's figures are its own, and what cannot be told is said with the reason."""

import pytest

from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.claims.shares import MemoryCgroup, share_name
from dra_gpu.claims.steps import CdiDevice, WriteCdiSpec
from dra_gpu.inventory.model import MigInstance, MigPlacement, View
from dra_gpu.node.claim_usage import Known, usage_of
from dra_gpu.vendors.usage import GpuUsage, NoSamples, UsingProcess

GPU, NAME = "GPU-0", "gpu-0"
SHARE_ID = "11111111-2222-4333-8444-555555555555"
PLACE = MigPlacement(profile=0, start=0, size=1)
TWO = (UsingProcess(10, 100), UsingProcess(11, 7))


def record(
    uid: str, access: Access, *, cgroup: str = "", share_id: str = "", place: MigPlacement | None = None
) -> Record:
    steps = () if place is None else (WriteCdiSpec(uid, "c", (CdiDevice("c", "d", GPU, View.MIG, placement=place),)),)
    return Record(
        ref=ClaimRef("team", uid, uid),
        boot_id="boot",
        state=State.PREPARED,
        steps=steps,
        holds=(Hold("d", GPU, access, share_id, units=0 if place is None else place.units),),
        cgroups=(MemoryCgroup(GPU, cgroup, 1),) if cgroup else (),
    )


def look(*processes: UsingProcess, **facts) -> dict[str, GpuUsage]:
    return {GPU: GpuUsage(processes=processes, **facts)}


def used(records, looks, **known):
    return usage_of(records, looks, {GPU: NAME}, Known(**known))


def test_everything_on_a_gpu_that_is_one_claims_is_that_claims():
    found = used([record("a", Access.EXCLUSIVE)], look(*TWO, sm={10: 0.25, 11: 0.5}))

    assert found.memory == {("team", "a", NAME): (107, "process")}
    assert found.sm == {("team", "a", NAME): 0.75}
    assert found.unattributed == {NAME: 0}
    assert not found.unavailable


def test_an_idle_claim_uses_nothing_and_that_is_a_figure():
    found = used([record("a", Access.EXCLUSIVE)], look())

    assert found.memory == {("team", "a", NAME): (0, "process")}
    assert found.sm == {("team", "a", NAME): 0}


def test_watching_is_no_use():
    found = used([record("a", Access.OBSERVER)], look(*TWO))

    assert found.memory == {}
    assert found.unattributed == {NAME: 107}


def test_processes_on_mps_belong_to_the_share_that_they_are_attached_to():
    records = [record("a", Access.SHARED, share_id=SHARE_ID), record("b", Access.SHARED)]
    found = used(records, look(*TWO, sm={10: 0.2}), shares={share_name(SHARE_ID): [10]}, pods={"b": ["pod-b"]})

    assert found.memory[("team", "a", NAME)] == (100, "process")
    assert found.sm[("team", "a", NAME)] == 0.2
    assert found.memory[("team", "b", NAME)] == (0, "process")
    assert found.unattributed == {NAME: 7}


def test_what_the_driver_charges_a_pod_is_taken_before_a_sum_over_processes():
    records = [record("a", Access.SHARED, cgroup="/pod-a")]
    found = used(records, look(*TWO, cgroups={"/pod-a": 500}), pods={"a": ["pod-a"]}, pod_of=lambda _pid: "pod-a")

    assert found.memory == {("team", "a", NAME): (500, "cgroup")}


def test_two_claims_of_one_pod_cannot_be_told_apart_by_their_cgroup_or_pod():
    records = [record("a", Access.SHARED, cgroup="/pod"), record("b", Access.SHARED, cgroup="/pod")]
    found = used(
        records, look(*TWO, cgroups={"/pod": 500}), pods={"a": ["pod"], "b": ["pod"]}, pod_of=lambda _pid: "pod"
    )

    assert found.memory == {}
    assert found.unavailable == {("team", uid, NAME, what, "shared-pod") for uid in "ab" for what in ("memory", "sm")}
    assert found.unattributed == {NAME: 107}


def test_processes_of_pods_belong_to_the_claim_that_the_pod_uses():
    records = [record("a", Access.SHARED), record("b", Access.SHARED)]
    found = used(
        records,
        look(*TWO, UsingProcess(12, 1)),
        pods={"a": ["pod-a", "pod-c"], "b": ["pod-b"]},
        pod_of={10: "pod-b", 11: "pod-c"}.get,
    )

    assert found.memory == {("team", "a", NAME): (7, "process"), ("team", "b", NAME): (100, "process")}
    assert found.unattributed == {NAME: 1}


def test_processes_on_a_partition_are_those_of_its_claim_and_its_sms_cannot_be_told():
    found = used(
        [record("a", Access.PARTITION, place=PLACE)],
        look(UsingProcess(10, 100, gpu_instance=9), UsingProcess(11, 7, gpu_instance=3), no_samples=NoSamples.MIG),
        instance_of=lambda _gpu, _place: MigInstance(PLACE, gpu_instance=9),
    )

    assert found.memory == {("team", "a", NAME): (100, "process")}
    assert found.unavailable == {("team", "a", NAME, "sm", "mig")}
    assert found.unattributed == {NAME: 7}


@pytest.mark.parametrize(
    ("looks", "reason"),
    [({GPU: None}, "gpu"), (look(*TWO), "unknown-pod")],
    ids=["a GPU that does not answer", "nobody knows the pod yet"],
)
def test_a_missing_figure_is_not_a_figure_of_nothing(looks, reason):
    found = used([record("a", Access.SHARED)], looks)

    assert (found.memory, found.sm) == ({}, {})
    assert found.unavailable == {("team", "a", NAME, what, reason) for what in ("memory", "sm")}


def test_memory_that_the_driver_does_not_tell_is_said_to_be_missing():
    found = used([record("a", Access.EXCLUSIVE)], look(UsingProcess(10, None)))

    assert found.unavailable == {("team", "a", NAME, "memory", "unsupported")}
