"""Which config a device gets: as the node decides it, and as validation foresees it."""

import itertools

import msgspec
import pytest

from dra_gpu.api.nvidia_v1beta1 import SharingStrategy, TimeSliceInterval
from dra_gpu.api.resource_v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
)
from dra_gpu.claims import allocation
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.inventory.model import View
from dra_gpu.validation import configs, requests
from tests.unit.validation.manifests import MPS, choice, claim, config, request

DRIVER, POOL = "gpu.nvidia.com", "node-a"
REF = ClaimRef("7a3c6f10-58f1-4b8e-9a3e-0d5b2b0c1d2e", "team", "c")


def slices(interval, *, asked=None):
    return config(requests=asked, sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}})


def entry(one, source="FromClaim"):
    """Return a config of a claim as it stands in an allocation."""
    raw = msgspec.Raw(msgspec.json.encode(one["opaque"]["parameters"]))
    return DeviceAllocationConfiguration(source, one.get("requests") or [], OpaqueDeviceConfiguration(DRIVER, raw))


def on_the_node(name, entries):
    """Return the config that the node applies to a whole GPU of a request."""
    result = DeviceRequestAllocationResult(name, DRIVER, POOL, "gpu-0")
    allocated = AllocationResult(DeviceAllocationResult([result], list(entries)))
    return allocation.config_for(REF, result, View.GPU, allocation.own_configs(REF, allocated, DRIVER))


def interval_of(found):
    return found.sharing.time_slicing_config.interval if found else None


@pytest.mark.case("C139")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_claim_beats_its_class_and_the_last_config_of_the_claim_that_applies_wins_as_a_whole(order):
    entries = [
        entry(config(**MPS), "FromClass"),
        entry(slices("Short")),
        entry(slices("Long", asked=["b"])),
    ]
    shuffled = [entries[index] for index in order]
    last_for_b = max((1, 2), key=order.index)

    assert interval_of(on_the_node("a", shuffled)) is TimeSliceInterval.SHORT
    assert interval_of(on_the_node("c", shuffled)) is TimeSliceInterval.SHORT
    expected = {1: TimeSliceInterval.SHORT, 2: TimeSliceInterval.LONG}[last_for_b]
    assert interval_of(on_the_node("b", shuffled)) is expected


@pytest.mark.case("C139")
def test_what_the_class_says_holds_where_the_claim_says_nothing():
    found = on_the_node("a", [entry(config(**MPS), "FromClass"), entry(slices("Long", asked=["b"]))])

    assert found.sharing.strategy is SharingStrategy.MPS


@pytest.mark.case("C140")
@pytest.mark.parametrize(
    ("named", "applies_to"),
    [
        (None, {"a", "b", "a/big"}),
        ([], {"a", "b", "a/big"}),
        (["a"], {"a", "a/big"}),
        (["a", "b"], {"a", "b", "a/big"}),
        (["a/big"], {"a/big"}),
    ],
)
def test_a_config_may_name_any_number_of_requests_their_alternatives_or_none_for_all(named, applies_to):
    entries = [entry(slices("Long", asked=named))]

    assert {name for name in ("a", "b", "a/big") if on_the_node(name, entries)} == applies_to


CHOICES = [
    slices("Short"),
    slices("Long", asked=["a"]),
    slices("Medium", asked=["b/x"]),
    slices("Default", asked=["b"]),
]


@pytest.mark.parametrize("number", range(4))
def test_validation_foresees_what_the_node_decides(number):
    document = claim(request("a"), choice("b", ("x", "gpu.nvidia.com"), ("y", "gpu.nvidia.com")))
    asked = requests.wanted(document["spec"]["devices"], "spec.devices")

    for chosen in itertools.permutations(CHOICES, number):
        read, problems = configs.read(list(chosen), "spec.devices.config")
        assert problems == ()
        for way in (way for ways in asked for way in ways):
            assert configs.governing(way, read) == on_the_node(way.name, [entry(one) for one in chosen])
