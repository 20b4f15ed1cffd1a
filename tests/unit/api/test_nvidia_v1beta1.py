import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api import nvidia_v1beta1 as api


def config(kind="GpuConfig", **fields):
    return json.dumps({"apiVersion": api.API_VERSION, "kind": kind, **fields}).encode()


def test_a_time_slice_config_is_decoded():
    decoded = api.decode(config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}))

    assert decoded.sharing.time_slicing_config.interval is api.TimeSliceInterval.LONG


def test_the_interval_is_default_when_it_is_not_given():
    decoded = api.decode(config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {}}))

    assert decoded.sharing.time_slicing_config.interval is api.TimeSliceInterval.DEFAULT


def test_a_config_without_sharing_asks_for_nothing():
    assert api.decode(config()).sharing is None


def test_an_mps_config_is_decoded():
    mps = {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi"},
        "multiUser": True,
    }

    decoded = api.decode(config(sharing={"strategy": "MPS", "mpsConfig": mps}))

    assert decoded.sharing.mps_config == api.MpsConfig(50, "10Gi", {"0": "5Gi"}, multi_user=True)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"intervl": "Long"}}), "intervl"),
        (config(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Huge"}}), "Huge"),
        (config(sharing={"strategy": "Magic"}), "Magic"),
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
        (config(kind="VfioDeviceConfig", iommu={"backendPolicy": "Any"}), "backendPolicy"),
        (b'{"apiVersion": "resource.nvidia.com/v9", "kind": "GpuConfig"}', "v1beta1"),
        (b"{", "opaque config"),
        (b"[" * 100_000, "opaque config"),
        (b"\xff\xfe", "opaque config"),
    ],
)
def test_a_wrong_config_is_refused_by_the_name_of_what_is_wrong(parameters, words):
    with pytest.raises(api.InvalidConfigError) as caught:
        api.decode(parameters)

    assert words in str(caught.value)


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
        api.decode(parameters)
    except api.InvalidConfigError:
        return
