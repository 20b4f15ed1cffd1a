"""What NVML's event sets tell, with a library that has whatever a test puts there."""

from collections import deque
from types import SimpleNamespace

import pynvml
import pytest

from dra_gpu.vendors.health import HealthEvent, HealthEventKind
from dra_gpu.vendors.nvidia.events import EventSet, LostGpuError, handed_over

XID, CLOCK = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeClock
NO_INSTANCE = 0xFFFFFFFF


class Library:
    """NVML's event sets: each has what a test puts into it, and then ends each wait by a code."""

    def __init__(self, monkeypatch):
        self.sets = []
        self.code = pynvml.NVML_ERROR_TIMEOUT
        self.timeouts = []
        monkeypatch.setattr(pynvml, "nvmlEventSetCreate", self.create)
        monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", self.wait)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")

    def create(self):
        self.sets.append(deque())
        return self.sets[-1]

    def wait(self, queue, milliseconds):
        self.timeouts.append(milliseconds)
        if not queue:
            raise pynvml.NVMLError(self.code)
        return queue.popleft()


@pytest.fixture
def library(monkeypatch):
    return Library(monkeypatch)


def data(xid, gpu=0, kind=XID, instance=NO_INSTANCE):
    return SimpleNamespace(
        device=gpu, eventType=kind, eventData=xid, gpuInstanceId=instance, computeInstanceId=instance
    )


def told(events):
    return [(event.gpu, event.xid, event.count) for event in events]


def test_what_happens_many_times_is_told_once_with_how_often(library):
    found = EventSet()
    library.sets[0].extend([*[data(31)] * 500, data(79, gpu=1), *[data(31)] * 100, data(31, instance=3)])

    events = found.wait(500)

    assert told(events) == [("GPU-0", 31, 600), ("GPU-1", 79, 1), ("GPU-0", 31, 1)]
    assert events[-1] == HealthEvent("GPU-0", HealthEventKind.XID, 31, 3, 3)
    assert library.timeouts == [500, *[0] * 602]


def test_a_gpu_that_reports_without_end_ends_a_wait_all_the_same(library):
    found = EventSet()
    library.sets[0].extend([data(31)] * 5000)

    assert sum(event.count for event in found.wait(500)) == 1024


def test_events_that_nobody_asked_for_end_a_wait_as_well(library):
    found = EventSet()
    library.sets[0].extend([data(0, kind=CLOCK)] * 5000)

    assert found.wait(500) == []
    assert set(library.timeouts[1:]) == {0}


def test_a_set_that_goes_tells_all_that_it_has_and_the_next_one_only_what_is_new(library):
    former, following = EventSet(), EventSet()
    library.sets[0].extend([data(31)] * 3000)
    library.sets[1].extend([*[data(31)] * 10, data(48)])
    library.code = pynvml.NVML_ERROR_GPU_IS_LOST

    assert told(handed_over(former, following)) == [("GPU-0", 31, 3000), ("GPU-0", 48, 1)]


def test_a_wait_that_says_lost_is_told_when_nothing_else_has_happened(library):
    found = EventSet()
    library.code = pynvml.NVML_ERROR_GPU_IS_LOST
    library.sets[0].append(data(79))

    assert told(found.wait(500)) == [("GPU-0", 79, 1)]
    with pytest.raises(LostGpuError):
        found.wait(500)
