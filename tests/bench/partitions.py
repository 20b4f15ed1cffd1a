"""Partitions of GPUs: what one costs beyond the time that NVML itself takes to make it."""

import ctypes
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from dra_gpu.vendors.nvidia.neighbours import Neighbours
from tests.bench.cluster import Claims
from tests.bench.figures import Figure, percentile
from tests.bench.plugin import Plugin

_LEAVE_SECONDS = 30.0
_FIRST = 20  # samples of what turns MIG mode on and off, each time
_ONE_SLICE = pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE


@dataclass(slots=True)
class Bench:
    """What the scenarios work with.

    Attributes:
        devices: two partitions of one slice of one GPU, whose MIG mode changes live.
        samples: calls behind a percentile.
        library: libnvidia-ml.so.1.
        gpu: index of another GPU of that kind that nobody uses, on which NVML's own time is measured.
        locks: where the plugin hears that others want the GPUs, which it holds open to wait for events.
    """

    plugin: Plugin
    claims: Claims
    devices: Sequence[str]
    samples: int
    library: Path
    gpu: int
    locks: Path

    async def first_partitions(self) -> list[float]:
        """Prepare the only partition of a GPU, again and again: its MIG mode is turned on, and off."""
        taken = []
        for _ in range(_FIRST):
            claim = self.claims.make(self.devices[0])
            taken.append(await self.plugin.prepare(claim))
            await self.plugin.unprepare(claim)
        return taken

    async def next_partitions(self) -> tuple[list[float], list[float]]:
        """Prepare and unprepare one partition after another beside one that stays."""
        stays = self.claims.make(self.devices[0])
        await self.plugin.prepare(stays)
        prepares, unprepares = [], []
        for _ in range(self.samples):
            claim = self.claims.make(self.devices[1])
            prepares.append(await self.plugin.prepare(claim))
            unprepares.append(await self.plugin.unprepare(claim))
        await self.plugin.unprepare(stays)
        return prepares, unprepares

    def nvml_alone(self) -> tuple[list[float], list[float]]:
        """Make and destroy a GPU instance and its compute instance by the four calls that it takes."""
        made, destroyed = [], []
        with _left_alone(self.locks), _in_mig_mode(self.library, self.gpu) as handle:
            profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, _ONE_SLICE).id
            place = pynvml.byref(pynvml.c_nvmlGpuInstancePlacement_t(0, 1))
            for _ in range(self.samples):
                started = time.perf_counter()
                gpu_instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, place)
                compute_instance = pynvml.nvmlGpuInstanceCreateComputeInstance(
                    gpu_instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE
                )
                between = time.perf_counter()
                pynvml.nvmlComputeInstanceDestroy(compute_instance)
                pynvml.nvmlGpuInstanceDestroy(gpu_instance)
                made.append(between - started)
                destroyed.append(time.perf_counter() - between)
        return made, destroyed


@contextmanager
def _left_alone(locks: Path) -> Iterator[None]:
    """Have nobody wait for events meanwhile: NVML changes no MIG mode while another process has the GPUs open."""
    neighbours = Neighbours(locks)
    with neighbours.asked():
        until = time.monotonic() + _LEAVE_SECONDS
        while neighbours.watched and time.monotonic() < until:
            time.sleep(0.05)
        yield


@contextmanager
def _in_mig_mode(library: Path, gpu: int) -> Iterator[Any]:
    """Give the handle of a GPU that is in MIG mode meanwhile."""
    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_ENABLE)
        yield handle
        pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_DISABLE)
    finally:
        pynvml.nvmlShutdown()


async def run(bench: Bench) -> list[Figure]:
    """All of it, once."""
    made, destroyed = bench.nvml_alone()
    writes = bench.claims.api.slice_writes()
    first = await bench.first_partitions()
    prepares, unprepares = await bench.next_partitions()
    after = bench.claims.api.slice_writes()
    own, own_back = _p50(made), _p50(destroyed)
    figures = [
        Figure("first 1g partition of a GPU p50, MIG mode on", _p50(first), "ms", own),
        Figure("1g partition prepare p50", _p50(prepares), "ms", own, own + 10, "NVML's own + 10"),
        Figure("1g partition prepare p99", 1000 * percentile(prepares, 0.99), "ms", own),
        Figure("1g partition unprepare p50", _p50(unprepares), "ms", own_back),
    ]
    if writes is not None and after is not None:
        figures.append(Figure("slice writes of claims on partitions", after - writes, "", 0, 0, "0"))
    return figures


def _p50(seconds: Sequence[float]) -> float:
    """Median in ms."""
    return 1000 * statistics.median(seconds)
