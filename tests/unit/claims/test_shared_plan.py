"""Plans of claims that share a GPU: with other claims, or whole among their own containers."""

import pytest

from dra_gpu.api.dra_gpu_v1alpha1 import SharedStrategy
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.outcome import Refusal
from dra_gpu.claims.plan import Plan
from dra_gpu.claims.record import Access, Hold
from dra_gpu.claims.shares import MemoryCgroup, claim_share_name, is_ours, share_name
from dra_gpu.claims.steps import LimitMemory, SetTimeSlice, ShareOnMps, WriteCdiSpec
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from dra_gpu.mps.service import Limits
from tests.unit.claims.test_plan import plan
from tests.unit.claims.world import config, result, share, share_id, shared_config
from tests.unit.inventory.builders import GIB, gpu

MIB = 2**20
NEW = SharingAbility(MpsProtocol.NAMESPACE, memory_limits=True)
IN_A_POD = Surroundings(lambda _gpu: NEW, pods=("p1",), cgroup_of=lambda pod: f"/kubepods/{pod}")
NAME = "s_00000007555544443333222222222222"


def steps(made: Plan | Refusal, kind):
    assert isinstance(made, Plan), made
    return [step for step in made.steps if isinstance(step, kind)]


def mps(**fields):
    return config(sharing={"strategy": "MPS", "mpsConfig": fields})


def limits(made: Plan | Refusal) -> Limits:
    [step] = steps(made, ShareOnMps)
    return step.share.limits


def refusal(made: Plan | Refusal) -> str:
    assert isinstance(made, Refusal)
    assert not made.retryable
    return made.message


def test_names_of_shares_are_34_characters_that_mps_takes_and_nobody_else_gives():
    for name in (share_name(share_id(7)), claim_share_name(share_id(7)), claim_share_name("x")):
        assert len(name) == 34
        assert is_ours(name)
    assert share_name(share_id(7)) == NAME
    assert not is_ours("default")


def test_a_share_is_held_beside_others_and_has_what_the_scheduler_counted():
    made = plan(share("gpu-1-shared", 7, percent=20, memory="10Gi"), around=IN_A_POD)
    assert made.holds == (Hold("gpu-1-shared", gpu(1).uuid, Access.SHARED, share_id(7)),)
    [held] = made.shares
    assert (held.percent, held.memory_bytes, held.clients) == (20, 10 * GIB, 1)
    assert held.strategy is SharedStrategy.MPS
    assert made.lock_keys == (gpu(1).pci_address,)


def test_a_share_is_made_on_mps_then_its_memory_limited_then_its_file_written():
    made = plan(share("gpu-1-shared", 7), around=IN_A_POD)
    assert [type(step) for step in made.steps] == [ShareOnMps, LimitMemory, WriteCdiSpec]
    [on_mps] = steps(made, ShareOnMps)
    assert (on_mps.gpu, on_mps.share.name, on_mps.share.limits) == (gpu(1).uuid, NAME, Limits(20, 10 * GIB))
    assert made.cgroups == (MemoryCgroup(gpu(1).uuid, "/kubepods/p1", 10 * GIB),)
    assert made.steps[-1].devices[0].share == on_mps.share


def test_the_answer_names_the_share_and_an_id_of_its_own():
    [device] = plan(share("gpu-1-shared", 7)).devices
    assert device.share_id == share_id(7)
    assert device.cdi_ids == (f"k8s.gpu.nvidia.com/claim=aaaa-gpu-1-shared-{share_id(7)}",)


def test_time_slices_change_nothing_on_the_gpu():
    made = plan(share("gpu-1-shared", 7), configs=[shared_config(strategy="TimeSlicing")])
    assert [type(step) for step in made.steps] == [WriteCdiSpec]
    assert made.shares[0].strategy is SharedStrategy.TIME_SLICING


def test_memory_is_counted_in_whole_mib():
    assert limits(plan(share("gpu-1-shared", 7, memory="10G"))).memory_bytes == 9536 * MIB


def test_low_priority_reaches_mps():
    assert limits(plan(share("gpu-1-shared", 7), configs=[shared_config(clientPriority="BelowNormal")])).low_priority


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([share("gpu-0-shared", 1, "a"), share("gpu-1-shared", 2, "b")], "gpu-0-shared, gpu-1-shared"),
        ([share("gpu-0-shared", 1, "a"), share("gpu-0-shared", 2, "b")], "one MPS daemon"),
    ],
)
def test_two_shares_for_one_claim_are_refused_with_the_way_out(devices, words):
    message = refusal(plan(*devices))
    assert words in message
    assert "a claim of its own" in message


def test_two_shares_by_time_slices_follow_no_daemon():
    configs = [shared_config(strategy="TimeSlicing")]
    assert isinstance(plan(share("gpu-0-shared", 1), share("gpu-1-shared", 2), configs=configs), Plan)


def test_mps_and_time_slices_for_one_gpu_are_refused():
    configs = [
        type(one)("FromClaim", [request], one.opaque)
        for request, one in (("a", shared_config(strategy="TimeSlicing")), ("b", shared_config(strategy="MPS")))
    ]
    message = refusal(plan(share("gpu-0-shared", 1, "a"), share("gpu-0-shared", 2, "b"), configs=configs))
    assert "cannot be mixed" in message


@pytest.mark.parametrize(
    ("allocated", "words"),
    [
        (result("gpu-0-shared"), "DRAConsumableCapacity"),
        (share("gpu-0-shared", 1, percent=0), "1 to 100 percent"),
        (share("gpu-0-shared", 1, percent=101), "1 to 100 percent"),
        (share("gpu-0-shared", 1, memory="1m"), "at least 1Mi"),
        (share("gpu-0-shared", 1, memory="lots"), "consumedCapacity.memory"),
    ],
)
def test_an_allocation_that_is_no_share_is_refused(allocated, words):
    assert words in refusal(plan(allocated))


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([share("gpu-0-shared", 1, memory="500Gi")], "500Gi of memory"),
        ([share("gpu-0-shared", number, request, percent=60) for number, request in ((1, "a"), (2, "b"))], "120 %"),
    ],
)
def test_more_than_the_gpu_has_is_refused_at_once_also_when_nobody_else_has_anything(shares, words):
    assert words in refusal(plan(*shares, configs=[shared_config(strategy="TimeSlicing")]))


def test_a_share_id_that_could_be_a_path_is_refused():
    allocated = share("gpu-0-shared", 1)
    allocated = type(allocated)(
        allocated.request,
        allocated.driver,
        allocated.pool,
        allocated.device,
        None,
        "../../x",
        allocated.consumed_capacity,
    )
    assert "no UUID" in refusal(plan(allocated))


def test_admin_access_to_a_share_counts_and_changes_nothing():
    made = plan(share("gpu-0-shared", 1, admin=True), configs=[shared_config(strategy="MPS")], around=IN_A_POD)
    assert [type(step) for step in made.steps] == [WriteCdiSpec]
    assert [hold.access for hold in made.holds] == [Access.OBSERVER]
    assert made.shares == ()


@pytest.mark.case("C98")
def test_a_config_of_nvidias_kind_that_names_a_share_is_refused_and_not_ignored():
    message = refusal(plan(share("gpu-0-shared", 1, "share"), configs=[config(requests=["share"])]))
    assert "takes a SharedGpuConfig" in message


def test_a_whole_gpu_is_shared_within_its_claim_by_the_same_daemon():
    made = plan("gpu-2", configs=[mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi")])
    assert limits(made) == Limits(50, 10 * GIB)
    assert made.steps[0].share.name == claim_share_name("aaaa")
    assert made.steps[-1].devices[0].share == made.steps[0].share
    assert [hold.access for hold in made.holds] == [Access.EXCLUSIVE]
    assert made.shares == ()
    assert steps(made, SetTimeSlice) == []


@pytest.mark.parametrize("key", ["0", gpu(2).uuid])
def test_a_limit_for_one_device_outweighs_the_default(key):
    fields = {"defaultPinnedDeviceMemoryLimit": "10Gi", "defaultPerDevicePinnedMemoryLimit": {key: "1.5Gi"}}
    assert limits(plan("gpu-2", configs=[mps(**fields)])).memory_bytes == 1536 * MIB


def test_an_index_counts_among_the_devices_that_the_config_governs():
    own = type(mps())("FromClaim", ["b"], mps(defaultPerDevicePinnedMemoryLimit={"0": "2Gi"}).opaque)
    made = plan(result("gpu-3", "a"), result("gpu-1", "b"), configs=[own])
    assert (steps(made, ShareOnMps)[0].gpu, limits(made).memory_bytes) == (gpu(1).uuid, 2 * GIB)


@pytest.mark.case("C88")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"defaultPerDevicePinnedMemoryLimit": {"1": "2Gi"}}, "defaultPerDevicePinnedMemoryLimit['1'] names no device"),
        ({"defaultPerDevicePinnedMemoryLimit": {gpu(1).uuid: "1Gi"}}, f"0 or {gpu(0).uuid}"),
        ({"defaultPerDevicePinnedMemoryLimit": {"-1": "1Gi"}}, "names no device"),
        ({"defaultPerDevicePinnedMemoryLimit": {"00": "1Gi"}}, "names no device"),
        ({"defaultPerDevicePinnedMemoryLimit": {"0": "9Ti"}}, "gpu-0 has 80Gi"),
        ({"defaultPinnedDeviceMemoryLimit": "9Ti"}, "defaultPinnedDeviceMemoryLimit is 9Ti"),
        ({"defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", gpu(0).uuid: "2Gi"}}, "differ"),
    ],
)
def test_a_limit_for_another_device_or_above_the_gpu_is_refused_with_its_field(fields, words):
    assert words in refusal(plan("gpu-0", configs=[mps(**fields)]))


def test_two_whole_gpus_on_mps_for_one_claim_are_refused_with_the_way_out():
    message = refusal(plan(result("gpu-0", "a"), result("gpu-1", "b"), configs=[mps()]))
    assert "a claim of its own" in message


@pytest.mark.case("C85")
@pytest.mark.parametrize(
    ("around", "why"),
    [
        (Surroundings(lambda _gpu: SharingAbility(None)), "MPS needs 7.0"),
        (Surroundings(lambda _gpu: NEW, mps_served=False), "`dra-gpu mps`"),
    ],
)
def test_mps_that_cannot_be_had_is_refused_with_the_reason_and_the_way_out(around, why):
    message = refusal(plan("gpu-0", configs=[mps()], around=around))
    for word in ("sharing.strategy MPS", why, "TimeSlicing"):
        assert word in message
