"""NVIDIA's multi-node kinds are read as strictly as the others."""

import pytest

from dra_gpu.api import compute_domain, opaque, strict
from dra_gpu.api.compute_domain import ChannelAllocationMode, ComputeDomain, ComputeDomainV1beta2
from dra_gpu.api.config_error import InvalidConfigError

UID = "7a3c6f10-58f1-4b8e-9a3e-0d5b2b0c1d2e"
V1 = "resource.nvidia.com/v1beta1"


def channel(**fields):
    return {"apiVersion": V1, "kind": "ComputeDomainChannelConfig", "domainID": UID} | fields


def domain(version=V1, **spec):
    return {"apiVersion": version, "kind": "ComputeDomain", "metadata": {"name": "d"}, "spec": spec}


def test_a_channel_is_single_unless_all_are_asked_for():
    assert opaque.read(opaque.DOMAIN_DRIVER, channel()).allocation_mode is ChannelAllocationMode.SINGLE
    wanted = opaque.read(opaque.DOMAIN_DRIVER, channel(allocationMode="All"))
    assert wanted.allocation_mode is ChannelAllocationMode.ALL


@pytest.mark.parametrize("name", ["../../../../etc", "a/b", ".", "", "x" * 300, "\0", UID.upper(), f"{UID}\n"])
@pytest.mark.parametrize("kind", ["ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"])
def test_a_domain_is_named_by_a_uid_and_by_nothing_that_could_be_a_path(kind, name):
    with pytest.raises(InvalidConfigError, match="domainID is"):
        opaque.read(opaque.DOMAIN_DRIVER, {"apiVersion": V1, "kind": kind, "domainID": name})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (channel(allocationMode="Some"), "allocationMode is 'Some': write one of Single, All"),
        (channel(numNodes=3), "numNodes is not a known field"),
        ({"apiVersion": V1, "kind": "ComputeDomainDaemonConfig"}, "domainID is missing"),
        ({"apiVersion": V1, "kind": "GpuConfig"}, "it belongs to driver gpu.nvidia.com"),
    ],
)
def test_a_wrong_config_is_refused_by_the_name_of_what_is_wrong(value, words):
    with pytest.raises(InvalidConfigError) as caught:
        opaque.read(opaque.DOMAIN_DRIVER, value)
    assert words in str(caught.value)


def test_a_compute_domain_has_nodes_in_v1beta1_only():
    spec = {"channel": {"resourceClaimTemplate": {"name": "workload"}}, "numNodes": 2}
    assert strict.convert(domain(**spec), ComputeDomain).spec.num_nodes == 2
    with pytest.raises(InvalidConfigError, match=r"spec\.numNodes is not a known field"):
        strict.convert(domain("resource.nvidia.com/v1beta2", **spec), ComputeDomainV1beta2)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"channel": {"resourceClaimTemplate": {"name": ""}}}, "spec.channel.resourceClaimTemplate.name"),
        ({"channel": {"resourceClaimTemplate": {"name": "w"}}, "numNodes": -1}, "spec.numNodes"),
    ],
)
def test_a_compute_domain_needs_a_template_name_and_no_negative_count(spec, field):
    value = strict.convert(domain(**spec), ComputeDomain)
    assert [problem.field for problem in compute_domain.problems(value)] == [field]
