"""Plans of claims that have a partition of a GPU, whole or in shares."""

import pytest

from dra_gpu.api.dra_gpu_v1alpha1 import SharedStrategy
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.outcome import Refusal
from dra_gpu.claims.plan import Plan
from dra_gpu.claims.record import Access, Hold
from dra_gpu.claims.steps import CreateMigInstance, LimitMemory, SetMigMode, ShareOnMps, WriteCdiSpec
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol, SharingAbility
from dra_gpu.mps.service import Limits
from tests.unit.claims.test_plan import plan as plan_on
from tests.unit.claims.world import (
    EVERY_VIEW,
    config,
    inventory_of,
    partitionable_gpus,
    result,
    share,
    share_id,
    shared_config,
)
from tests.unit.inventory.boards import A100, partitionable
from tests.unit.inventory.builders import GIB

SMALL, BIG, OTHER = "gpu-0-mig-1g10gb-19-2", "gpu-0-mig-3g40gb-9-4", "gpu-1-mig-1g10gb-19-0"
SHARED = f"{SMALL}-shared"
PLACE, BIG_PLACE = MigPlacement(0, 2, 1), MigPlacement(2, 4, 4)
GPUS = partitionable_gpus()
UUID = GPUS[0].uuid
INVENTORY = inventory_of(GPUS, options=EVERY_VIEW)
AROUND = Surroundings(
    lambda device: SharingAbility(MpsProtocol.NAMESPACE if device.placement is None else MpsProtocol.CLASSIC),
    pods=("p1",),
    cgroup_of=lambda pod: f"/kubepods/{pod}",
)


def plan(*results, configs=(), inventory=INVENTORY, around=AROUND) -> Plan | Refusal:
    return plan_on(*results, configs=configs, inventory=inventory, around=around)


def steps(made: Plan | Refusal, kind):
    assert isinstance(made, Plan), made
    return [step for step in made.steps if isinstance(step, kind)]


def refusal(made: Plan | Refusal) -> str:
    assert isinstance(made, Refusal)
    assert not made.retryable
    return made.message


def mps(**fields):
    return config("MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": fields})


def test_a_partition_is_made_in_mig_mode_and_then_its_file_is_written():
    made = plan(SMALL)
    assert made.steps[:2] == (
        SetMigMode(UUID, enabled=True, claim_uid="aaaa"),
        CreateMigInstance(UUID, PLACE, "aaaa"),
    )
    [device] = made.steps[2].devices
    assert (device.device, device.gpu, device.placement) == (SMALL, UUID, PLACE)
    assert made.replaces_settings


def test_its_memory_units_are_held_and_its_gpu_locked():
    made = plan(SMALL)
    assert made.holds == (Hold(SMALL, UUID, Access.PARTITION, units=0b100),)
    assert made.lock_keys == (GPUS[0].pci_address,)


def test_partitions_of_one_gpu_and_of_several_are_made_gpu_by_gpu():
    made = plan(result(OTHER, "c"), result(BIG, "b"), result(SMALL, "a"))
    assert [(type(step), step.gpu) for step in made.steps[:-1]] == [
        (SetMigMode, UUID),
        (CreateMigInstance, UUID),
        (CreateMigInstance, UUID),
        (SetMigMode, GPUS[1].uuid),
        (CreateMigInstance, GPUS[1].uuid),
    ]
    assert [device.device for device in made.devices] == [OTHER, BIG, SMALL]


def test_a_gpu_whose_mode_changes_only_with_a_reset_is_never_asked_to_change_it():
    gpu = partitionable(A100, mig_enabled=True, mig_pending=True)
    inventory = inventory_of([gpu], options=EVERY_VIEW)
    assert [type(step) for step in plan("gpu-0-mig-1g10gb-19-2", inventory=inventory).steps] == [
        CreateMigInstance,
        WriteCdiSpec,
    ]


@pytest.mark.case("C71")
@pytest.mark.parametrize(("enabled", "device"), [(True, "gpu-0-mig-1g10gb-19-2"), (False, "gpu-0")])
def test_while_a_change_of_the_mode_waits_for_a_reset_nothing_of_the_gpu_is_given_to_anybody(enabled, device):
    gpu = partitionable(A100, mig_enabled=enabled, mig_pending=not enabled)
    refused = plan(device, inventory=inventory_of([gpu], options=EVERY_VIEW))
    assert isinstance(refused, Refusal)
    assert refused.retryable
    for word in (device, gpu.uuid, "waits for a reset", "reset the GPU or reboot the node"):
        assert word in refused.message


@pytest.mark.parametrize("device", ["gpu-0", share("gpu-0-shared", 1)])
def test_a_whole_gpu_is_taken_out_of_mig_mode_only_if_it_is_known_to_be_in_it(device):
    known = Surroundings(AROUND.ability, in_mig_mode=lambda gpu: gpu.uuid == UUID)
    assert steps(plan(device), SetMigMode) == []
    assert steps(plan(device, around=known), SetMigMode) == [SetMigMode(UUID, enabled=False, claim_uid="aaaa")]


def test_watching_a_gpu_never_changes_its_mode():
    known = Surroundings(AROUND.ability, in_mig_mode=lambda _gpu: True)
    assert [type(step) for step in plan(result("gpu-0-monitor", admin=True), around=known).steps] == [WriteCdiSpec]


@pytest.mark.parametrize("device", [result(SMALL, "main", admin=True), share(SHARED, 1, "main", admin=True)])
def test_admin_access_to_a_partition_is_refused_with_what_to_write_instead(device):
    message = refusal(plan(device))
    for word in ("'main'", "nothing to watch", "monitor.nvidia.com"):
        assert word in message


@pytest.mark.parametrize(("other", "words"), [(SMALL, "allocated twice"), ("gpu-0", "cannot exist at once")])
def test_an_allocation_that_contradicts_itself_is_refused(other, words):
    message = refusal(plan(result(SMALL, "one"), result(other, "two")))
    for word in (words, "'one'", "'two'", "recreate the claim"):
        assert word in message


def test_time_slicing_of_a_partition_is_accepted_and_changes_nothing():
    made = plan(SMALL, configs=[config("MigDeviceConfig", sharing={"strategy": "TimeSlicing"})])
    assert [type(step) for step in made.steps] == [SetMigMode, CreateMigInstance, WriteCdiSpec]


def test_a_config_for_whole_gpus_that_names_the_request_of_a_partition_is_refused():
    assert "takes a MigDeviceConfig" in refusal(plan(result(SMALL, "main"), configs=[config(requests=["main"])]))


def test_a_partition_may_be_shared_by_mps_within_its_claim():
    made = plan(SMALL, configs=[mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="4Gi")])
    [step] = steps(made, ShareOnMps)
    assert (step.gpu, step.placement) == (UUID, PLACE)
    assert (step.share.protocol, step.share.limits) == (MpsProtocol.CLASSIC, Limits(50, 4 * GIB))
    assert [type(one) for one in made.steps] == [SetMigMode, CreateMigInstance, ShareOnMps, WriteCdiSpec]
    assert made.steps[-1].devices[0].share == step.share


def test_a_limit_may_name_a_partition_by_its_index_alone():
    made = plan(SMALL, configs=[mps(defaultPerDevicePinnedMemoryLimit={"0": "4Gi"})])
    assert steps(made, ShareOnMps)[0].share.limits.memory_bytes == 4 * GIB
    message = refusal(plan(SMALL, configs=[mps(defaultPerDevicePinnedMemoryLimit={UUID: "4Gi"})]))
    assert message.endswith("names no device that this config governs: write 0")


def test_a_limit_beyond_the_partition_is_refused_although_the_gpu_has_more():
    assert f"{SMALL} has" in refusal(plan(SMALL, configs=[mps(defaultPinnedDeviceMemoryLimit="20Gi")]))


def test_a_share_of_a_partition_is_held_beside_others_and_limited_by_classic_mps():
    made = plan(share(SHARED, 7, percent=30, memory="2Gi"))
    assert made.holds == (Hold(SHARED, UUID, Access.PARTITION_SHARE, share_id(7), 0b100),)
    [held] = made.shares
    assert (held.placement, held.strategy) == (PLACE, SharedStrategy.MPS)
    assert (held.compute, held.memory) == (Mechanism.COOPERATIVE, Mechanism.COOPERATIVE)
    assert held.gpu_memory_bytes == GPUS[0].mig_profile(PLACE).memory_bytes
    assert steps(made, LimitMemory) == []
    assert [type(step) for step in made.steps] == [SetMigMode, CreateMigInstance, ShareOnMps, WriteCdiSpec]


def test_several_shares_of_one_partition_make_it_once():
    slices = shared_config(strategy="TimeSlicing")
    made = plan(share(SHARED, 7, "a", memory="2Gi"), share(SHARED, 8, "b", memory="2Gi"), configs=[slices])
    assert steps(made, CreateMigInstance) == [CreateMigInstance(UUID, PLACE, "aaaa")]
    assert steps(made, ShareOnMps) == []
    assert len(made.steps[-1].devices) == 2


def test_required_refuses_what_mps_can_do_inside_a_partition_and_says_why():
    message = refusal(plan(share(SHARED, 7), configs=[shared_config(enforcement="Required")]))
    for word in (SHARED, "`cooperative`", "inside a partition", "BestEffort", "mig.nvidia.com"):
        assert word in message
