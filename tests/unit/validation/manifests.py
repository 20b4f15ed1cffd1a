"""Claims, templates and classes to be checked, as they stand in files."""

from dra_gpu.validation import manifest
from dra_gpu.validation.problem import Severity

NVIDIA = "resource.nvidia.com/v1beta1"
MPS = {"sharing": {"strategy": "MPS"}}


def request(name="r", cls="gpu.nvidia.com", **fields):
    return {"name": name, "exactly": {"deviceClassName": cls} | fields}


def share(name="r", cls="shared.gpu.nvidia.com", count=None, **amounts):
    fields = {"count": count} if count else {}
    return request(name, cls, **fields, capacity={"requests": amounts or {"computePercent": "20", "memory": "10Gi"}})


def choice(name, *alternatives):
    return {"name": name, "firstAvailable": [{"name": sub, "deviceClassName": cls} for sub, cls in alternatives]}


def config(kind="GpuConfig", *, requests=None, driver="gpu.nvidia.com", version=None, **fields):
    version = version or ("resource.dra-gpu.dev/v1alpha1" if kind == "SharedGpuConfig" else NVIDIA)
    entry = {"opaque": {"driver": driver, "parameters": {"apiVersion": version, "kind": kind} | fields}}
    return entry if requests is None else {"requests": requests} | entry


def claim(*requests, configs=(), version="v1", kind="ResourceClaim", **devices):
    asked = {"requests": [flat(one) if version == "v1beta1" else one for one in requests]} | devices
    if configs:
        asked["config"] = list(configs)
    spec = {"devices": asked}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": "c", "namespace": "team"},
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }


def flat(one):
    """Return a request in the form of v1beta1."""
    return {"name": one["name"], **one["exactly"]} if "exactly" in one else one


def device_class(name, *configs, **fields):
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"config": list(configs)} | fields,
    }


def problems(document, **options):
    """Return what is wrong with a document, as (severity, field, text)."""
    report = manifest.check(document, **options)
    assert report is not None
    return report.problems


def errors(document, **options):
    return [problem for problem in problems(document, **options) if problem.severity is Severity.ERROR]


def the_one(document, severity=Severity.ERROR):
    """Return the only problem of a document, which has a severity."""
    (problem,) = problems(document)
    assert problem.severity is severity
    return problem
