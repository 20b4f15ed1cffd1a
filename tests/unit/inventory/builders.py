"""Small GPUs for tests: only what a test cares about is written out."""

from dra_gpu.inventory.model import Gpu, NvLink

GIB = 2**30


def gpu(number: int, **facts) -> Gpu:
    """Return GPU `number` of a board with 80 GiB at its own PCI address."""
    defaults = {
        "uuid": f"GPU-{number:08x}-0000-0000-0000-000000000000",
        "index": number,
        "minor": number,
        "pci_address": f"0000:{0x10 + number:02x}:00.0",
        "product_name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80 * GIB,
        "multiprocessors": 132,
        "compute_capability": (9, 0),
    }
    return Gpu(**{**defaults, **facts})


def linked(number: int, *others: int, **facts) -> Gpu:
    """Return GPU `number` with one direct NVLink to each of the others."""
    links = tuple(
        NvLink(link=position, active=True, version=4, remote_address=f"0000:{0x10 + other:02x}:00.0")
        for position, other in enumerate(others)
    )
    return gpu(number, nvlinks=links, **facts)


def switched(number: int, *, active: bool = True, **facts) -> Gpu:
    """Return GPU `number` with one NVLink to a switch."""
    return gpu(number, nvlinks=(NvLink(link=0, active=active, version=4, remote_is_switch=True),), **facts)
