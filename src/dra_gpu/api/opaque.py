"""The opaque configs that this driver takes: NVIDIA's kinds and its own, through one strict entry."""

import msgspec

from dra_gpu.api import dra_gpu_v1alpha1, nvidia_v1beta1
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.dra_gpu_v1alpha1 import SharedGpuConfig

OpaqueConfig = nvidia_v1beta1.DeviceConfig | SharedGpuConfig

_OUR_GROUP = dra_gpu_v1alpha1.API_VERSION.partition("/")[0]


class _Kind(msgspec.Struct, frozen=True):
    """What tells one kind from another."""

    api_version: str = msgspec.field(name="apiVersion", default="")
    kind: str = ""


def decode(parameters: bytes) -> OpaqueConfig:
    """Decode and validate an opaque config.

    Raises:
        InvalidConfigError: not JSON, an unknown kind, version or field, or a value outside its limits.
    """
    try:
        kind = msgspec.json.decode(parameters, type=_Kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidConfigError(f"opaque config: {error}; it is an object with apiVersion and kind") from error
    if kind.kind == "SharedGpuConfig" or kind.api_version.partition("/")[0] == _OUR_GROUP:
        return dra_gpu_v1alpha1.decode(parameters)
    return nvidia_v1beta1.decode(parameters)
