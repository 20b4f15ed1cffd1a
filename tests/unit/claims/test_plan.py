"""A plan follows from allocation, configs and inventory alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api.nvidia_v1beta1 import GpuConfig, GpuSharing, SharingStrategy, TimeSliceInterval, TimeSlicingConfig
from dra_gpu.claims import allocation
from dra_gpu.claims.enforcement import Surroundings
from dra_gpu.claims.outcome import Refusal, RefusedError
from dra_gpu.claims.plan import Plan, make_plan
from dra_gpu.claims.record import Access, Hold
from dra_gpu.claims.steps import SetTimeSlice, WriteCdiSpec
from dra_gpu.inventory.model import SickGpu, View
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from tests.unit.claims.world import DRIVER, LONG, POOL, claim_of, config, inventory_of, ref, result
from tests.unit.inventory.builders import gpu

MPS = {"sharing": {"strategy": "MPS"}}


AROUND = Surroundings(lambda _gpu: SharingAbility(MpsProtocol.NAMESPACE, memory_limits=True))


def plan(*results, configs=(), inventory=None, around=AROUND) -> Plan | Refusal:
    claim = claim_of(ref(), *results, configs=configs)
    inventory = inventory or inventory_of([gpu(number) for number in range(4)])
    return make_plan(ref(), claim.status.allocation, driver=DRIVER, pool=POOL, inventory=inventory, around=around)


def slices(made: Plan) -> list[TimeSliceInterval]:
    return [step.interval for step in made.steps if isinstance(step, SetTimeSlice)]


def interval(value: str):
    return {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": value}}}


def test_a_whole_gpu_is_held_alone_and_locked():
    made = plan("gpu-1")
    assert made.holds == (Hold("gpu-1", gpu(1).uuid, Access.EXCLUSIVE),)
    assert made.lock_keys == (gpu(1).pci_address,)
    assert [type(step) for step in made.steps] == [WriteCdiSpec]


def test_gpus_are_locked_in_pci_order_whatever_the_order_of_the_results():
    made = plan(result("gpu-3", "a"), result("gpu-0", "b"), result("gpu-2", "c"), configs=[config(**LONG)])
    assert list(made.lock_keys) == sorted(made.lock_keys)
    assert [step.gpu for step in made.steps[:-1]] == [gpu(number).uuid for number in (0, 2, 3)]


def test_the_answer_keeps_the_order_of_the_results():
    assert [device.device for device in plan(result("gpu-3", "a"), result("gpu-0", "b")).devices] == ["gpu-3", "gpu-0"]


def test_the_cdi_file_comes_last_so_that_it_speaks_of_what_is_there():
    assert isinstance(plan("gpu-0", configs=[config(**LONG)]).steps[-1], WriteCdiSpec)


def test_time_slicing_without_settings_means_the_default_interval():
    assert slices(plan("gpu-0", configs=[config(sharing={"strategy": "TimeSlicing"})])) == [TimeSliceInterval.DEFAULT]


def test_a_config_of_the_claim_outweighs_one_of_the_class_wherever_it_stands():
    configs = [config(**interval("Short")), config(source="FromClass", **interval("Long"))]
    assert slices(plan("gpu-0", configs=configs)) == [TimeSliceInterval.SHORT]


def test_configs_are_not_merged():
    configs = [config(source="FromClass", **interval("Long")), config()]
    assert slices(plan("gpu-0", configs=configs)) == []


@pytest.mark.parametrize(
    ("requests", "applies"), [([], True), (["main"], True), (["main/big"], True), (["other"], False)]
)
def test_a_config_may_name_a_request_or_its_parent(requests, applies):
    made = plan(result("gpu-0", "main/big"), configs=[config(requests=requests, **LONG)])
    assert bool(slices(made)) is applies


def test_a_config_for_another_alternative_does_not_apply():
    assert slices(plan(result("gpu-0", "main/big"), configs=[config(requests=["main/small"], **LONG)])) == []


def test_configs_of_other_drivers_are_not_read():
    assert isinstance(plan("gpu-0", configs=[config("Nonsense", driver="cpu.other.test", x=1)]), Plan)


def test_a_config_of_the_wrong_kind_that_names_the_request_is_refused():
    refusal = plan(result("gpu-0", "main"), configs=[config("MigDeviceConfig", requests=["main"])])
    assert not refusal.retryable
    assert "MigDeviceConfig" in refusal.message
    assert "takes a GpuConfig" in refusal.message
    assert "'main'" in refusal.message


def test_a_config_of_another_kind_for_all_requests_is_meant_for_others():
    assert isinstance(plan("gpu-0", configs=[config("MigDeviceConfig")]), Plan)


@pytest.mark.case("C08")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (config(shering={}), "shering"),
        (config("GpuKonfig"), "GpuKonfig"),
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Eternal"}}), "Eternal"),
        (config(apiVersion="resource.nvidia.com/v7"), "v7"),
    ],
)
def test_an_invalid_config_is_refused_with_claim_request_and_field(bad, words):
    named = type(bad)(bad.source, ["main"], bad.opaque)
    refusal = plan(result("gpu-0", "main"), configs=[named])
    assert not refusal.retryable
    for word in ("team-a/shared (aaaa)", "request main", words):
        assert word in refusal.message


def test_an_unknown_device_is_refused_with_what_is_wrong_on_the_node():
    inventory = inventory_of([gpu(0)], [SickGpu("0000:11:00.0", "GPU is lost, reset it")])
    refusal = plan(result("gpu-1", "main"), inventory=inventory)
    for word in ("gpu-1", "team-a/shared (aaaa)", "0000:11:00.0: GPU is lost, reset it", "recreate the pod"):
        assert word in refusal.message


@pytest.mark.case("C155")
@pytest.mark.parametrize("device", ["gpu-1", "gpu-1-shared", "gpu-1-monitor"])
def test_a_device_of_a_gpu_that_is_lost_is_refused_and_those_of_others_are_not(device):
    inventory = inventory_of([gpu(0)], [SickGpu("0000:11:00.0", "GPU is lost, reset it", gpu(1).uuid, gpu(1))])

    refused = plan(result(device, admin=device.endswith("monitor")), inventory=inventory)

    assert refused.retryable
    assert f"device {device}" in refused.message
    assert "cannot be used: GPU is lost, reset it" in refused.message
    assert isinstance(plan("gpu-0", inventory=inventory), Plan)


def test_a_monitor_without_admin_access_is_refused():
    refusal = plan("gpu-0-monitor")
    for word in ("gpu-0-monitor", "adminAccess: true", "gpu.nvidia.com"):
        assert word in refusal.message
    assert not refusal.retryable


def test_a_monitor_gets_a_cdi_device_but_no_hold_that_counts_no_lock_and_no_setting():
    made = plan(result("gpu-0-monitor", admin=True), configs=[config(**LONG)])
    assert [hold.access for hold in made.holds] == [Access.OBSERVER]
    assert made.lock_keys == ()
    assert [type(step) for step in made.steps] == [WriteCdiSpec]
    assert made.steps[0].devices[0].view is View.MONITOR


def test_admin_access_to_a_whole_gpu_counts_and_changes_nothing():
    made = plan(result("gpu-0", admin=True), configs=[config(**MPS)])
    assert [hold.access for hold in made.holds] == [Access.OBSERVER]
    assert [type(step) for step in made.steps] == [WriteCdiSpec]


def test_a_device_both_used_and_observed_by_one_claim_is_used():
    made = plan(result("gpu-0", "watch", admin=True), result("gpu-0", "use"))
    assert [hold.access for hold in made.holds] == [Access.EXCLUSIVE]
    assert len(made.steps[-1].devices) == 1
    assert [device.request_names for device in made.devices] == [("watch",), ("use",)]


REQUESTS = st.lists(st.sampled_from(["main", "main/a", "main/b", "other"]), max_size=2, unique=True)
ENTRY = st.tuples(st.sampled_from(["FromClass", "FromClaim"]), REQUESTS, st.sampled_from(list(TimeSliceInterval)))


@given(st.lists(ENTRY, max_size=8), st.sampled_from(["main", "main/a", "main/b", "other"]))
def test_the_last_config_that_applies_wins_claims_after_classes(entries, request_name):
    configs = [config(source=source, requests=names, **interval(value.value)) for source, names, value in entries]
    claim = claim_of(ref(), result("gpu-0", request_name), configs=configs)
    given_result = claim.status.allocation.devices.results[0]
    decoded = allocation.own_configs(ref(), claim.status.allocation, DRIVER)
    chosen = allocation.config_for(ref(), given_result, View.GPU, decoded)

    parent = request_name.split("/")[0]
    applying = [entry for entry in entries if not entry[1] or {request_name, parent} & set(entry[1])]
    of_claim = [entry for entry in applying if entry[0] == "FromClaim"]
    winner = (of_claim or applying or [None])[-1]
    expected = winner and GpuConfig(sharing=GpuSharing(SharingStrategy.TIME_SLICING, TimeSlicingConfig(winner[2])))
    assert chosen == expected


@given(st.binary(max_size=200))
def test_no_parameters_whatever_crash_the_plan(content):
    entry = config()
    broken = type(entry)(entry.source, [], type(entry.opaque)(DRIVER, msgspec.Raw(content)))
    claim = claim_of(ref(), "gpu-0", configs=[broken])
    with pytest.raises(RefusedError, match=r"team-a/shared \(aaaa\)"):
        allocation.own_configs(ref(), claim.status.allocation, DRIVER)
