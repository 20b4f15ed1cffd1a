import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api import nvidia_v1beta1 as api
from dra_gpu.api import opaque
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.quantity import Quantity


def config(kind="GpuConfig", **fields):
    return json.dumps({"apiVersion": api.API_VERSION, "kind": kind, **fields}).encode()


def test_a_time_slice_config_is_decoded():
    decoded = opaque.decode(config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}))

    assert decoded.sharing.time_slicing_config.interval is api.TimeSliceInterval.LONG


def test_the_interval_is_default_when_it_is_not_given():
    decoded = opaque.decode(config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}))

    assert decoded.sharing.time_slicing_config.interval is api.TimeSliceInterval.DEFAULT


def test_a_config_without_sharing_asks_for_nothing():
    assert opaque.decode(config()).sharing is None


def test_an_mps_config_is_decoded():
    mps = {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi"},
        "multiUser": True,
    }

    decoded = opaque.decode(config(sharing={"strategy": "MPS", "mpsConfig": mps}))

    assert decoded.sharing.mps_config == api.MpsConfig(50, Quantity("10Gi"), {"0": Quantity("5Gi")}, multi_user=True)


def test_a_limit_may_be_a_bare_number_of_bytes_as_kubernetes_reads_quantities():
    decoded = opaque.decode(config(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": 2**31}}))

    assert decoded.sharing.mps_config.default_pinned_device_memory_limit == "2147483648"


def test_null_is_the_same_as_leaving_an_optional_field_out():
    mps = dict.fromkeys(
        (
            "defaultActiveThreadPercentage",
            "defaultPinnedDeviceMemoryLimit",
            "defaultPerDevicePinnedMemoryLimit",
            "multiUser",
        )
    )
    decoded = opaque.decode(config(sharing={"strategy": "MPS", "timeSlicingConfig": None, "mpsConfig": mps}))

    assert decoded.sharing.mps_config == api.MpsConfig()
    assert decoded.sharing.mps_config.default_per_device_pinned_memory_limit == {}
    assert opaque.decode(config(sharing=None)) == api.GpuConfig()
    assert opaque.decode(config("VfioDeviceConfig", iommu={"enableAPIDevice": None})).iommu == api.IommuConfig()


def test_a_passthrough_config_is_decoded_with_nvidias_defaults():
    decoded = opaque.decode(config("VfioDeviceConfig", iommu={"enableAPIDevice": True}))

    assert decoded.iommu == api.IommuConfig(api.IommuBackendPolicy.LEGACY_ONLY, enable_api_device=True)
    assert opaque.decode(config("VfioDeviceConfig")).iommu is None


def test_a_mig_device_takes_mps_and_time_slicing_without_settings():
    assert opaque.decode(config("MigDeviceConfig", sharing={"strategy": "TimeSlicing"})) == api.MigDeviceConfig(
        sharing=api.MigDeviceSharing(api.SharingStrategy.TIME_SLICING)
    )
    mps = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
    assert opaque.decode(config("MigDeviceConfig", sharing=mps)).sharing.mps_config == api.MpsConfig(50)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"intervl": "Long"}}), "intervl"),
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Huge"}}), "Huge"),
        (config(sharing={"strategy": "Magic"}), "sharing.strategy is 'Magic': write one of TimeSlicing, MPS"),
        (config(sharing={}), "strategy"),
        (config(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}), "mpsConfig"),
        (config(sharing={"strategy": "MPS", "timeSlicingConfig": {}}), "timeSlicingConfig"),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}), "101"),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": -1}}), "-1"),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Ki"}}), "1Mi"),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "lots"}}), "lots"),
        (
            config(sharing={"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "1"}}}),
            "defaultPerDevicePinnedMemoryLimit",
        ),
        (config(kind="FooConfig"), "FooConfig"),
        (config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}), "timeSlicingConfig"),
        (config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "mpsConfig": {}}), "mpsConfig"),
        (config("ComputeDomainChannelConfig", domainID="x"), "compute-domain.nvidia.com"),
        (b'{"kind": "GpuConfig"}', "apiVersion is missing: write resource.nvidia.com/v1beta1"),
        (
            b'{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": null, "sharing": {}}',
            "twice",
        ),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50.0}}), "50.0"),
        (config(sharing={"strategy": "MPS", "mpsConfig": {"multiUser": "yes"}}), "multiUser"),
        (config(kind="VfioDeviceConfig", iommu={"backendPolicy": "Any"}), "backendPolicy"),
        (b'{"apiVersion": "resource.nvidia.com/v9", "kind": "GpuConfig"}', "v1beta1"),
        (b"{", "opaque config"),
        (b"[" * 100_000, "opaque config"),
        (b"\xff\xfe", "opaque config"),
    ],
)
def test_a_wrong_config_is_refused_by_the_name_of_what_is_wrong(parameters, words):
    with pytest.raises(InvalidConfigError) as caught:
        opaque.decode(parameters)

    assert words in str(caught.value)


def test_every_problem_of_a_config_is_told_at_once():
    wrong = config(sharing={"strategy": "Magic", "timeSlicingConfig": {"intervl": "Long"}, "mpsConfig": []}, extra=1)

    with pytest.raises(InvalidConfigError) as caught:
        opaque.decode(wrong)

    assert [problem.field for problem in caught.value.problems] == [
        "sharing.strategy",
        "sharing.timeSlicingConfig.intervl",
        "sharing.mpsConfig",
        "extra",
    ]
    assert "write interval" in caught.value.problems[1].remedy


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=10,
)


@given(
    st.binary(max_size=200) | JSON.map(lambda value: config(sharing=value)) | JSON.map(lambda v: json.dumps(v).encode())
)
def test_no_bytes_do_more_than_decode_or_be_refused(parameters):
    try:
        opaque.decode(parameters)
    except InvalidConfigError:
        return
