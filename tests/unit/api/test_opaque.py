"""One strict entry for every opaque config."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.api import nvidia_v1beta1, opaque
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.dra_gpu_v1alpha1 import ClientPriority, Enforcement, SharedGpuConfig, SharedStrategy

MIB = 2**20


def shared(**fields) -> bytes:
    return json.dumps({"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "SharedGpuConfig", **fields}).encode()


def mps(**fields) -> bytes:
    sharing = {"strategy": "MPS", "mpsConfig": fields}
    return json.dumps({"apiVersion": nvidia_v1beta1.API_VERSION, "kind": "GpuConfig", "sharing": sharing}).encode()


def test_each_vendors_kind_is_decoded_by_its_api_version():
    assert isinstance(opaque.decode(mps()), nvidia_v1beta1.GpuConfig)
    assert opaque.decode(shared()) == SharedGpuConfig()


def test_every_field_of_a_shared_config_is_read():
    decoded = opaque.decode(shared(strategy="MPS", enforcement="Required", clientPriority="BelowNormal"))
    assert decoded.strategy is SharedStrategy.MPS
    assert decoded.enforcement is Enforcement.REQUIRED
    assert decoded.client_priority is ClientPriority.BELOW_NORMAL


@pytest.mark.case("C98")
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (shared(enforcment="Required"), "enforcment"),
        (shared(enforcement="Strict"), "Strict"),
        (shared(strategy="TimeSlicing", enforcement="Required"), "enforcement is Required"),
        (shared(strategy="TimeSlicing", clientPriority="BelowNormal"), "clientPriority is BelowNormal"),
        (b'{"apiVersion": "resource.dra-gpu.dev/v9", "kind": "SharedGpuConfig"}', "v1alpha1"),
        (b'{"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "GpuConfig"}', "resource.nvidia.com/v1beta1"),
        (b'{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "SharedGpuConfig"}', "resource.dra-gpu.dev/v1alpha1"),
        (b"[]", "apiVersion and kind"),
        (b"\xff", "opaque config"),
    ],
)
def test_a_config_that_would_be_ignored_in_part_is_refused_by_name(parameters, words):
    with pytest.raises(InvalidConfigError) as caught:
        opaque.decode(parameters)
    assert words in str(caught.value)


@pytest.mark.case("C88")
@pytest.mark.parametrize(
    ("text", "mebibytes"), [("10Gi", 10240), ("10G", 9536), ("1500M", 1430), ("1.5Gi", 1536), ("1Mi", 1)]
)
def test_a_pinned_limit_is_rounded_down_to_whole_mib(text, mebibytes):
    assert nvidia_v1beta1.pinned_limit("field", text) == mebibytes * MIB


@pytest.mark.case("C88")
@pytest.mark.parametrize("text", ["1m", "0", "-1Gi", "1023Ki", "8000Mb", "8000MB", "1K", "NaN", "inf", " 1Gi", "1,5Gi"])
def test_a_pinned_limit_below_1_mib_or_in_no_unit_is_refused_with_its_field(text):
    with pytest.raises(InvalidConfigError, match=r"mpsConfig\.defaultPinnedDeviceMemoryLimit"):
        opaque.decode(mps(defaultPinnedDeviceMemoryLimit=text))
    with pytest.raises(InvalidConfigError, match=r"mpsConfig\.defaultPerDevicePinnedMemoryLimit\['1'\]"):
        opaque.decode(mps(defaultPerDevicePinnedMemoryLimit={"1": text}))


@pytest.mark.case("C88")
@pytest.mark.parametrize("percent", [0, 101, -1, 33.3, "50", "50%"])
def test_a_percentage_is_a_whole_number_from_1_to_100(percent):
    with pytest.raises(InvalidConfigError, match="defaultActiveThreadPercentage"):
        opaque.decode(mps(defaultActiveThreadPercentage=percent))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=10,
)


@given(st.binary(max_size=200) | st.dictionaries(st.text(max_size=20), JSON, max_size=3).map(lambda it: shared(**it)))
def test_no_bytes_do_more_than_decode_or_be_refused(parameters):
    try:
        opaque.decode(parameters)
    except InvalidConfigError:
        return
