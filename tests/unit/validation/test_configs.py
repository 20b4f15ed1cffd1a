"""Configs are checked for what they say, for whom they are, and for being heard at all."""

import pytest
from hypothesis import given

from dra_gpu.api import opaque
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.validation.problem import Severity
from tests.unit.api.valid_configs import MUTATED, VALID
from tests.unit.validation import second_opinion
from tests.unit.validation.manifests import (
    MPS,
    NVIDIA,
    choice,
    claim,
    config,
    device_class,
    errors,
    problems,
    request,
    share,
    the_one,
)

PARAMETERS = "spec.devices.config[0].opaque.parameters"
LONG = {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
CHANNEL = "compute-domain-default-channel.nvidia.com"
UID = "7a3c6f10-58f1-4b8e-9a3e-0d5b2b0c1d2e"


@given(MUTATED)
def test_nothing_is_accepted_that_a_second_strict_check_refuses_and_the_other_way_round(value):
    for driver in opaque.KINDS:
        try:
            opaque.read(driver, value)
        except InvalidConfigError:
            accepted = False
        else:
            accepted = True

        assert accepted is second_opinion.accepts(driver, value)


@pytest.mark.parametrize(("driver", "value"), VALID)
def test_both_checks_accept_valid_configs(driver, value):
    assert second_opinion.accepts(driver, value)


@pytest.mark.parametrize(
    ("asked", "entry"),
    [
        (request(), config(**LONG)),
        (request(), config(requests=["r"], **MPS)),
        (share(), config("SharedGpuConfig", requests=["r"], enforcement="Required")),
        (request(cls="mig.nvidia.com"), config("MigDeviceConfig", **MPS)),
        (request(cls="vfio.gpu.nvidia.com"), config("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD"})),
        (request(cls="somebodys"), config("VfioDeviceConfig", requests=["r"])),
        (
            request(cls=CHANNEL),
            config("ComputeDomainChannelConfig", driver="compute-domain.nvidia.com", requests=["r"], domainID=UID),
        ),
        (choice("r", ("a", "gpu.nvidia.com"), ("b", "mig.nvidia.com")), config(requests=["r/a"], **LONG)),
        (choice("r", ("a", "gpu.nvidia.com"), ("b", "mig.nvidia.com")), config(**LONG)),
        (request(), config("Theirs", driver="gpu.example.com", version="example.com/v1", anything=1)),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_a_config_that_fits_has_no_problems(asked, entry, version, kind):
    assert problems(claim(asked, configs=[entry], version=version, kind=kind)) == ()


@pytest.mark.case("C136")
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_a_bad_config_is_found_in_every_served_version_and_both_kinds(version, kind):
    entry = config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 500}})
    problem = the_one(claim(request(), configs=[entry], version=version, kind=kind))

    assert problem.field.endswith("config[0].opaque.parameters.sharing.mpsConfig.defaultActiveThreadPercentage")
    assert problem.field.startswith("spec.spec." if kind == "ResourceClaimTemplate" else "spec.devices.")


def test_a_version_that_is_not_served_is_told():
    assert the_one(claim(request(), version="v1alpha2")).remedy == "write resource.k8s.io/v1"


def test_all_problems_of_all_configs_are_told_at_once():
    wrong = config(sharing={"strategy": "Timeslicing"}, more=1)
    found = problems(claim(request(), configs=[wrong, config("Foo"), config(sharing=1)]))

    assert [problem.field.removeprefix("spec.devices.config") for problem in found] == [
        "[0].opaque.parameters.sharing.strategy",
        "[0].opaque.parameters.more",
        "[1].opaque.parameters.kind",
        "[2].opaque.parameters.sharing",
    ]


@pytest.mark.case("C92")
@pytest.mark.parametrize(
    ("asked", "entry", "takes"),
    [
        (request(cls="mig.nvidia.com"), config(requests=["r"], **LONG), "MigDeviceConfig"),
        (request(), config("MigDeviceConfig", requests=["r"]), "GpuConfig"),
        (request(), config("VfioDeviceConfig", requests=["r"]), "GpuConfig"),
        (request(cls="mig.nvidia.com"), config("VfioDeviceConfig", requests=["r"]), "MigDeviceConfig"),
        (share(), config(requests=["r"], **MPS), "SharedGpuConfig"),
        (choice("r", ("a", "gpu.nvidia.com"), ("b", "mig.nvidia.com")), config(requests=["r"], **LONG), "MigDevice"),
        (request(cls=CHANNEL), config(requests=["r"]), "ComputeDomainChannelConfig"),
    ],
)
def test_a_config_of_the_wrong_kind_for_the_request_it_names_is_refused(asked, entry, takes):
    problem = the_one(claim(asked, configs=[entry]))

    assert problem.field == f"{PARAMETERS}.kind"
    assert takes in problem.reason
    assert "request r" in problem.reason


@pytest.mark.case("C92")
def test_a_config_for_all_requests_is_for_those_of_its_kind():
    mixed = claim(request("a"), request("b", "mig.nvidia.com"), configs=[config(**LONG)])

    assert problems(mixed) == ()


@pytest.mark.parametrize("name", ["main", "r/c", "", "R"])
def test_a_config_for_a_request_that_is_not_there_is_refused(name):
    asked = choice("r", ("a", "gpu.nvidia.com"), ("b", "gpu.nvidia.com"))
    (problem, *_) = errors(claim(asked, configs=[config(requests=["r", name], **LONG)]))

    assert problem.field == "spec.devices.config[0].requests[1]"
    assert problem.remedy == "write one of r, r/a, r/b"


@pytest.mark.parametrize("name", [[], {}, ["r"], 7, None])
def test_a_name_that_is_no_text_is_told_and_stops_no_other_check(name):
    found = errors(claim(request(), {"name": name}, configs=[config(requests=["x"], **LONG)]))

    assert {problem.field for problem in found} >= {
        "spec.devices.requests[1].name",
        "spec.devices.config[0].requests[0]",
    }


def test_a_constraint_for_a_request_that_is_not_there_is_refused():
    constraint = {"requests": ["r", "x"], "matchAttribute": "gpu.nvidia.com/nvlinkGroup"}

    assert the_one(claim(request(count=2), constraints=[constraint])).field == "spec.devices.constraints[0].requests[1]"


@pytest.mark.case("C98")
@pytest.mark.parametrize(
    ("document", "field"),
    [
        (claim(request(), configs=[config("VfioDeviceConfig")]), f"{PARAMETERS}.kind"),
        (claim(request(), configs=[config(**LONG), config(requests=["r"], **MPS)]), PARAMETERS),
        (claim(request(), configs=[config(requests=["r"], **LONG), config()]), PARAMETERS),
        (
            claim(request(cls="monitor.nvidia.com", adminAccess=True), configs=[config(requests=["r"], **LONG)]),
            PARAMETERS,
        ),
        (
            claim(
                request(cls="mig.nvidia.com"), configs=[config("MigDeviceConfig", sharing={"strategy": "TimeSlicing"})]
            ),
            f"{PARAMETERS}.sharing.strategy",
        ),
        (
            claim(request(), configs=[config(driver="nvidia.com", **LONG)]),
            "spec.devices.config[0].opaque.driver",
        ),
        (
            claim(request(), configs=[config("SharedGpuConfig", driver="shared.gpu.nvidia.com")]),
            "spec.devices.config[0].opaque.driver",
        ),
    ],
)
def test_a_config_that_would_be_ignored_is_told(document, field):
    assert the_one(document, Severity.WARNING).field == field


def test_a_config_that_is_overridden_for_some_requests_only_is_heard():
    configs = [config(**LONG), config(requests=["b"], sharing={"strategy": "TimeSlicing"})]

    assert problems(claim(request("a"), request("b"), configs=configs)) == ()


@pytest.mark.case("C88")
@pytest.mark.parametrize("key", ["1", "7", "foo", "-1", "01", "+0", "0.0", "\uff11"])
def test_a_limit_for_a_device_that_the_config_does_not_govern_is_refused(key):
    mps = {"defaultPerDevicePinnedMemoryLimit": {"0": "5Gi", "GPU-8f2c": "5Gi", key: "5Gi"}}
    problem = the_one(claim(request(), configs=[config(sharing={"strategy": "MPS", "mpsConfig": mps})]))

    assert problem.field == f"{PARAMETERS}.sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[{key!r}]"


def test_a_partition_has_no_uuid_to_name_it_by():
    mps = {"defaultPerDevicePinnedMemoryLimit": {"0": "5Gi", "MIG-8f2c": "5Gi"}}
    entry = config("MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": mps})

    assert the_one(claim(request(cls="mig.nvidia.com"), configs=[entry])).field.endswith("['MIG-8f2c']")


def test_an_index_counts_among_all_devices_that_the_config_governs():
    mps = {"defaultPerDevicePinnedMemoryLimit": {"2": "5Gi", "3": "5Gi"}}
    document = claim(
        request("a"), request("b", count=2), configs=[config(sharing={"strategy": "MPS", "mpsConfig": mps})]
    )

    assert [p.field[-5:] for p in problems(document) if "index" in p.remedy] == ["['3']"]


def test_a_class_is_checked_as_a_claim_is():
    wrong = device_class("mine", config(sharing={"strategy": "Magic"}))

    assert the_one(wrong).field == "spec.config[0].opaque.parameters.sharing.strategy"
    assert problems(device_class("mine", config(**LONG), extendedResourceName="example.com/gpu")) == ()
    assert the_one(device_class("mig.nvidia.com", config(**LONG))).field == "spec.config[0].opaque.parameters.kind"
    assert problems(device_class("gpu.nvidia.com", config(**LONG))) == ()


def test_a_config_alone_and_a_compute_domain_are_checked_too():
    assert the_one({"apiVersion": NVIDIA, "kind": "GpuConfig", "sharing": {}}).field == "sharing.strategy"
    assert the_one({"apiVersion": "resource.nvidia.com/v9", "kind": "GpuConfig"}).field == "apiVersion"
    domain = {"apiVersion": NVIDIA, "kind": "ComputeDomain", "metadata": {"name": "d"}}
    assert the_one(domain | {"spec": {"numNodes": 1}}).field == "spec.channel"
    channel = {"resourceClaimTemplate": {"name": "w"}}
    assert problems(domain | {"spec": {"channel": channel}}) == ()
    assert the_one(domain | {"apiVersion": "resource.nvidia.com/v2", "spec": {}}).field == "apiVersion"


def test_parameters_that_are_null_are_told_as_what_is_no_object():
    (problem,) = errors(claim(request(), configs=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": None}}]))

    assert problem.field == "spec.devices.config[0].opaque.parameters"
    assert problem.reason == "is no object"


def test_limits_by_device_in_a_config_that_nobody_reads_are_no_error():
    limits = {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"MIG-1": "5Gi"}}}}

    assert errors(claim(request(), configs=[config("MigDeviceConfig", **limits)])) == []
    assert errors(claim(request(cls="mig.nvidia.com"), configs=[config("MigDeviceConfig", **limits)]))
