"""What stands in a slice about a partition, and how slices are cut."""

from dataclasses import fields, replace

import pytest

from dra_gpu.inventory import naming, slices, validation
from dra_gpu.inventory.model import View
from dra_gpu.inventory.options import ViewOptions
from tests.unit.inventory import boards
from tests.unit.inventory.boards import A100, H100, RTX_PRO, instance, partitionable
from tests.unit.inventory.published import EVERY, everything, layout, names, talkative


def test_a_fraction_has_the_capacities_of_a_share_in_the_size_of_its_partition():
    options = ViewOptions(EVERY, shared_mig_profiles=("3g.40gb",))

    device = layout(partitionable(H100), options=options).inventory.devices["gpu-0-mig-3g40gb-9-4-shared"].wire

    assert device.allow_multiple_allocations
    assert device.attributes["isolation"].string == "cooperative"
    assert {name: capacity.value for name, capacity in device.capacity.items()} == {
        "computePercent": "100",
        "clients": str(48 * 3 // 7),
        "memory": "40448Mi",
    }
    assert {name: capacity.request_policy.default for name, capacity in device.capacity.items()} == {
        "computePercent": "1",
        "clients": "1",
        "memory": "1Gi",
    }


@pytest.mark.case("C59")
@pytest.mark.parametrize(("board", "row"), [(board, row) for board in boards.BOARDS for row in boards.rows(board)])
def test_a_partition_tells_its_profile_in_the_vendors_spelling_and_its_memory_exactly(board, row):
    one = partitionable(board, mig_enabled=True, mig_pending=True)
    [profile] = [profile for profile in one.mig_profiles if profile.name == row["name"]]

    device = layout(one, options=ViewOptions(mig_profiles=(row["name"],))).inventory.devices[
        naming.partition("gpu-0", profile, profile.placements[0])
    ]

    assert device.wire.attributes["profile"].string == row["name"]
    assert device.wire.capacity["memory"].value.removesuffix("Mi") == str(profile.memory_bytes // 2**20) or (
        device.wire.capacity["memory"].value == f"{profile.memory_bytes // 2**30}Gi"
    )


def test_a_partition_has_the_attributes_and_capacities_of_nvidias_driver():
    wire = layout(talkative(H100)).inventory.devices["gpu-0-mig-3g40gb-9-0"].wire

    assert {
        "type",
        "parentUUID",
        "profile",
        "productName",
        "brand",
        "architecture",
        "cudaComputeCapability",
        "driverVersion",
        "cudaDriverVersion",
        "addressingMode",
        "resource.kubernetes.io/pciBusID",
        "resource.kubernetes.io/pcieRoot",
        "resource.kubernetes.io/numaNode",
    } <= set(wire.attributes)
    assert {name: capacity.value for name, capacity in wire.capacity.items()} == {
        "memory": "40448Mi",
        "multiprocessors": "60",
        "copyEngines": "3",
        "decoders": "3",
        "encoders": "0",
        "jpegEngines": "3",
        "ofaEngines": "0",
    }


def test_the_gpu_that_tells_everything_does():
    silent = [one.name for one in fields(talkative(H100)) if getattr(talkative(H100), one.name) in (None, ())]

    assert silent == ["mig_instances"]


@pytest.mark.parametrize("board", boards.BOARDS)
@pytest.mark.parametrize("state", ["off", "on", "pending", "with an instance"])
def test_no_device_of_any_board_has_more_than_32_attributes_and_capacities(board, state):
    first = boards.rows(board)[0]
    facts = {
        "off": {},
        "on": {"mig_enabled": True, "mig_pending": True},
        "pending": {"mig_enabled": True, "mig_pending": False},
        "with an instance": {
            "mig_enabled": True,
            "mig_instances": (instance(board, first["name"], first["starts"][0]),),
        },
    }
    built = layout(talkative(board, **facts[state]), options=everything(board))

    counts = [len(device.wire.attributes) + len(device.wire.capacity) for device in built.inventory.devices.values()]
    assert max(counts) <= 32
    assert validation.check("gpu.nvidia.com", "node", slices.arrange(built))[1] == []


@pytest.mark.case("C49")
@pytest.mark.case("C50")
@pytest.mark.parametrize("count", [1, 2, 9, 11, 16])
@pytest.mark.parametrize("board", [boards.A30, A100, H100, RTX_PRO])
def test_slices_with_every_partition_stay_within_the_limits_of_the_api(board, count):
    gpus = [partitionable(board, number, mig_enabled=True, mig_pending=False) for number in range(count)]
    built = layout(*gpus, options=everything(board))

    contents = slices.arrange(built)

    assert validation.check("gpu.nvidia.com", "node", contents) == (contents, [])
    assert all(len(content.devices) <= 64 and len(content.counter_sets) <= 8 for content in contents)
    published = [device.name for content in contents for device in content.devices]
    assert published == list(built.inventory.devices)


def test_partitions_stand_behind_the_views_of_whole_gpus_two_gpus_a_slice():
    contents = slices.arrange(layout(*[partitionable(H100, number) for number in range(5)]))

    assert [sorted({device.name.split("-mig-")[0] for device in content.devices}) for content in contents[2:]] == [
        ["gpu-0", "gpu-1"],
        ["gpu-2", "gpu-3"],
        ["gpu-4"],
    ]
    assert not [device.name for device in contents[1].devices if "-mig-" in device.name]


def test_one_gpu_a_slice_where_two_would_not_fit():
    contents = slices.arrange(
        layout(*[partitionable(RTX_PRO, number) for number in range(2)], options=everything(RTX_PRO))
    )

    assert [len({device.name.split("-mig-")[0] for device in content.devices}) for content in contents[2:]] == [1, 1]


def test_partitions_fill_the_first_gpu_and_whole_gpus_the_last():
    built = layout(partitionable(H100, 0), partitionable(H100, 1))

    assert names(built, View.GPU) == ["gpu-1", "gpu-0"]
    assert [name.split("-mig-")[0] for name in names(built, View.MIG)] == ["gpu-0"] * 18 + ["gpu-1"] * 18


def test_an_attribute_has_one_type_in_a_view_on_all_boards():
    gpus = [
        replace(talkative(board), uuid=f"GPU-{n}", pci_address=f"0000:{n:02x}:00.0", minor=n)
        for n, board in enumerate(boards.BOARDS)
    ]

    types: dict[tuple[View, str], set[str]] = {}
    for device in layout(*gpus, options=ViewOptions(EVERY)).inventory.devices.values():
        for name, attribute in device.wire.attributes.items():
            kind = next(f for f in attribute.__struct_fields__ if getattr(attribute, f) is not None)
            types.setdefault((device.view, name), set()).add(kind)
    assert all(len(kinds) == 1 for kinds in types.values())
