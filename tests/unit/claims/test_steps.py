"""Each step can be applied, undone and verified any number of times, and survives being written down."""

import dataclasses

import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims import steps
from dra_gpu.claims.shares import MpsShare
from dra_gpu.claims.steps import (
    CdiDevice,
    CreateMigInstance,
    SetMigMode,
    SetTimeSlice,
    ShareOnMps,
    UnknownStep,
    WriteCdiSpec,
)
from dra_gpu.inventory.model import MigPlacement, View
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.vendors.base import FailureKind, VendorError
from tests.unit.claims.world import Node, inventory_of
from tests.unit.inventory.builders import gpu

GPU = "GPU-00000000-0000-0000-0000-000000000000"
PLACE = MigPlacement(0, 2, 1)
LONG, SHORT, DEFAULT = TimeSliceInterval.LONG, TimeSliceInterval.SHORT, TimeSliceInterval.DEFAULT


@pytest.fixture
async def node(tmp_path):
    async with Node(tmp_path).running() as node:
        yield node


def file_of(uid: str = "u1") -> WriteCdiSpec:
    return WriteCdiSpec(uid, "team/claim", (CdiDevice(f"{uid}-gpu-0", "gpu-0", GPU, View.GPU),))


def slice_step(**changes) -> SetTimeSlice:
    return SetTimeSlice(**{"gpu": GPU, "interval": LONG, **changes})


def partition_step(**changes) -> CreateMigInstance:
    return CreateMigInstance(**{"gpu": GPU, "placement": PLACE, "claim_uid": "u1", **changes})


def mode_step(**changes) -> SetMigMode:
    return SetMigMode(**{"gpu": GPU, "enabled": True, "claim_uid": "u1", **changes})


@pytest.mark.parametrize("make", [slice_step, file_of, mode_step, partition_step])
async def test_a_step_may_be_repeated_in_every_direction(node, make):
    if make is partition_step:
        await mode_step().apply(node.machine)
    step = await make().observed(node.machine)
    assert not await step.verify(node.machine)
    for _ in range(2):
        await step.apply(node.machine)
        assert await step.verify(node.machine)
    for _ in range(2):
        await step.undo(node.machine)
        assert not await step.verify(node.machine)


ON_PARTITION = ShareOnMps(GPU, MpsShare("s_1", MpsProtocol.CLASSIC), PLACE)
PARTITION_FILE = WriteCdiSpec(
    "u1", "team/claim", (CdiDevice("u1-mig", "mig", GPU, View.MIG, None, PLACE, foreign=True),)
)


@pytest.mark.parametrize(
    "step",
    [
        slice_step(former=SHORT),
        file_of(),
        mode_step(former=False),
        partition_step(foreign=True),
        ON_PARTITION,
        PARTITION_FILE,
    ],
)
def test_a_step_survives_being_written_down(step):
    assert steps.decode(steps.encode(step)) == step


def test_a_step_with_fields_of_a_newer_release_is_still_known():
    for step in (slice_step(), partition_step()):
        raw = steps.encode(step).replace(b"{", b'{"hue": {"deep": [1]}, ').replace(b'{"hue": {"deep": [1]}, }', b"{}")
        assert steps.decode(raw) == step


@pytest.mark.parametrize(
    ("raw", "kind"),
    [(b'{"step": "foldSpace"}', "foldSpace"), (b'{"step": 7}', ""), (b"{", ""), (b"null", ""), (b"", "")],
)
def test_a_step_of_another_kind_is_a_value_not_a_crash(raw, kind):
    found = steps.decode(raw)
    assert isinstance(found, UnknownStep)
    assert found.kind == kind


async def test_undoing_restores_what_was_set_before(node):
    node.vendor.slices[GPU] = SHORT
    step = await slice_step().observed(node.machine)
    await step.apply(node.machine)
    await step.undo(node.machine)
    assert node.vendor.slices[GPU] is SHORT


async def test_undoing_leaves_a_setting_that_somebody_else_made(node):
    step = await slice_step().observed(node.machine)
    await step.apply(node.machine)
    node.vendor.slices[GPU] = SHORT
    await step.undo(node.machine)
    assert node.vendor.slices[GPU] is SHORT


async def test_undoing_a_step_that_was_never_applied_changes_nothing(node):
    step = await slice_step().observed(node.machine)
    await step.undo(node.machine)
    assert node.vendor.calls == []


async def test_a_gpu_that_is_not_in_the_node_is_lost(node):
    with pytest.raises(VendorError, match="GPU-nowhere") as caught:
        await slice_step(gpu="GPU-nowhere").apply(node.machine)
    assert caught.value.kind is FailureKind.LOST


async def test_a_file_is_rebuilt_for_a_device_that_is_no_longer_published(node):
    devices = {name: device for name, device in node.inventory.devices.items() if name != "gpu-0"}
    node.inventory = dataclasses.replace(node.inventory, devices=devices)
    await file_of().apply(node.machine)
    assert [node.path for node in node.specs.read("u1").devices[0].container_edits.device_nodes] == ["/dev/nvidia0"]


async def test_a_file_never_speaks_of_another_gpu_behind_the_same_name(node):
    step = WriteCdiSpec("u1", "team/claim", (CdiDevice("u1-gpu-0", "gpu-0", "GPU-gone", View.GPU),))
    with pytest.raises(VendorError, match="GPU-gone"):
        await step.apply(node.machine)
    assert node.specs.claim_uids() == frozenset()


async def test_a_file_with_rubbish_in_it_is_not_intact(node):
    await file_of().apply(node.machine)
    node.specs.path("u1").write_text("rubbish")
    assert not await file_of().verify(node.machine)
    await file_of().apply(node.machine)
    assert await file_of().verify(node.machine)


async def test_a_file_is_not_intact_any_more_when_gpus_have_exchanged_their_device_nodes(node):
    await file_of().apply(node.machine)
    assert await file_of().verify(node.machine)

    node.inventory = inventory_of([gpu(0, minor=1), gpu(1, minor=0)])

    assert not await file_of().verify(node.machine)
    await file_of().apply(node.machine)
    assert [node.path for node in node.specs.read("u1").devices[0].container_edits.device_nodes] == ["/dev/nvidia1"]


async def test_the_file_tells_whose_it_is(node):
    await file_of().apply(node.machine)
    assert "DRA_GPU_CLAIM=team/claim" in node.specs.read("u1").container_edits.env


async def test_a_partition_that_nobody_of_ours_has_is_an_administrators_and_stays(node):
    node.vendor.put_instance(GPU, PLACE)
    step = await partition_step().observed(node.machine)
    await step.apply(node.machine)
    await step.undo(node.machine)
    assert step.foreign
    assert (GPU, PLACE) in node.vendor.instances


async def test_a_gpu_instance_without_its_compute_instance_is_no_partition_that_can_be_used(node):
    node.vendor.put_instance(GPU, PLACE, whole=False)
    step = await partition_step().observed(node.machine)
    assert step.foreign
    assert not await step.verify(node.machine)
    with pytest.raises(VendorError, match="made by an administrator"):
        await step.apply(node.machine)


async def test_a_mode_that_somebody_else_has_changed_since_stays(node):
    step = await mode_step().observed(node.machine)
    await step.apply(node.machine)
    node.vendor.mig_modes[GPU] = False
    node.vendor.calls.clear()
    await step.undo(node.machine)
    assert node.vendor.calls == []


async def test_a_mode_stays_while_an_administrators_partition_is_on_the_gpu(node):
    step = await mode_step().observed(node.machine)
    await step.apply(node.machine)
    node.vendor.put_instance(GPU, PLACE)
    await step.undo(node.machine)
    assert node.vendor.mig_modes[GPU]


async def test_leaving_mig_mode_for_a_whole_gpu_is_not_undone(node):
    node.vendor.mig_modes[GPU] = True
    step = await mode_step(enabled=False).observed(node.machine)
    await step.apply(node.machine)
    await step.undo(node.machine)
    assert not node.vendor.mig_modes[GPU]


async def test_a_partition_that_is_not_there_is_no_intact_file_and_cannot_be_written_of(node):
    assert not await PARTITION_FILE.verify(node.machine)
    with pytest.raises(VendorError, match="has no partition"):
        await PARTITION_FILE.apply(node.machine)
