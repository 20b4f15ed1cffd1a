"""What a claim asks for is checked against what the classes give."""

import pytest

from dra_gpu.validation.problem import Severity
from tests.unit.validation.manifests import choice, claim, config, problems, request, share, the_one

PLACE = "spec.devices.requests[0].exactly"


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(count=8),
        request(allocationMode="All"),
        request(cls="a-class-of-somebody", count=100, capacity={"requests": {"anything": "1"}}),
        request(capacity={"requests": {"memory": "40Gi"}}),
        share(),
        share(computePercent="100", memory="80Gi", clients=48, nvlinkBandwidth="100G"),
        share(cls="shared.mig.nvidia.com"),
        request(cls="mig.nvidia.com", count=7, capacity={"requests": {"memory": "10Gi", "multiprocessors": "14"}}),
        request(cls="monitor.nvidia.com", adminAccess=True, allocationMode="All"),
        choice("r", ("whole", "gpu.nvidia.com"), ("part", "shared.gpu.nvidia.com")),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_what_can_be_had_has_no_problems(asked, version):
    assert problems(claim(asked, version=version)) == ()


@pytest.mark.case("C95")
@pytest.mark.parametrize(
    ("name", "amount"),
    [
        *(("computePercent", text) for text in ("101", "1k", "-1", "NaN", "inf", "50%", " 0.5", "0,5", "101m1", "")),
        *(("memory", text) for text in ("8000Mb", "8000MB", "1K", "1k", "10", "-5Gi", "NaN", "1e-9", "0")),
        ("clients", "61"),
        ("nvlinkBandwidth", "fast"),
    ],
)
def test_an_amount_that_no_share_can_have_is_refused_with_its_field(name, amount):
    problem = the_one(claim(share(**{name: amount})))

    assert problem.field == f"{PLACE}.capacity.requests[{name!r}]"
    assert "write" in problem.remedy


@pytest.mark.case("C95")
@pytest.mark.parametrize(
    ("name", "amount", "becomes"),
    [
        ("computePercent", "33.3", "34"),
        ("computePercent", "1.0000001", "2"),
        ("computePercent", "0", "at least 1"),
        ("memory", "512Mi", "1Gi"),
    ],
)
def test_an_amount_that_the_scheduler_rounds_is_told_with_what_becomes_of_it(name, amount, becomes):
    problem = the_one(claim(share(**{name: amount})), Severity.WARNING)

    assert becomes in problem.reason


@pytest.mark.parametrize("amount", ["8G", "8Gi", "8e9", 8589934592])
def test_every_spelling_of_an_amount_will_do(amount):
    assert problems(claim(share(memory=amount))) == ()


@pytest.mark.parametrize(
    ("cls", "name", "remedy"),
    [
        ("gpu.nvidia.com", "computePercent", "shared.gpu.nvidia.com"),
        ("mig.nvidia.com", "clients", "shared.gpu.nvidia.com"),
        ("shared.gpu.nvidia.com", "gpu.nvidia.com/memory", "write memory"),
        ("shared.gpu.nvidia.com", "percent", "computePercent, memory"),
        ("shared.mig.nvidia.com", "nvlinkBandwidth", "computePercent, memory, clients"),
        ("vfio.gpu.nvidia.com", "decoders", "addressableMemory"),
    ],
)
def test_a_capacity_that_the_class_lacks_is_refused_since_no_device_would_ever_fit(cls, name, remedy):
    problem = the_one(claim(request(cls=cls, capacity={"requests": {name: "1"}})))

    assert problem.field == f"{PLACE}.capacity.requests[{name!r}]"
    assert remedy in problem.remedy


def test_monitor_has_no_capacity_to_ask_for():
    asked = request(cls="monitor.nvidia.com", adminAccess=True, capacity={"requests": {"memory": "1Gi"}})

    assert "a part of a GPU" in the_one(claim(asked)).remedy


@pytest.mark.parametrize("fields", [{}, {"adminAccess": False}, {"adminAccess": None}])
def test_monitor_needs_admin_access(fields):
    problem = the_one(claim(request(cls="monitor.nvidia.com", **fields)))

    assert problem.field == f"{PLACE}.adminAccess"
    assert "resource.kubernetes.io/admin-access" in problem.remedy


def test_monitor_cannot_be_an_alternative():
    problem = the_one(claim(choice("r", ("a", "gpu.nvidia.com"), ("b", "monitor.nvidia.com"))))

    assert problem.field == "spec.devices.requests[0].firstAvailable[1].deviceClassName"


@pytest.mark.parametrize("cls", ["mig.nvidia.com", "shared.mig.nvidia.com"])
def test_there_is_nothing_to_watch_of_a_partition(cls):
    problem = the_one(claim(request(cls=cls, adminAccess=True)))

    assert problem.field == f"{PLACE}.adminAccess"
    assert "monitor.nvidia.com" in problem.remedy


@pytest.mark.parametrize("cls", ["gpu.nvidia.com", "shared.gpu.nvidia.com"])
def test_admin_access_to_other_views_works_only_on_free_gpus_and_monitor_is_named(cls):
    problem = the_one(claim(request(cls=cls, adminAccess=True)), Severity.WARNING)

    assert problem.field == f"{PLACE}.adminAccess"
    assert "monitor.nvidia.com" in problem.remedy


@pytest.mark.parametrize("cls", ["mig.nvidia.com", "shared.mig.nvidia.com"])
def test_more_partitions_than_a_gpu_has_keep_the_scheduler_busy(cls):
    slices = config("SharedGpuConfig", strategy="TimeSlicing")
    found = problems(claim(request(cls=cls, count=8), configs=[slices] if "shared" in cls else []))

    assert [(problem.severity, problem.field) for problem in found] == [(Severity.ERROR, f"{PLACE}.count")]


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_partitions_are_counted_over_the_requests_of_a_claim(version, kind):
    four, alternatives = request("a", "mig.nvidia.com", count=4), choice("b", ("x", "mig.nvidia.com"))
    alternatives["firstAvailable"] += [{"name": "y", "deviceClassName": "mig.nvidia.com", "count": 4}]
    whole = request("c", "gpu.nvidia.com", count=8)

    problem = the_one(claim(four, alternatives, whole, version=version, kind=kind))

    assert problem.field == ("spec.spec" if kind == "ResourceClaimTemplate" else "spec") + ".devices.requests"
    assert problem.reason.startswith("ask for 8, and a GPU has at most 7 partitions")
    assert (
        problems(claim(request("a", "mig.nvidia.com", count=3), alternatives, whole, version=version, kind=kind)) == ()
    )


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_is_at_least_one(count):
    assert the_one(claim(request(count=count))).field == f"{PLACE}.count"


@pytest.mark.parametrize(
    "asked", [{"name": "r"}, {"name": "r", "exactly": None}, {**request(), **choice("r", ("a", "gpu.nvidia.com"))}]
)
def test_a_request_asks_for_something_in_one_way(asked):
    assert the_one(claim(asked)).field == "spec.devices.requests[0]"


def test_a_template_names_fields_one_level_further_down():
    problem = the_one(claim(share(computePercent="500"), kind="ResourceClaimTemplate"))

    assert problem.field == "spec.spec.devices.requests[0].exactly.capacity.requests['computePercent']"


def test_v1beta1_names_fields_of_the_request_itself():
    problem = the_one(claim(share(computePercent="500"), version="v1beta1"))

    assert problem.field == "spec.devices.requests[0].capacity.requests['computePercent']"
