"""Which device of a claim is meant, and how much of it: everything that a claim can look like."""

import pytest

from dra_gpu.api.claim_resize import ClaimResizeSpec, MpsSettings
from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.api.resource_v1 import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaimStatus,
)
from dra_gpu.controller.resizes.objects import Claim, Meta
from dra_gpu.controller.resizes.target import Refusal, Wanted, find, wanted
from dra_gpu.inventory.amounts import Amounts

DRIVERS = frozenset({"gpu.nvidia.com"})
GIBI = 2**30
HAS = {"computePercent": "60", "memory": "60Gi", "clients": "8"}


def share(request="gpu", device="gpu-0-shared", *, driver="gpu.nvidia.com", share_id="s", admin=None, has=None):
    return DeviceRequestAllocationResult(
        request, driver, "node-0", device, admin, share_id, HAS if has is None else has
    )


def whole(request="gpu", device="gpu-0"):
    return share(request, device, share_id=None, has={})


def claim(*results):
    allocation = AllocationResult(DeviceAllocationResult(list(results)))
    return Claim(Meta(name="training", namespace="team-a", uid="c1"), status=ResourceClaimStatus(allocation))


def found(spec, *results):
    return find(claim(*results), spec, DRIVERS)


def asked(result, *, beyond=False, **spec):
    return wanted(found(ClaimResizeSpec(), result), ClaimResizeSpec(**spec), beyond=beyond)


def test_the_only_device_is_meant_without_a_name():
    one = found(ClaimResizeSpec(), share(), share("nic", "nic-0", driver="nic.example.com"))

    assert (one.target.claim_uid, one.target.pool, one.target.device, one.target.share_id) == (
        "c1",
        "node-0",
        "gpu-0-shared",
        "s",
    )


@pytest.mark.parametrize("name", ["small", "any/small"])
def test_of_several_the_named_one_is_meant_by_main_or_by_main_and_sub(name):
    request = "any/small" if "/" in name else "small"

    assert (
        found(ClaimResizeSpec(request=name), share("big"), share(request, "gpu-1-shared")).target.device
        == "gpu-1-shared"
    )
    assert found(ClaimResizeSpec(request="any"), share("big"), share("any/small", "gpu-1-shared")).target.device == (
        "gpu-1-shared"
    )


@pytest.mark.parametrize(
    ("spec", "results", "reason"),
    [
        ({}, [], "NoDevice"),
        ({}, [share(driver="gpu.example.com")], "NoDevice"),
        ({}, [share("m", "gpu-0-monitor", admin=True)], "NoDevice"),
        ({}, [share("a"), share("b", "gpu-1-shared")], "RequestNeeded"),
        ({"request": "c"}, [share("a"), share("b", "gpu-1-shared")], "NoSuchRequest"),
        ({}, [share("a"), share("a", "gpu-1-shared")], "SeveralDevices"),
        ({"request": "a"}, [share("a"), share("a", "gpu-1-shared"), share("b")], "SeveralDevices"),
    ],
)
def test_a_claim_without_one_device_that_is_meant_is_refused_with_the_way_out(spec, results, reason):
    refusal = found(ClaimResizeSpec(**spec), *results)

    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert "team-a/training" in refusal.message


def test_what_is_not_named_is_wanted_as_it_was_allocated():
    assert asked(share(), capacity={"memory": "20Gi"}) == Wanted(Amounts(60, 20 * GIBI, 8, 0))
    assert asked(share()) == Wanted(Amounts(60, 60 * GIBI, 8, 0))


def test_settings_of_a_whole_gpu_are_passed_on():
    assert asked(whole(), time_slice=TimeSliceInterval.LONG) == Wanted(time_slice=TimeSliceInterval.LONG)
    assert asked(whole(), mps=MpsSettings(50)) == Wanted(mps=MpsSettings(50))


@pytest.mark.parametrize(
    ("result", "spec", "reason"),
    [
        (share(), {"capacity": {"memory": "61Gi"}}, "BeyondRequest"),
        (share(), {"capacity": {"computePercent": 61}}, "BeyondRequest"),
        (share(), {"capacity": {"nvlinkBandwidth": "1G"}}, "NoSuchCapacity"),
        (share(), {"capacity": {"multiprocessors": 4}}, "NoSuchCapacity"),
        (share(), {"capacity": {"memory": "many"}}, "InvalidAmount"),
        (share(), {"capacity": {"memory": "512Mi"}}, "InvalidAmount"),
        (share(), {"capacity": {"computePercent": 0}}, "InvalidAmount"),
        (share(), {"capacity": {"clients": -1}}, "InvalidAmount"),
        (share(), {"time_slice": TimeSliceInterval.LONG}, "IsShare"),
        (share(), {"mps": MpsSettings(50)}, "IsShare"),
        (whole(), {"capacity": {"memory": "20Gi"}}, "IsWhole"),
        (whole(), {"time_slice": TimeSliceInterval.LONG, "mps": MpsSettings(50)}, "SharedTwice"),
        (whole(device="gpu-0-mig-1g10gb-19-0"), {"time_slice": TimeSliceInterval.LONG}, "NoTimeSlice"),
        # NVIDIA's shareable whole GPUs count holders, not their parts.
        (share(device="gpu-0", has={"shares": "1", "memory": "80Gi"}), {"capacity": {"memory": "20Gi"}}, "IsWhole"),
    ],
)
def test_what_cannot_be_is_refused(result, spec, reason):
    refusal = asked(result, **spec)

    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert refusal.message


def test_more_than_allocated_is_for_the_operator_to_allow():
    assert asked(share(), beyond=True, capacity={"memory": "70Gi"}) == Wanted(Amounts(60, 70 * GIBI, 8, 0))
    assert asked(share(), beyond=True, capacity={"computePercent": 101}).reason == "InvalidAmount"


def test_a_gpu_that_does_not_tell_its_memory_has_shares_of_the_rest():
    assert asked(share(has={"computePercent": "60", "clients": "8"}), capacity={"computePercent": 20}) == (
        Wanted(Amounts(20, 0, 8, 0))
    )
