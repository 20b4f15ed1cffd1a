"""Opaque configs of claims, as the API server has them in an allocation."""

from dra_gpu_sim.local.cluster import DRIVER


def time_slice(interval: str) -> dict:
    return opaque(
        {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
        }
    )


def opaque(parameters: object, requests: list[str] | None = None) -> dict:
    config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
    return {**config, "requests": requests} if requests else config


def shared_config(**fields: str) -> dict:
    """Our own config of a share."""
    return opaque({"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "SharedGpuConfig", **fields})


def mps_config(**fields: object) -> dict:
    """NVIDIA's config of a whole GPU that is shared within its claim."""
    sharing = {"strategy": "MPS", **({"mpsConfig": fields} if fields else {})}
    return opaque({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing})
