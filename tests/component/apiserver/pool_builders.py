"""Slices as the inventory makes them: whole GPUs that draw on counter sets, in a slice apart."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from dra_gpu.api.resource_v1 import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
)
from dra_gpu.apiserver.clock import Clock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.publish_reports import PublishReport
from dra_gpu.apiserver.publisher import PublisherLimits, SlicePublisher
from dra_gpu.apiserver.reflector import ReflectorLimits
from dra_gpu.apiserver.slice_diff import PoolIdentity
from dra_gpu.inventory.slices import SliceContent

from .conftest import PATIENCE, running

DRIVER, NODE = "gpu.nvidia.com", "node-1"
IDENTITY = PoolIdentity(DRIVER, NODE, NODE)
FAST = PublisherLimits(
    settle=0.02, registration=0.2, recent_registration=0.0, lock_poll=0.02, first_wait=0.02, longest_wait=0.1,
    requests_per_second=1000.0, burst=100,
)  # fmt: skip
FAST_WATCH = ReflectorLimits(between_lists=0.02, first_wait=0.01, longest_wait=0.05)

R = TypeVar("R", bound=PublishReport)


def gpu(
    number: int, *, memory: str = "80Gi", taints: Sequence[DeviceTaint] = (), model: str = "H100", shared: bool = False
) -> Device:
    return Device(
        name=f"gpu-{number}",
        attributes={"productName": DeviceAttribute(string=model), "type": DeviceAttribute(string="gpu")},
        capacity={"memory": DeviceCapacity(memory)},
        consumes_counters=[DeviceCounterConsumption(f"gpu-{number}-counter-set", {"memory": Counter("80Gi")})],
        taints=list(taints),
        allow_multiple_allocations=True if shared else None,
    )


def counters(*numbers: int) -> SliceContent:
    sets = [CounterSet(f"gpu-{number}-counter-set", {"memory": Counter("80Gi")}) for number in numbers]
    return SliceContent(counter_sets=tuple(sets))


def pool(*devices: Device) -> tuple[SliceContent, ...]:
    """A counter slice and one device slice."""
    numbers = [int(device.name.removeprefix("gpu-")) for device in devices]
    return counters(*numbers), SliceContent(devices=tuple(devices))


class Reports:
    """Everything a publisher reported."""

    def __init__(self) -> None:
        self.all: list[PublishReport] = []
        self._moved = asyncio.Event()

    def __call__(self, report: PublishReport) -> None:
        self.all.append(report)
        self._moved.set()

    def of(self, kind: type[R]) -> list[R]:
        return [report for report in self.all if isinstance(report, kind)]

    async def wait(self, kind: type[R], condition: Callable[[R], bool] = lambda _report: True) -> R:
        async with asyncio.timeout(PATIENCE):
            while True:
                for report in self.of(kind):
                    if condition(report):
                        return report
                self._moved.clear()
                await self._moved.wait()


@asynccontextmanager
async def publishing(
    api: KubernetesApi,
    contents: Sequence[SliceContent] | None,
    reports: Reports | None = None,
    *,
    registered: bool = True,
    limits: PublisherLimits = FAST,
    identity: PoolIdentity = IDENTITY,
    may_publish: Callable[[], bool] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[SlicePublisher]:
    """A running publisher that wants `contents`."""
    publisher = SlicePublisher(
        api,
        identity,
        on_report=reports,
        may_publish=may_publish,
        limits=limits,
        reflector_limits=FAST_WATCH,
        clock=clock,
    )
    if contents is not None:
        publisher.publish(contents)
    publisher.set_registered(registered)
    async with running(publisher.run):
        yield publisher


async def settled(publisher: SlicePublisher) -> None:
    """Wait until the server holds what is wanted."""
    async with asyncio.timeout(PATIENCE):
        await publisher.settled.wait()
