"""Short words for the objects of a manifest that a test makes up itself."""

from typing import Any

Json = dict[str, Any]


def request(device_class: str = "gpu.nvidia.com", *, name: str = "gpu", selector: str = "", **fields: Any) -> Json:
    exactly: Json = {"deviceClassName": device_class, **fields}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"name": name, "exactly": exactly}


def claim(*requests: Json, config: tuple[Json, ...] = (), name: str = "gpus") -> Json:
    """A template of claims with these requests; one GPU by default."""
    devices: Json = {"requests": list(requests) or [request()]}
    if config:
        devices["config"] = list(config)
    spec = {"spec": {"devices": devices}}
    return _object("resource.k8s.io/v1", "ResourceClaimTemplate", name, spec=spec)


def config(kind: str = "GpuConfig", *requests: str, **fields: Any) -> Json:
    """A config of NVIDIA's driver."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    opaque = {"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    return {"requests": list(requests), **opaque} if requests else opaque


def mps(**settings: Any) -> Json:
    return {"strategy": "MPS", **({"mpsConfig": settings} if settings else {})}


def turns(interval: str) -> Json:
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def pod(name: str = "pod", template: str = "gpus", *, env: Json | None = None) -> Json:
    """A pod with a claim from a template."""
    container: Json = {"name": "work", "image": "cuda", "resources": {"claims": [{"name": "gpus"}]}}
    if env:
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    claims = [{"name": "gpus", "resourceClaimTemplateName": template}]
    return _object("v1", "Pod", name, spec={"containers": [container], "resourceClaims": claims})


def extended(name: str = "pod", resource: str = "nvidia.com/gpu", amount: int = 1) -> Json:
    """A pod that asks as one does with a device plugin."""
    container = {"name": "work", "image": "cuda", "resources": {"limits": {resource: amount}}}
    return _object("v1", "Pod", name, spec={"containers": [container]})


def device_class(name: str, expression: str, *, resource: str = "") -> Json:
    spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
    if resource:
        spec["extendedResourceName"] = resource
    return _object("resource.k8s.io/v1", "DeviceClass", name, spec=spec)


def _object(version: str, kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}
