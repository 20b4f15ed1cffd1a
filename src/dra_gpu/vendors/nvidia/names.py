"""NVML's numbers as the names that NVIDIA's driver publishes. A number that is not in a table is printed as it is."""

import pynvml

# nvmlBrandType_t, NVML API reference; the spellings are those of NVIDIA's DRA driver and go-nvlib.
_BRANDS = {
    pynvml.NVML_BRAND_UNKNOWN: "Unknown",
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
# nvmlDeviceArchitecture_t.
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
    pynvml.NVML_DEVICE_ARCH_UNKNOWN: "Unknown",
}
_ADDRESSING_MODES = {
    pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
}
# FP32 cores of one SM by compute capability (CUDA C++ Programming Guide 13, "Compute Capabilities").
_CORES_BY_CAPABILITY = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_CORES = 128


def brand(number: int | None) -> str | None:
    """Return the brand by NVML's number."""
    return _name(_BRANDS, number)


def architecture(number: int | None) -> str | None:
    """Return the architecture by NVML's number."""
    return _name(_ARCHITECTURES, number)


def addressing_mode(number: int | None) -> str | None:
    """Return the addressing mode by NVML's number."""
    return _name(_ADDRESSING_MODES, number)


def multiprocessors(cores: int | None, capability: tuple[int, int] | None) -> int | None:
    """Return the number of SMs: NVML counts cores, and a compute capability has a fixed number of them in an SM."""
    if not cores or capability is None:
        return None
    return int(cores) // _CORES_BY_CAPABILITY.get((int(capability[0]), int(capability[1])), _CORES)


def _name(table: dict[int, str], number: int | None) -> str | None:
    return None if number is None else table.get(number, str(number))
