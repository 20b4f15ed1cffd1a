"""Which views a GPU that can be partitioned is published as, whatever state it is in."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.inventory import slices
from dra_gpu.inventory.model import View
from dra_gpu.inventory.options import ViewOptions
from tests.unit.inventory import boards
from tests.unit.inventory.boards import A100, H100, RTX_PRO, instance, partitionable
from tests.unit.inventory.builders import gpu
from tests.unit.inventory.published import EVERY, everything, layout, names


def test_a_gpu_that_switches_live_offers_the_whole_shares_and_every_place_at_once():
    built = layout(partitionable(H100))

    assert names(built, View.GPU) == ["gpu-0"]
    assert names(built, View.SHARED) == ["gpu-0-shared"]
    assert sorted(names(built, View.MIG)) == sorted(
        f"gpu-0-mig-{profile}-{start}"
        for profile, starts in {
            "1g10gb-19": range(7),
            "1g20gb-15": (0, 2, 4, 6),
            "2g20gb-14": (0, 2, 4),
            "3g40gb-9": (0, 4),
            "4g40gb-5": (0,),
            "7g80gb-0": (0,),
        }.items()
        for start in starts
    )


def modes():
    return st.tuples(st.booleans(), st.booleans())


@given(st.sampled_from(sorted(set(boards.BOARDS) - boards.NEEDS_RESET)), modes(), st.data())
def test_what_a_live_gpu_publishes_depends_neither_on_its_mode_nor_on_our_partitions(board, mode, data):
    places = [place for profile in boards.profiles(board) for place in profile.placements]
    chosen = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=7))
    made = [
        instance(board, next(p.name for p in boards.profiles(board) if p.profile == place.profile), place.start)
        for place in chosen
    ]
    half_made = [replace(one, compute_instance=None, uuid=None) if data.draw(st.booleans()) else one for one in made]
    idle = partitionable(board)
    enabled, pending = mode
    busy = replace(idle, mig_enabled=enabled, mig_pending=pending, mig_instances=tuple(half_made))

    before = layout(idle, options=everything(board))
    after = layout(busy, options=everything(board), ours={(busy.uuid, place) for place in chosen})

    assert slices.arrange(after) == slices.arrange(before)
    assert after.notes == before.notes == ()


@pytest.mark.case("C68")
def test_a_gpu_that_cannot_be_partitioned_is_published_as_if_nobody_had_asked():
    plain = gpu(0, mig_capable=False)

    built = layout(plain, options=ViewOptions(EVERY, shared_mig_profiles=("1g.10gb",)))

    assert slices.arrange(built) == slices.arrange(
        layout(plain, options=ViewOptions((View.GPU, View.SHARED, View.MONITOR)))
    )
    assert built.notes == ()


def test_a_gpu_that_needs_a_reset_offers_no_partition_while_its_mode_is_off():
    built = layout(partitionable(A100))

    assert list(built.inventory.devices) == ["gpu-0", "gpu-0-shared", "gpu-0-monitor"]
    assert built.notes == ()


def test_a_gpu_that_needs_a_reset_offers_only_partitions_while_its_mode_is_on():
    built = layout(partitionable(A100, mig_enabled=True, mig_pending=True))

    assert names(built, View.GPU) == names(built, View.SHARED) == []
    assert names(built, View.MONITOR) == ["gpu-0-monitor"]
    assert len(names(built, View.MIG)) == 7 + 4 + 3 + 2 + 1 + 1


@pytest.mark.case("C71")
@pytest.mark.parametrize(("enabled", "value", "word"), [(False, "enabled", "on"), (True, "disabled", "off")])
def test_a_pending_mode_keeps_new_claims_off_everything_but_the_monitor(enabled, value, word):
    built = layout(partitionable(A100, mig_enabled=enabled, mig_pending=not enabled))

    tainted = {
        device.view
        for device in built.inventory.devices.values()
        for taint in device.wire.taints
        if (taint.key, taint.value, taint.effect) == ("gpu.nvidia.com/mig-mode-pending", value, "NoSchedule")
    }
    assert tainted == {device.view for device in built.inventory.devices.values()} - {View.MONITOR}
    [note] = built.notes
    assert note.reason == "MigModePending"
    assert f"MIG mode {word} pending and needs a reset or reboot" in note.text


def test_a_gpu_that_switches_live_has_no_taint_while_its_mode_is_pending():
    built = layout(partitionable(H100, mig_enabled=False, mig_pending=True))

    assert not any(device.wire.taints for device in built.inventory.devices.values())


@pytest.mark.case("C70")
def test_mig_mode_without_instances_costs_that_gpu_alone():
    empty = partitionable(A100, 0, mig_enabled=True, mig_pending=True)
    halves = tuple(instance(A100, "3g.40gb", start) for start in (0, 4))
    whole, cut = partitionable(A100, 1), replace(empty, uuid="GPU-2", pci_address="0000:12:00.0", minor=2)

    built = layout(empty, whole, replace(cut, mig_instances=halves), options=ViewOptions(EVERY, mig_profiles=()))

    assert names(built, View.GPU) == ["gpu-1"]
    assert names(built, View.MIG) == ["gpu-2-mig-3g40gb-9-0", "gpu-2-mig-3g40gb-9-4"]
    assert ("GpuNotOffered", "gpu-0") in [(note.reason, note.text.split()[0]) for note in built.notes]


@pytest.mark.case("C73")
def test_instances_of_the_administrator_are_offered_whatever_profiles_are_chosen():
    sevenths = tuple(instance(H100, "1g.10gb", start) for start in range(7))

    built = layout(
        partitionable(H100, mig_enabled=True, mig_instances=sevenths), options=ViewOptions(mig_profiles=("3g.40gb",))
    )

    assert sorted(names(built, View.MIG)) == [f"gpu-0-mig-1g10gb-19-{start}" for start in range(7)]
    assert names(built, View.GPU) == names(built, View.SHARED) == []
    assert [note.reason for note in built.notes] == ["MigInstancesInPlace"]


def test_an_instance_of_the_administrator_is_the_device_that_a_claim_would_create_and_tells_its_uuid():
    [dynamic] = layout(partitionable(H100)).inventory.devices["gpu-0-mig-1g10gb-19-2"].wire.consumes_counters
    found = instance(H100, "1g.10gb", 2)

    wire = layout(partitionable(H100, mig_instances=(found,))).inventory.devices["gpu-0-mig-1g10gb-19-2"].wire

    assert wire.consumes_counters == [dynamic]
    assert wire.attributes["uuid"].string == found.uuid


def test_what_lies_where_the_administrators_instance_is_is_not_offered():
    built = layout(partitionable(H100, mig_instances=(instance(H100, "2g.20gb", 2),)))

    assert sorted(name.removeprefix("gpu-0-mig-") for name in names(built, View.MIG)) == sorted(
        f"{profile}-{start}"
        for profile, starts in {
            "1g10gb-19": (0, 1, 4, 5, 6),
            "1g20gb-15": (0, 4, 6),
            "2g20gb-14": (0, 2, 4),
            "3g40gb-9": (4,),
        }.items()
        for start in starts
    )


def test_what_the_administrators_instance_has_the_only_one_of_is_not_offered():
    options = ViewOptions(mig_profiles=("1g.10gb+me",))

    built = layout(partitionable(H100, mig_instances=(instance(H100, "1g.10gb+me", 3),)), options=options)

    assert names(built, View.MIG) == ["gpu-0-mig-1g10gb-me-20-3"]


def test_an_instance_that_is_cut_up_or_unfinished_is_not_offered_and_is_told():
    built = layout(partitionable(H100, mig_instances=(instance(H100, "3g.40gb", 4, whole=False),)))

    assert "gpu-0-mig-3g40gb-9-4" not in names(built, View.MIG)
    assert names(built, View.GPU) == []
    assert {note.reason for note in built.notes} == {"MigInstanceNotOffered", "MigInstancesInPlace"}


def test_an_instance_of_a_profile_that_the_gpu_does_not_report_stands_in_the_way_and_nothing_more():
    unknown = replace(
        instance(H100, "3g.40gb", 4), placement=replace(instance(H100, "3g.40gb", 4).placement, profile=99)
    )

    built = layout(partitionable(H100, mig_instances=(unknown,)))

    assert all(int(name.rsplit("-", 1)[1]) < 4 for name in names(built, View.MIG))
    assert names(built, View.MIG)


def test_profiles_with_a_plus_are_published_only_by_name():
    by_default = layout(partitionable(RTX_PRO)).inventory.devices.values()
    named = layout(partitionable(RTX_PRO), options=ViewOptions(mig_profiles=("1g.24gb+me", "1g.24gb+GFX")))

    assert not [device for device in by_default if "+" in str(device.wire.attributes.get("profile"))]
    assert {d.wire.attributes["profile"].string for d in named.inventory.devices.values() if d.view is View.MIG} == {
        "1g.24gb+me",
        "1g.24gb+gfx",
    }


def test_fractions_are_published_of_the_profiles_that_are_named_for_it():
    options = ViewOptions(EVERY, mig_profiles=("3g.40gb",), shared_mig_profiles=("1g.10gb",))

    built = layout(partitionable(H100), options=options)

    assert {name.split("-")[3] for name in names(built, View.MIG)} == {"3g40gb"}
    assert sorted(names(built, View.SHARED_MIG)) == [f"gpu-0-mig-1g10gb-19-{start}-shared" for start in range(7)]
