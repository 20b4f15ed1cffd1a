"""`resource.dra-gpu.dev/v1alpha1`: this driver's own opaque configs, for what NVIDIA's kinds cannot say."""

import enum

import msgspec

from dra_gpu.api.config_error import InvalidConfigError

API_VERSION = "resource.dra-gpu.dev/v1alpha1"


class SharedStrategy(enum.Enum):
    """How the processes of several shares use one GPU."""

    AUTO = "Auto"  # MPS where the GPU and driver can, else time slices
    MPS = "MPS"
    TIME_SLICING = "TimeSlicing"


class Enforcement(enum.Enum):
    """What a claim accepts as a limit."""

    BEST_EFFORT = "BestEffort"  # takes limits that a container could lift, and says so in the claim's status
    REQUIRED = "Required"  # refuses them


class ClientPriority(enum.Enum):
    """Priority of a share's processes among those of other shares; a hint of MPS."""

    NORMAL = "Normal"
    BELOW_NORMAL = "BelowNormal"


class SharedGpuConfig(
    msgspec.Struct,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    frozen=True,
    tag_field="kind",
    tag="SharedGpuConfig",
):
    """Config of a device of the `shared` view.

    Attributes:
        api_version: always `API_VERSION`.
        strategy: how its processes and those of other shares use the GPU.
        enforcement: what is accepted as a limit.
        client_priority: of its processes; belongs to MPS.
    """

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    strategy: SharedStrategy = SharedStrategy.AUTO
    enforcement: Enforcement = Enforcement.BEST_EFFORT
    client_priority: ClientPriority = ClientPriority.NORMAL


_decoder = msgspec.json.Decoder(SharedGpuConfig)


def decode(parameters: bytes) -> SharedGpuConfig:
    """Decode and validate a config of this driver's own.

    Raises:
        InvalidConfigError: not JSON, an unknown kind, version, field or value, or fields that exclude each other.
    """
    try:
        config = _decoder.decode(parameters)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidConfigError(
            f"opaque config of {API_VERSION}: {error}; the only kind is SharedGpuConfig"
        ) from error
    if config.api_version != API_VERSION:
        raise InvalidConfigError(f"apiVersion {config.api_version[:80]!r} is not known: write {API_VERSION}")
    if config.strategy is SharedStrategy.TIME_SLICING:
        _refuse_what_time_slices_lack(config)
    return config


def _refuse_what_time_slices_lack(config: SharedGpuConfig) -> None:
    if config.enforcement is Enforcement.REQUIRED:
        raise InvalidConfigError(
            "enforcement Required cannot be met with strategy TimeSlicing, which limits nothing: write strategy MPS or "
            "Auto, or enforcement BestEffort"
        )
    if config.client_priority is not ClientPriority.NORMAL:
        raise InvalidConfigError(
            f"clientPriority {config.client_priority.value} belongs to MPS and means nothing with strategy "
            "TimeSlicing: remove it, or write strategy MPS"
        )
