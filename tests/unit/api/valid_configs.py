"""Valid opaque configs of every kind, and what becomes of them when somebody slips."""

import copy

from hypothesis import strategies as st

from dra_gpu.api.opaque import DOMAIN_DRIVER, GPU_DRIVER

_NVIDIA = "resource.nvidia.com/v1beta1"
_MPS = {
    "strategy": "MPS",
    "mpsConfig": {
        "defaultActiveThreadPercentage": 50,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi", "GPU-1": 2147483648},
        "multiUser": True,
    },
}
_SLICES = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
_UID = "7a3c6f10-58f1-4b8e-9a3e-0d5b2b0c1d2e"

VALID = [
    (GPU_DRIVER, {"apiVersion": _NVIDIA, "kind": "GpuConfig"}),
    (GPU_DRIVER, {"apiVersion": _NVIDIA, "kind": "GpuConfig", "sharing": _MPS}),
    (GPU_DRIVER, {"apiVersion": _NVIDIA, "kind": "GpuConfig", "sharing": _SLICES}),
    (GPU_DRIVER, {"apiVersion": _NVIDIA, "kind": "MigDeviceConfig", "sharing": _MPS}),
    (GPU_DRIVER, {"apiVersion": _NVIDIA, "kind": "MigDeviceConfig", "sharing": {"strategy": "TimeSlicing"}}),
    (
        GPU_DRIVER,
        {
            "apiVersion": _NVIDIA,
            "kind": "VfioDeviceConfig",
            "iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True},
        },
    ),
    (
        GPU_DRIVER,
        {
            "apiVersion": "resource.dra-gpu.dev/v1alpha1",
            "kind": "SharedGpuConfig",
            "strategy": "MPS",
            "enforcement": "Required",
            "clientPriority": "BelowNormal",
        },
    ),
    (
        DOMAIN_DRIVER,
        {"apiVersion": _NVIDIA, "kind": "ComputeDomainChannelConfig", "domainID": _UID, "allocationMode": "All"},
    ),
    (DOMAIN_DRIVER, {"apiVersion": _NVIDIA, "kind": "ComputeDomainDaemonConfig", "domainID": _UID}),
]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["MPS", "TimeSlicing", "Long", "All", "1Mi", "1Ki", "0", "-1Gi", _NVIDIA, "GpuConfig"])
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)

FIELDS = sorted(
    {"sharing", "strategy", "mpsConfig", "timeSlicingConfig", "interval", "iommu", "kind", "apiVersion", "domainID"}
)


def _objects(value):
    """Yield every object and list within a value."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        yield value
        for item in value:
            yield from _objects(item)


@st.composite
def _mutated(draw):
    value = copy.deepcopy(draw(st.sampled_from(VALID))[1])
    for _ in range(draw(st.integers(0, 2))):
        places = [place for place in _objects(value) if isinstance(place, dict)]
        place = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace", "remove", "add", "rename"])):
            case "replace" if place:
                place[draw(st.sampled_from(sorted(place)))] = draw(JSON)
            case "remove" if place:
                del place[draw(st.sampled_from(sorted(place)))]
            case "rename" if place:
                place[draw(st.sampled_from(FIELDS))] = place.pop(draw(st.sampled_from(sorted(place))))
            case _:
                place[draw(st.sampled_from(FIELDS) | st.text(max_size=8))] = draw(JSON)
    return value


MUTATED = _mutated()
