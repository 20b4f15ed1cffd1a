"""`resource.dra-gpu.dev/v1alpha1`: this driver's own opaque configs, for what NVIDIA's kinds cannot say."""

import enum

import msgspec

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
    """Config of a device of the `shared` view."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    strategy: SharedStrategy = SharedStrategy.AUTO
    enforcement: Enforcement = Enforcement.BEST_EFFORT
    client_priority: ClientPriority = ClientPriority.NORMAL
