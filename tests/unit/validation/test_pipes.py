"""A container follows one MPS daemon: a claim with several devices on MPS is refused, with the way out."""

import pytest

from dra_gpu.validation.problem import Severity
from tests.unit.validation.manifests import MPS, choice, claim, config, problems, request, share, the_one

SLICES = config("SharedGpuConfig", strategy="TimeSlicing")
ALL = config(**MPS)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (claim(share(count=2)), "requests[0].exactly.count"),
        (claim(share("a"), share("b")), "requests[1].exactly.deviceClassName"),
        (claim(share("a", "shared.mig.nvidia.com"), share("b")), "requests[1].exactly.deviceClassName"),
        (claim(request(count=2), configs=[ALL]), "requests[0].exactly.count"),
        (claim(request("a"), share("b"), configs=[config(requests=["a"], **MPS)]), "requests[1]"),
        (claim(request(cls="mig.nvidia.com", count=2), configs=[config("MigDeviceConfig", **MPS)]), "requests[0]"),
        (claim(share("a"), choice("b", ("x", "shared.gpu.nvidia.com"))), "requests[1].firstAvailable[0]"),
        (claim(share("a"), share("b"), configs=[config("SharedGpuConfig", requests=["a"])]), "requests[1]"),
    ],
)
def test_several_devices_on_mps_are_refused(document, field):
    problem = the_one(document)

    assert problem.field.startswith(f"spec.devices.{field}")
    assert "a claim of its own" in problem.remedy
    assert "TimeSlicing" in problem.remedy


@pytest.mark.parametrize(
    "document",
    [
        claim(request(cls="shared.gpu.nvidia.com", allocationMode="All")),
        claim(share("a"), choice("b", ("x", "gpu.nvidia.com"), ("y", "shared.gpu.nvidia.com"))),
    ],
)
def test_what_may_become_several_is_a_warning(document):
    assert "may give" in the_one(document, Severity.WARNING).reason


@pytest.mark.parametrize(
    "document",
    [
        claim(share()),
        claim(share(count=2), configs=[SLICES]),
        claim(request(count=4)),
        claim(request("a"), share("b")),
        claim(request(count=2), configs=[config(sharing={"strategy": "TimeSlicing"})]),
        claim(choice("r", ("x", "shared.gpu.nvidia.com"), ("y", "shared.mig.nvidia.com"))),
        claim(request(cls="somebodys", count=3), configs=[ALL]),
    ],
)
def test_one_device_on_mps_or_none_is_fine(document):
    assert problems(document) == ()


def test_shares_with_strategies_that_exclude_each_other_may_meet_on_one_gpu():
    slices = config("SharedGpuConfig", requests=["b"], strategy="TimeSlicing")
    problem = the_one(claim(share("a"), share("b"), configs=[slices]), Severity.WARNING)

    assert problem.field == "spec.devices.requests[1].exactly.deviceClassName"
    assert "cannot be mixed" in problem.reason
    assert problems(claim(share("a"), share("b", "shared.mig.nvidia.com"), configs=[slices])) == ()


def test_a_config_that_cannot_be_read_does_not_lead_to_guesses():
    broken = config("SharedGpuConfig", strategy="TimeSlicing", enforcement="Required")

    assert the_one(claim(share(count=2), configs=[broken])).field.endswith("parameters.enforcement")
