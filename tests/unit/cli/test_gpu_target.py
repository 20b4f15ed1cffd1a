"""Which GPU a person means."""

import pytest

from dra_gpu.api import cordon
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.cli.gpu_target import NoSuchGpuError, find, published
from dra_gpu.cli.listing import DRIVER
from dra_gpu.inventory.model import MigPlacement, MigProfile, View
from tests.unit.cli.published import slices_of
from tests.unit.inventory.builders import GIB, gpu

HALF = MigProfile(9, 9, "3g.40gb", 3, 40 * GIB, 60, placements=(MigPlacement(9, 0, 4), MigPlacement(9, 4, 4)))
EVERY_VIEW = (View.GPU, View.SHARED, View.MIG, View.MONITOR)


def divisible(number):
    return gpu(number, mig_capable=True, mig_live=True, mig_enabled=False, mig_pending=False, mig_profiles=(HALF,))


@pytest.fixture
def gpus():
    return published(slices_of(divisible(0), divisible(1), of=EVERY_VIEW))


@pytest.mark.parametrize(
    "text",
    [
        "gpu-1",
        "gpu-1-shared",
        "gpu-1-mig-3g40gb-9-4",
        gpu(1).uuid,
        gpu(1).uuid.lower(),
        "0000:11:00.0",
        "00000000:11:00.0",
        "11:00.0",
    ],
)
def test_a_gpu_is_named_by_any_device_by_its_uuid_or_by_its_pci_address(gpus, text):
    assert find(gpus, "node-a", text).uuid == gpu(1).uuid


def test_every_device_but_the_one_that_only_watches_is_taken_out_with_a_gpu(gpus):
    found = find(gpus, "node-a", "gpu-0")

    assert set(found.usable) == {"gpu-0", "gpu-0-shared", "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4"}
    assert "gpu-0-monitor" in found.devices


def test_a_gpu_that_does_not_exist_is_answered_with_those_that_do(gpus):
    with pytest.raises(
        NoSuchGpuError, match=r"node node-a has no GPU 'gpu-7': .*gpu-0 \(GPU-00000000-.*0000:10:00.0\)"
    ):
        find(gpus, "node-a", "gpu-7")


@pytest.mark.parametrize("text", ["", " ", "\0", "gpu-0,gpu-1", "../gpu-0", "gpu-0🦊", "x" * 5000])
def test_what_names_no_gpu_names_none_not_even_one_without_a_uuid(gpus, text):
    rule = DeviceTaintRule(
        metadata=ObjectMeta(name="r"), spec=DeviceTaintRuleSpec(DeviceTaintSelector(DRIVER, "node-a", "gpu-9"))
    )

    with pytest.raises(NoSuchGpuError, match="has no GPU"):
        find(gpus, "node-a", text, [rule], DRIVER)


def test_a_node_that_does_not_exist_is_answered_with_those_that_do(gpus):
    with pytest.raises(NoSuchGpuError, match="no GPU is published on node 'node-z': those with GPUs are node-a"):
        find(gpus, "node-z", "gpu-0")


def test_gpus_of_one_name_on_two_nodes_are_two():
    gpus = published([*slices_of(gpu(0), node="node-a"), *slices_of(gpu(5, minor=0), node="node-b")])

    assert find(gpus, "node-b", "gpu-0").uuid == gpu(5).uuid


@pytest.mark.parametrize("text", ["gpu-3", "gpu-3-shared", "GPU-gone"])
def test_a_gpu_that_is_not_published_any_more_is_known_by_its_rules(gpus, text):
    rule = DeviceTaintRule(
        metadata=ObjectMeta(name="r", annotations={cordon.GPU_ANNOTATION: "GPU-gone"}),
        spec=DeviceTaintRuleSpec(DeviceTaintSelector(DRIVER, "node-a", "gpu-3-shared")),
    )

    found = find(gpus, "node-a", text, [rule], DRIVER)

    assert (found.name, found.uuid, found.pool) == ("gpu-3", "GPU-gone", "node-a")
