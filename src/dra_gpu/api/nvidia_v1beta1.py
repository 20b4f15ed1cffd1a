"""`resource.nvidia.com/v1beta1`: the opaque configs of NVIDIA's GPU driver, with its names, defaults and limits.

A config from a user is decoded strictly: an unknown field is an error that names it. The journal keeps the steps that
a config led to, never the config, so that what was accepted once still works after a downgrade. A field may be null
where NVIDIA's is optional; that is the same as leaving it out.
Source: kubernetes-sigs/dra-driver-nvidia-gpu v0.5, api/nvidia.com/resource/v1beta1.
"""

import enum
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from dra_gpu.api import quantity
from dra_gpu.api.config_error import FieldProblem, InvalidConfigError
from dra_gpu.api.quantity import Quantity
from dra_gpu.api.strict import Strict

API_VERSION: Final = "resource.nvidia.com/v1beta1"
_MEBI = 2**20
# NVIDIA's webhook lets 0 pass and hands it to MPS, which knows 1 to 100 (MPS documentation r615).
_MIN_PERCENT, _MAX_PERCENT = 1, 100

# What an editor may know beyond the type; enforced by `problems`, whose messages say more.
Percent = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": _MIN_PERCENT, "maximum": _MAX_PERCENT})]


class SharingStrategy(enum.Enum):
    """How several containers use one GPU or MIG device."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class TimeSliceInterval(enum.Enum):
    """Length of a time slice. NVIDIA publishes no milliseconds; `nvidia-smi compute-policy` takes 0 to 3."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


class TimeSlicingConfig(Strict, frozen=True):
    """Settings of the strategy TimeSlicing."""

    interval: TimeSliceInterval | None = TimeSliceInterval.DEFAULT


class MpsConfig(Strict, frozen=True):
    """Settings of the strategy MPS.

    Attributes:
        default_active_thread_percentage: percent of the SMs for each client process, 1 to 100.
        default_pinned_device_memory_limit: quantity of device memory for each client process, at least 1Mi.
        default_per_device_pinned_memory_limit: the same by UUID or by index among the devices that the config governs.
        multi_user: one server for all users. Here every server is one, so that both values are met.
    """

    default_active_thread_percentage: Percent | None = None
    default_pinned_device_memory_limit: Quantity | None = None
    per_device_limits: dict[str, Quantity] | None = msgspec.field(
        name="defaultPerDevicePinnedMemoryLimit", default=None
    )
    multi_user: bool | None = None

    @property
    def default_per_device_pinned_memory_limit(self) -> dict[str, Quantity]:
        """The limits by UUID or index; empty where none is given."""
        return self.per_device_limits or {}


class GpuSharing(Strict, frozen=True):
    """The strategy, and the settings that belong to it alone."""

    strategy: SharingStrategy
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class MigDeviceSharing(Strict, frozen=True):
    """The same for a MIG device, whose processes take turns by themselves: there is no time slice to set."""

    strategy: SharingStrategy
    mps_config: MpsConfig | None = None


class GpuConfig(Strict, frozen=True, tag_field="kind", tag="GpuConfig"):
    """Config of a whole GPU. Without `sharing` nothing about the GPU is changed."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = msgspec.field(name="apiVersion", default=API_VERSION)
    sharing: GpuSharing | None = None


class MigDeviceConfig(Strict, frozen=True, tag_field="kind", tag="MigDeviceConfig"):
    """Config of a MIG device."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = msgspec.field(name="apiVersion", default=API_VERSION)
    sharing: MigDeviceSharing | None = None


class IommuBackendPolicy(enum.Enum):
    """Which interface of the IOMMU a passthrough device is used through."""

    LEGACY_ONLY = "LegacyOnly"
    PREFER_IOMMUFD = "PreferIommuFD"


class IommuConfig(Strict, frozen=True):
    """How a passthrough device reaches the IOMMU.

    Attributes:
        backend_policy: which of the kernel's interfaces is used.
        enable_api_device: whether the container gets the API device, /dev/iommu or /dev/vfio/vfio.
    """

    backend_policy: IommuBackendPolicy = IommuBackendPolicy.LEGACY_ONLY
    enable_api_device: bool | None = msgspec.field(name="enableAPIDevice", default=None)


class VfioDeviceConfig(Strict, frozen=True, tag_field="kind", tag="VfioDeviceConfig"):
    """Config of a passthrough device."""

    api_version: Literal["resource.nvidia.com/v1beta1"] = msgspec.field(name="apiVersion", default=API_VERSION)
    iommu: IommuConfig | None = None


DeviceConfig = GpuConfig | MigDeviceConfig | VfioDeviceConfig


def problems(config: DeviceConfig) -> Iterator[FieldProblem]:
    """Yield what the fields of a config say that cannot be, each alone or together."""
    match config:
        case GpuConfig(sharing=GpuSharing() as sharing):
            yield from _of_strategy(sharing.strategy, sharing.mps_config)
            if sharing.strategy is SharingStrategy.MPS and sharing.time_slicing_config is not None:
                yield FieldProblem(
                    "sharing.timeSlicingConfig",
                    "does not belong to strategy MPS",
                    "remove it, or set strategy: TimeSlicing",
                )
        case MigDeviceConfig(sharing=MigDeviceSharing() as sharing):
            yield from _of_strategy(sharing.strategy, sharing.mps_config)


def _of_strategy(strategy: SharingStrategy, mps: MpsConfig | None) -> Iterator[FieldProblem]:
    if mps is None:
        return
    if strategy is SharingStrategy.TIME_SLICING:
        yield FieldProblem(
            "sharing.mpsConfig", "does not belong to strategy TimeSlicing", "remove it, or set strategy: MPS"
        )
        return
    percent = mps.default_active_thread_percentage
    if percent is not None and not _MIN_PERCENT <= percent <= _MAX_PERCENT:
        yield FieldProblem(
            "sharing.mpsConfig.defaultActiveThreadPercentage",
            f"is {percent}",
            "write a whole percentage from 1 to 100, or leave it out for no limit",
        )
    if mps.default_pinned_device_memory_limit is not None:
        yield from _of_limit(DEFAULT_LIMIT_FIELD, mps.default_pinned_device_memory_limit)
    for key, limit in mps.default_per_device_pinned_memory_limit.items():
        yield from _of_limit(per_device_field(key), limit)


def _of_limit(field: str, limit: str) -> Iterator[FieldProblem]:
    try:
        pinned_limit(field, limit)
    except InvalidConfigError as error:
        yield from error.problems


DEFAULT_LIMIT_FIELD = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"


def per_device_field(key: str) -> str:
    """Return the path of one limit of `default_per_device_pinned_memory_limit`, for messages."""
    return f"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[{key[:80]!r}]"


def pinned_limit(field: str, text: str) -> int:
    """Return a memory limit in bytes, rounded down to the whole MiB that MPS counts in (`10G` is 9536 MiB).

    Args:
        field: path of the field, for the message.
        text: a quantity.

    Raises:
        InvalidConfigError: not a quantity, or less than 1Mi.
    """
    try:
        value = quantity.parse(text)
    except quantity.InvalidQuantityError as error:
        raise InvalidConfigError(
            FieldProblem(field, f"is {text[:40]!r}, which is no quantity", "write a number with a unit, such as 10Gi")
        ) from error
    if value < _MEBI:
        raise InvalidConfigError(FieldProblem(field, f"is {text[:40]!r}", "write at least 1Mi, the smallest limit"))
    return int(value // _MEBI) * _MEBI
