"""A strict check of opaque configs that shares nothing with the driver but the rules, written as plain tables."""

import re
from fractions import Fraction

NVIDIA = "resource.nvidia.com/v1beta1"
_NUMBER = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(.*)", re.ASCII | re.DOTALL)
_FACTORS = {suffix: Fraction(1024) ** power for power, suffix in enumerate(["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])}
_FACTORS |= {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_FACTORS |= {"k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12)}
_FACTORS |= {"P": Fraction(10**15), "E": Fraction(10**18)}


def accepts(driver, value):
    """Tell whether a driver could use a config."""
    if not isinstance(value, dict):
        return False
    match driver, value.get("apiVersion"), value.get("kind"):
        case "gpu.nvidia.com", "resource.nvidia.com/v1beta1", "GpuConfig":
            return _only(value, "sharing") and _optional(value, "sharing", _gpu_sharing)
        case "gpu.nvidia.com", "resource.nvidia.com/v1beta1", "MigDeviceConfig":
            return _only(value, "sharing") and _optional(value, "sharing", _mig_sharing)
        case "gpu.nvidia.com", "resource.nvidia.com/v1beta1", "VfioDeviceConfig":
            return _only(value, "iommu") and _optional(value, "iommu", _iommu)
        case "gpu.nvidia.com", "resource.dra-gpu.dev/v1alpha1", "SharedGpuConfig":
            return _shared(value)
        case "compute-domain.nvidia.com", "resource.nvidia.com/v1beta1", "ComputeDomainChannelConfig":
            mode = value.get("allocationMode", "Single")
            return _only(value, "domainID", "allocationMode") and _uid(value) and _one_of(mode, "Single", "All")
        case "compute-domain.nvidia.com", "resource.nvidia.com/v1beta1", "ComputeDomainDaemonConfig":
            return _only(value, "domainID") and _uid(value)
    return False


def _only(value, *fields):
    return isinstance(value, dict) and set(value) <= {"apiVersion", "kind", *fields}


def _fields(value, *fields):
    return isinstance(value, dict) and set(value) <= set(fields)


def _optional(value, field, check):
    return value.get(field) is None or check(value[field])


def _one_of(value, *texts):
    return isinstance(value, str) and value in texts


def _gpu_sharing(value):
    if not _fields(value, "strategy", "timeSlicingConfig", "mpsConfig"):
        return False
    slices, mps = value.get("timeSlicingConfig"), value.get("mpsConfig")
    match value.get("strategy"):
        case "TimeSlicing":
            return mps is None and (slices is None or _slices(slices))
        case "MPS":
            return slices is None and (mps is None or _mps(mps))
    return False


def _mig_sharing(value):
    return isinstance(value, dict) and "timeSlicingConfig" not in value and _gpu_sharing(value)


def _slices(value):
    names = ("Default", "Short", "Medium", "Long")
    return _fields(value, "interval") and _optional(value, "interval", lambda name: _one_of(name, *names))


def _mps(value):
    fields = (
        "defaultActiveThreadPercentage",
        "defaultPinnedDeviceMemoryLimit",
        "defaultPerDevicePinnedMemoryLimit",
        "multiUser",
    )
    return (
        _fields(value, *fields)
        and _optional(value, fields[0], lambda it: type(it) is int and 0 < it < 101)
        and _optional(value, fields[1], _limit)
        and _optional(value, fields[2], lambda it: isinstance(it, dict) and all(map(_limit, it.values())))
        and _optional(value, fields[3], lambda it: type(it) is bool)
    )


def _limit(value):
    if type(value) not in (str, int, float):
        return False
    match = _NUMBER.fullmatch(str(value))
    if match is None:
        return False
    sign, number, suffix = match.groups()
    factor = _FACTORS.get(suffix)
    if factor is None:
        exponent = re.fullmatch(r"[eE]([+-]?\d{1,3})", suffix, re.ASCII)
        if exponent is None:
            return False
        factor = Fraction(10) ** int(exponent[1])
    return sign != "-" and Fraction(number) * factor >= 2**20


def _iommu(value):
    return (
        _fields(value, "backendPolicy", "enableAPIDevice")
        and _one_of(value.get("backendPolicy", "LegacyOnly"), "LegacyOnly", "PreferIommuFD")
        and _optional(value, "enableAPIDevice", lambda it: type(it) is bool)
    )


def _shared(value):
    strategy = value.get("strategy", "Auto")
    enforcement = value.get("enforcement", "BestEffort")
    priority = value.get("clientPriority", "Normal")
    return (
        _only(value, "strategy", "enforcement", "clientPriority")
        and _one_of(strategy, "Auto", "MPS", "TimeSlicing")
        and _one_of(enforcement, "BestEffort", "Required")
        and _one_of(priority, "Normal", "BelowNormal")
        and (strategy != "TimeSlicing" or (enforcement, priority) == ("BestEffort", "Normal"))
    )


def _uid(value):
    parts = value.get("domainID").split("-") if isinstance(value.get("domainID"), str) else []
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and set("".join(parts)) <= set("0123456789abcdef")
