"""`resource.nvidia.com/v1beta1`: the opaque configs of NVIDIA's driver, with its names, defaults and limits.

A config from a user is decoded strictly: an unknown field is an error that names it. The journal keeps the steps that
a config led to, never the config, so that what was accepted once still works after a downgrade.
Source: kubernetes-sigs/dra-driver-nvidia-gpu v0.5, api/nvidia.com/resource/v1beta1.
"""

import enum

import msgspec

from dra_gpu.api import quantity
from dra_gpu.api.config_error import InvalidConfigError

API_VERSION = "resource.nvidia.com/v1beta1"
_MEBI = 2**20
_MIN_PERCENT, _MAX_PERCENT = 1, 100


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


class _Strict(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    """A camelCase object that refuses fields it does not know."""


class TimeSlicingConfig(_Strict, frozen=True):
    """Settings of the strategy TimeSlicing."""

    interval: TimeSliceInterval = TimeSliceInterval.DEFAULT


class MpsConfig(_Strict, frozen=True):
    """Settings of the strategy MPS.

    Attributes:
        default_active_thread_percentage: percent of the SMs for each client process, 1 to 100.
        default_pinned_device_memory_limit: quantity of device memory for each client process, at least 1Mi.
        default_per_device_pinned_memory_limit: the same by UUID or by index among the devices that the config governs.
        multi_user: one server for all users. Here every server is one, so that both values are met.
    """

    default_active_thread_percentage: int | None = None
    default_pinned_device_memory_limit: str | None = None
    default_per_device_pinned_memory_limit: dict[str, str] = {}
    multi_user: bool = False


class GpuSharing(_Strict, frozen=True):
    """The strategy, and the settings that belong to it alone."""

    strategy: SharingStrategy
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class GpuConfig(_Strict, frozen=True, tag_field="kind", tag="GpuConfig"):
    """Config of a whole GPU. Without `sharing` nothing about the GPU is changed."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    sharing: GpuSharing | None = None


class MigDeviceConfig(_Strict, frozen=True, tag_field="kind", tag="MigDeviceConfig"):
    """Config of a MIG device."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    sharing: GpuSharing | None = None


class IommuConfig(_Strict, frozen=True):
    """How a passthrough device reaches the IOMMU."""

    backend_policy: str = "LegacyOnly"
    enable_api_device: bool = msgspec.field(name="enableAPIDevice", default=False)


class VfioDeviceConfig(_Strict, frozen=True, tag_field="kind", tag="VfioDeviceConfig"):
    """Config of a passthrough device."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    iommu: IommuConfig | None = None


DeviceConfig = GpuConfig | MigDeviceConfig | VfioDeviceConfig

_decoder = msgspec.json.Decoder(DeviceConfig)


def decode(parameters: bytes) -> DeviceConfig:
    """Decode and validate an opaque config.

    Raises:
        InvalidConfigError: not JSON, an unknown kind, version or field, or a value outside its limits.
    """
    try:
        config = _decoder.decode(parameters)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidConfigError(
            f"opaque config of {API_VERSION}: {error}; kinds are GpuConfig, MigDeviceConfig and VfioDeviceConfig"
        ) from error
    if config.api_version != API_VERSION:
        raise InvalidConfigError(f"apiVersion {config.api_version[:80]!r} is not known: write {API_VERSION}")
    match config:
        case GpuConfig() | MigDeviceConfig():
            if config.sharing is not None:
                _validate_sharing(config.sharing)
        case VfioDeviceConfig():
            _validate_iommu(config.iommu)
    return config


def _validate_sharing(sharing: GpuSharing) -> None:
    match sharing.strategy:
        case SharingStrategy.TIME_SLICING:
            if sharing.mps_config is not None:
                raise InvalidConfigError(
                    "sharing.mpsConfig does not belong to strategy TimeSlicing: remove it, or set strategy: MPS"
                )
        case SharingStrategy.MPS:
            if sharing.time_slicing_config is not None:
                raise InvalidConfigError(
                    "sharing.timeSlicingConfig does not belong to strategy MPS: remove it, or set strategy: TimeSlicing"
                )
            if sharing.mps_config is not None:
                _validate_mps(sharing.mps_config)


def _validate_mps(config: MpsConfig) -> None:
    percent = config.default_active_thread_percentage
    if percent is not None and not _MIN_PERCENT <= percent <= _MAX_PERCENT:
        raise InvalidConfigError(
            f"sharing.mpsConfig.defaultActiveThreadPercentage is {percent}: write a whole percentage from 1 to 100"
        )
    if config.default_pinned_device_memory_limit is not None:
        pinned_limit(DEFAULT_LIMIT_FIELD, config.default_pinned_device_memory_limit)
    for key, limit in config.default_per_device_pinned_memory_limit.items():
        pinned_limit(per_device_field(key), limit)


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
        raise InvalidConfigError(f"{field}: {error}") from error
    if value < _MEBI:
        raise InvalidConfigError(f"{field} is {text[:40]!r}: the smallest limit is 1Mi")
    return int(value // _MEBI) * _MEBI


def _validate_iommu(iommu: IommuConfig | None) -> None:
    policies = ("LegacyOnly", "PreferIommuFD")
    if iommu is not None and iommu.backend_policy not in policies:
        raise InvalidConfigError(
            f"iommu.backendPolicy {iommu.backend_policy[:80]!r} is not known: write one of {', '.join(policies)}"
        )
