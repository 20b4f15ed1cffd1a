"""The opaque configs that the drivers here take: NVIDIA's kinds and our own, through one strict entry."""

from collections.abc import Iterator, Mapping
from typing import assert_never

from dra_gpu.api import compute_domain, dra_gpu_v1alpha1, nvidia_v1beta1, strict
from dra_gpu.api.compute_domain import ComputeDomainChannelConfig, ComputeDomainDaemonConfig
from dra_gpu.api.config_error import FieldProblem, InvalidConfigError
from dra_gpu.api.dra_gpu_v1alpha1 import SharedGpuConfig
from dra_gpu.api.nvidia_v1beta1 import GpuConfig, MigDeviceConfig, VfioDeviceConfig

OpaqueConfig = nvidia_v1beta1.DeviceConfig | SharedGpuConfig
AnyConfig = OpaqueConfig | compute_domain.DomainConfig

GPU_DRIVER = "gpu.nvidia.com"
DOMAIN_DRIVER = "compute-domain.nvidia.com"

# By driver, then by apiVersion and kind. Each kind has one apiVersion.
KINDS: Mapping[str, Mapping[tuple[str, str], type[AnyConfig]]] = {
    GPU_DRIVER: {
        (nvidia_v1beta1.API_VERSION, "GpuConfig"): GpuConfig,
        (nvidia_v1beta1.API_VERSION, "MigDeviceConfig"): MigDeviceConfig,
        (nvidia_v1beta1.API_VERSION, "VfioDeviceConfig"): VfioDeviceConfig,
        (dra_gpu_v1alpha1.API_VERSION, "SharedGpuConfig"): SharedGpuConfig,
    },
    DOMAIN_DRIVER: {
        (nvidia_v1beta1.API_VERSION, "ComputeDomainChannelConfig"): ComputeDomainChannelConfig,
        (nvidia_v1beta1.API_VERSION, "ComputeDomainDaemonConfig"): ComputeDomainDaemonConfig,
    },
}


def decode(parameters: bytes) -> OpaqueConfig:
    """Decode and validate a config of the GPU driver.

    Raises:
        InvalidConfigError: not JSON, an unknown kind, version or field, a field that stands twice, or a value outside
            its limits.
    """
    config = read(GPU_DRIVER, strict.load(parameters))
    assert not isinstance(config, compute_domain.DomainConfig)
    return config


def read(driver: str, value: object) -> AnyConfig:
    """Return the config that a JSON value says to a driver.

    Args:
        driver: one of `KINDS`.
        value: the parameters.

    Raises:
        InvalidConfigError: as `decode`.
    """
    config = strict.convert(value, _kind(driver, value))
    found = tuple(problems(config))
    if found:
        raise InvalidConfigError(*found)
    return config


def problems(config: AnyConfig) -> Iterator[FieldProblem]:
    """Yield what the fields of a config say that cannot be, each alone or together."""
    match config:
        case GpuConfig() | MigDeviceConfig() | VfioDeviceConfig():
            yield from nvidia_v1beta1.problems(config)
        case SharedGpuConfig():
            yield from dra_gpu_v1alpha1.problems(config)
        case ComputeDomainChannelConfig() | ComputeDomainDaemonConfig():
            yield from compute_domain.problems(config)
        case _:
            assert_never(config)


def _kind(driver: str, value: object) -> type[AnyConfig]:
    if not isinstance(value, dict):
        raise InvalidConfigError(FieldProblem("", "is no object", "write an object with apiVersion and kind"))
    version, kind = value.get("apiVersion"), value.get("kind")
    known = KINDS[driver]
    if isinstance(version, str) and isinstance(kind, str) and (version, kind) in known:
        return known[version, kind]
    versions = {name: number for number, name in known}
    if isinstance(kind, str) and kind in versions:
        shown = "missing" if version is None else f"{str(version)[:80]!r}, which has no {kind}"
        raise InvalidConfigError(FieldProblem("apiVersion", f"is {shown}", f"write {versions[kind]}"))
    shown = "missing" if kind is None else f"{str(kind)[:80]!r}, which driver {driver} does not take"
    choice = ", ".join(f"{name} ({number})" for number, name in known)
    owner = next((one for one, kinds in KINDS.items() if any(name == kind for _, name in kinds)), None)
    remedy = f"it belongs to driver {owner}" if owner else f"write one of {choice}"
    raise InvalidConfigError(FieldProblem("kind", f"is {shown}", remedy))
