"""`resource.dra-gpu.dev/v1alpha1`: this driver's own opaque configs, for what NVIDIA's kinds cannot say."""

import enum
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from dra_gpu.api.config_error import FieldProblem
from dra_gpu.api.strict import Strict

API_VERSION: Final = "resource.dra-gpu.dev/v1alpha1"


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


class SharedGpuConfig(Strict, frozen=True, tag_field="kind", tag="SharedGpuConfig"):
    """Config of a device of the views `shared` and `shared-mig`.

    Attributes:
        api_version: always `API_VERSION`.
        strategy: how its processes and those of other shares use the GPU.
        enforcement: what is accepted as a limit.
        client_priority: of its processes; belongs to MPS.
    """

    api_version: Literal["resource.dra-gpu.dev/v1alpha1"] = msgspec.field(name="apiVersion", default=API_VERSION)
    strategy: SharedStrategy = SharedStrategy.AUTO
    enforcement: Enforcement = Enforcement.BEST_EFFORT
    client_priority: ClientPriority = ClientPriority.NORMAL


def problems(config: SharedGpuConfig) -> Iterator[FieldProblem]:
    """Yield what the fields of a config say that cannot be, each alone or together."""
    if config.strategy is not SharedStrategy.TIME_SLICING:
        return
    if config.enforcement is Enforcement.REQUIRED:
        yield FieldProblem(
            "enforcement",
            "is Required, which cannot be met with strategy TimeSlicing: that limits nothing",
            "write strategy MPS or Auto, or enforcement BestEffort",
        )
    if config.client_priority is not ClientPriority.NORMAL:
        yield FieldProblem(
            "clientPriority",
            f"is {config.client_priority.value}, which belongs to MPS and means nothing with strategy TimeSlicing",
            "remove it, or write strategy MPS",
        )
