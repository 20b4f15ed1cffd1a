"""The messages on the wire: package names, fields and numbers that every kubelet knows.

Source: k8s.io/kubelet v0.37.2, pkg/apis.
"""

import pytest

from dra_gpu.kubelet._proto import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    registration_v1_pb2,
)
from dra_gpu.kubelet.calls import RunningCalls
from dra_gpu.kubelet.dra import ClaimCalls, DraV1, DraV1Beta1
from dra_gpu.kubelet.server import advertised

DEVICE = {"request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4}


def numbers(message) -> dict[str, int]:
    return {field.name: field.number for field in message.DESCRIPTOR.fields}


def services(module) -> set[str]:
    return {
        f"/{service.full_name}/{method.name}"
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_plugin_info_and_status_have_the_numbers_the_kubelet_reads():
    assert numbers(registration_v1_pb2.PluginInfo) == {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4}
    assert numbers(registration_v1_pb2.RegistrationStatus) == {"plugin_registered": 1, "error": 2}


@pytest.mark.parametrize("version", [dra_v1_pb2, dra_v1beta1_pb2])
def test_both_dra_versions_name_claims_and_answers_alike(version):
    assert numbers(version.Claim) == {"namespace": 1, "uid": 2, "name": 3}
    assert numbers(version.NodePrepareResourceResponse) == {"devices": 1, "error": 2}
    assert numbers(version.NodeUnprepareResourceResponse) == {"error": 1}


def test_v1_alone_has_a_share_id_and_it_may_be_absent():
    assert numbers(dra_v1_pb2.Device) == {**DEVICE, "share_id": 5}
    assert numbers(dra_v1beta1_pb2.Device) == DEVICE
    assert not dra_v1_pb2.Device().HasField("share_id")


@pytest.mark.parametrize(
    ("module", "package", "service"),
    [
        (registration_v1_pb2, "pluginregistration", "Registration"),
        (dra_v1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1", "DRAPlugin"),
        (dra_v1beta1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1beta1", "DRAPlugin"),
        (health_v1_pb2, "v1", "DRAResourceHealth"),
        (health_v1alpha1_pb2, "v1alpha1", "DRAResourceHealth"),
    ],
)
def test_services_have_their_public_names(module, package: str, service: str):
    assert all(path.startswith(f"/{package}.{service}/") for path in services(module))


def test_versions_are_advertised_as_the_kubelet_names_them_newest_first():
    calls = ClaimCalls("gpu.nvidia.com", NotCalled(), RunningCalls())

    assert advertised([DraV1(calls), DraV1Beta1(calls)]) == ("v1.DRAPlugin", "v1beta1.DRAPlugin")


class NotCalled:
    """No call reaches a service here."""

    async def prepare(self, _claims, _deadline):
        raise AssertionError

    unprepare = prepare
