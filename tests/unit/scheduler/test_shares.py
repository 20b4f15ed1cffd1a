"""Fractions of a GPU as the scheduler counts them."""

import pytest

from dra_gpu.scheduler import reasons
from dra_gpu.scheduler.allocator import Failure
from tests.unit.scheduler.builders import Cluster, claim, node_with_gpus, request, share


def test_five_shares_of_twenty_percent_fill_a_gpu_and_a_sixth_is_told_what_is_missing():
    cluster = Cluster(node_with_gpus(1))
    for number in range(5):
        asked = claim(share(computePercent="20", memory="10Gi"), name=f"job-{number}")
        assert cluster.devices(asked) == ["gpu-0-shared"]
    reason = cluster.reason("gpu-0-shared", claim(share(computePercent="20", memory="10Gi")))
    assert str(reason) == "capacity 'computePercent': 20 wanted, 0 free"


def test_a_share_says_what_it_consumes_of_every_capacity_and_has_an_id_of_its_own():
    cluster = Cluster(node_with_gpus(1))
    cluster.devices(claim(share(memory="1536Mi")), new_share_id=lambda: "3c")
    (result,) = cluster.claims[0]["status"]["allocation"]["devices"]["results"]
    assert result["shareID"] == "3c"
    assert result["consumedCapacity"] == {"computePercent": "1", "memory": "1536Mi"}


def test_the_last_share_that_ends_gives_the_whole_gpu_back():
    cluster = Cluster(node_with_gpus(1))
    cluster.devices(claim(share(), name="a"), claim(share(), name="b"))
    whole = claim(request("gpu"))
    assert isinstance(cluster.reason("gpu-0", whole), reasons.TooFewCounters)
    cluster.release("a")
    assert isinstance(cluster.reason("gpu-0", whole), reasons.TooFewCounters)
    cluster.release("b")
    assert cluster.devices(whole) == ["gpu-0"]


def test_no_share_of_a_gpu_that_is_held_whole():
    cluster = Cluster(node_with_gpus(2))
    cluster.devices(claim(request("gpu")))
    assert cluster.devices(claim(share())) == ["gpu-1-shared"]


def test_two_shares_in_one_request_are_two_gpus():
    cluster = Cluster(node_with_gpus(2))
    two = claim(request("shared", count=2))
    assert cluster.devices(two) == ["gpu-0-shared", "gpu-1-shared"]
    assert Cluster(node_with_gpus(1)).refused(two).failure is Failure.NO_FIT


def test_two_requests_may_share_a_gpu():
    cluster = Cluster(node_with_gpus(2))
    assert cluster.devices(claim(request("shared", "a"), request("shared", "b"))) == ["gpu-0-shared", "gpu-0-shared"]


def test_a_capacity_spelled_with_its_domain_is_not_found():
    asked = claim(share(**{"gpu.nvidia.com/memory": "10Gi"}))
    assert str(Cluster(node_with_gpus(1)).reason("gpu-0-shared", asked)).startswith("publishes no capacity")


@pytest.mark.case("C94")
def test_twelve_shares_of_1900_mib_fit_a_gpu_of_24564_mib_and_nothing_drifts_in_a_hundred_rounds():
    cluster = Cluster(node_with_gpus(1, memory="24564Mi"))
    for _ in range(100):
        for number in range(12):
            assert cluster.devices(claim(share(memory="1900Mi"), name=f"job-{number}")) == ["gpu-0-shared"]
        reason = cluster.reason("gpu-0-shared", claim(share(memory="1900Mi")))
        assert str(reason) == "capacity 'memory': 1900Mi wanted, 1764Mi free"
        for number in range(12):
            cluster.release(f"job-{number}")


@pytest.mark.case("C94")
def test_two_claims_of_16000_mib_never_meet_on_a_card_of_16384_mib():
    cluster = Cluster(node_with_gpus(2, memory="16384Mi"))
    first, second = (claim(share(memory="16000Mi"), name=name) for name in "ab")
    assert cluster.devices(first) == ["gpu-0-shared"]
    assert cluster.devices(second) == ["gpu-1-shared"]
    assert cluster.refused(claim(share(memory="16000Mi"))).failure is Failure.NO_FIT


@pytest.mark.case("C95")
@pytest.mark.parametrize("text", ["NaN", "Inf", "50%", " 0.5", "0,5", "8000MB", "8000Mb", "1K", "", "10 Gi", "0x10"])
def test_an_amount_that_is_no_quantity_is_refused_by_name_and_nothing_crashes(text):
    refused = Cluster(node_with_gpus(1)).refused(claim(share(memory=text)))
    assert refused.failure is Failure.INVALID_INPUT
    assert refused.message.startswith("claim ml/job, request r: capacity of device gpu.nvidia.com/node-0/gpu-0-shared")
    assert repr(text) in refused.message


@pytest.mark.case("C95")
@pytest.mark.parametrize(
    ("text", "consumed"),
    [
        ("0", "1Gi"),
        ("1e-9", "1Gi"),
        ("1.0000001", "1Gi"),
        ("1k", "1Gi"),
        ("8Gi", "8Gi"),
        ("8G", "8G"),
        ("8e9", "8e9"),
        ("8192Mi", "8Gi"),
    ],
)
def test_an_amount_below_the_minimum_is_raised_to_it_and_others_are_kept(text, consumed):
    cluster = Cluster(node_with_gpus(1))
    cluster.devices(claim(share(memory=text)))
    (result,) = cluster.claims[0]["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["memory"] == consumed


@pytest.mark.case("C95")
@pytest.mark.parametrize(("text", "consumed"), [("0.5", "1"), ("33300m", "34"), ("1e1", "10"), ("100", "100")])
def test_a_percentage_is_rounded_up_to_whole_ones(text, consumed):
    cluster = Cluster(node_with_gpus(1))
    cluster.devices(claim(share(computePercent=text)))
    (result,) = cluster.claims[0]["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["computePercent"] == consumed


@pytest.mark.case("C95")
@pytest.mark.parametrize("text", ["101", "1e3", "100.0000001"])
def test_more_than_the_gpu_has_fits_nowhere(text):
    assert Cluster(node_with_gpus(2)).refused(claim(share(computePercent=text))).failure is Failure.NO_FIT


@pytest.mark.case("C95")
def test_an_amount_beyond_64_bits_gives_the_pod_up():
    refused = Cluster(node_with_gpus(1)).refused(claim(share(computePercent="9223372036854775808")))
    assert refused.failure is Failure.INVALID_INPUT
    assert "64 bits" in refused.message
