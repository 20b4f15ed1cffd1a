"""The plan between what is and what should be. Pure state in, writes out."""

import msgspec

from dra_gpu.api.resource_v1 import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    ObjectMeta,
    OwnerReference,
    ResourceSlice,
)
from dra_gpu.apiserver.slice_diff import (
    MANAGED_BY,
    MANAGED_BY_LABEL,
    Accepted,
    PoolIdentity,
    SlicePlan,
    is_ours,
    plan_slices,
)
from dra_gpu.inventory.slices import SliceContent

IDENTITY = PoolIdentity("gpu.nvidia.com", "n", "n")
OWNER = OwnerReference("v1", "Node", "n", "uid-n", controller=True)
COUNTERS = SliceContent(counter_sets=(CounterSet("c", {"m": Counter("1")}),))


def devices(*names: str, model: str = "H100") -> SliceContent:
    return SliceContent(devices=tuple(Device(name, {"model": DeviceAttribute(string=model)}) for name in names))


def stored(plan: SlicePlan, before: tuple[ResourceSlice, ...] = ()) -> tuple[ResourceSlice, ...]:
    """What the server holds after a plan was carried out."""
    kept = {one.metadata.name: one for one in before if one not in plan.deletes}
    for number, write in enumerate(plan.writes):
        meta = msgspec.structs.replace(write.body.metadata, uid=f"u{number}", resource_version=f"{number}")
        kept[meta.name] = msgspec.structs.replace(write.body, metadata=meta)
    return tuple(kept[name] for name in sorted(kept))


def published(*contents: SliceContent) -> tuple[ResourceSlice, ...]:
    return stored(plan_slices(IDENTITY, contents, [], OWNER))


def at_generation(one: ResourceSlice, generation: int) -> ResourceSlice:
    pool = msgspec.structs.replace(one.spec.pool, generation=generation)
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, pool=pool))


def test_nothing_is_planned_when_everything_stands() -> None:
    assert plan_slices(IDENTITY, (COUNTERS, devices("a")), published(COUNTERS, devices("a")), OWNER).is_empty


def test_counter_slices_are_written_before_device_slices_wherever_they_stand_in_the_order() -> None:
    plan = plan_slices(IDENTITY, (devices("a"), COUNTERS), [], OWNER)
    assert [bool(write.content.devices) for write in plan.writes] == [False, True]


def test_a_slice_carries_our_label_and_the_owner() -> None:
    (one,) = published(devices("a"))
    assert one.metadata.labels == {MANAGED_BY_LABEL: MANAGED_BY}
    assert one.metadata.owner_references == [OWNER]
    assert is_ours(one)
    assert not is_ours(msgspec.structs.replace(one, metadata=ObjectMeta(name="x")))


def test_labels_and_annotations_of_others_survive_an_update() -> None:
    (one,) = published(devices("a"))
    meta = msgspec.structs.replace(one.metadata, labels={**one.metadata.labels, "x": "y"}, annotations={"p": "q"})
    plan = plan_slices(IDENTITY, (devices("a", model="H200"),), [msgspec.structs.replace(one, metadata=meta)], OWNER)
    body = plan.writes[0].body
    assert body.metadata.labels["x"] == "y"
    assert body.metadata.annotations == {"p": "q"}
    assert body.metadata.resource_version == one.metadata.resource_version


def test_changes_in_place_keep_the_generation_in_however_many_slices() -> None:
    before = published(COUNTERS, devices("a"), devices("b"))
    plan = plan_slices(IDENTITY, (COUNTERS, devices("a", model="X"), devices("b", model="X")), before, OWNER)
    assert (plan.generation, len(plan.writes), plan.deletes) == (1, 2, ())


def test_another_set_rewrites_all_slices_at_the_next_generation() -> None:
    plan = plan_slices(IDENTITY, (COUNTERS, devices("a", "b")), published(COUNTERS, devices("a")), OWNER)
    assert (plan.generation, len(plan.writes)) == (2, 2)


def test_one_slice_more_rewrites_all_slices_at_the_next_generation() -> None:
    plan = plan_slices(IDENTITY, (COUNTERS, devices("a"), devices("b")), published(COUNTERS, devices("a")), OWNER)
    assert plan.generation == 2
    assert {write.body.spec.pool.resource_slice_count for write in plan.writes} == {3}


def test_a_changed_counter_is_another_set() -> None:
    other = SliceContent(counter_sets=(CounterSet("c", {"m": Counter("2")}),))
    assert plan_slices(IDENTITY, (other, devices("a")), published(COUNTERS, devices("a")), OWNER).generation == 2


def test_a_missing_slice_is_written_at_the_generation_of_the_rest() -> None:
    before = [at_generation(one, 5) for one in published(COUNTERS, devices("a"))]
    plan = plan_slices(IDENTITY, (COUNTERS, devices("a")), before[:1], OWNER)
    assert (plan.generation, len(plan.writes)) == (5, 1)


def test_a_run_that_broke_off_is_finished_at_its_generation() -> None:
    old = published(COUNTERS, devices("a"))
    half = [at_generation(old[0], 2), old[1]]
    plan = plan_slices(IDENTITY, (COUNTERS, devices("a", "b")), half, OWNER)
    assert (plan.generation, [write.body.metadata.name for write in plan.writes]) == (2, [old[1].metadata.name])


def test_a_pool_of_which_nothing_is_left_keeps_its_last_generation() -> None:
    assert plan_slices(IDENTITY, (devices("a"),), [], OWNER, last_generation=7).generation == 7


def test_slices_that_are_no_longer_wanted_are_deleted() -> None:
    before = published(COUNTERS, devices("a"), devices("b"))
    plan = plan_slices(IDENTITY, (COUNTERS, devices("a")), before, OWNER)
    assert [one.metadata.name for one in plan.deletes] == [before[2].metadata.name]
    assert stored(plan, before)[0].spec.pool.resource_slice_count == 2


def test_a_slice_of_an_older_naming_is_replaced() -> None:
    (one,) = published(devices("a"))
    renamed = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name="old-abcde"))
    plan = plan_slices(IDENTITY, (devices("a"),), [renamed], OWNER)
    assert [one.metadata.name for one in plan.deletes] == ["old-abcde"]
    assert plan.generation == 2


def test_another_owner_is_written_in_place() -> None:
    other = OwnerReference("v1", "Node", "n", "uid-new", controller=True)
    plan = plan_slices(IDENTITY, (devices("a"),), published(devices("a")), other)
    assert (plan.generation, len(plan.writes)) == (1, 1)


def test_what_the_server_is_known_to_drop_is_not_written_again() -> None:
    (one,) = published(devices("a", model="kept"))
    sent, kept = devices("a", model="sent"), devices("a", model="kept")
    accepted = {one.metadata.name: Accepted(sent, kept)}
    assert plan_slices(IDENTITY, (sent,), [one], OWNER, accepted=accepted).is_empty
    assert not plan_slices(IDENTITY, (devices("a", model="new"),), [one], OWNER, accepted=accepted).is_empty
