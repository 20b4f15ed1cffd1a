"""Events: Xids reach the sets that wait for them."""

import threading
import time

import pytest

from tests.component.sim.conftest import code

XID, RECOVERY = 0x8, 0x8000
#: Milliseconds that nobody waits for what happens at once.
LONG_MS = 60_000


@pytest.fixture
def watch(nvml):
    """A set that waits for Xids of both GPUs."""
    events = nvml.nvmlEventSetCreate()
    for index in range(2):
        nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(index), XID, events)
    yield events
    nvml.nvmlEventSetFree(events)


def test_a_waiting_set_gets_an_xid_at_once_and_field_230_tells_what_to_do(node, nvml, watch):
    threading.Timer(0.05, node.xid, (1, 79)).start()
    before = time.monotonic()
    event = nvml.nvmlEventSetWait_v2(watch, LONG_MS)
    assert time.monotonic() - before < LONG_MS / 2000
    assert (event.eventType, event.eventData) == (XID, 79)
    assert nvml.nvmlDeviceGetUUID(event.device) == node.uuids[1]
    assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert nvml.nvmlDeviceGetFieldValues(event.device, [230])[0].value.uiVal == 2


def test_a_wait_without_an_event_times_out_without_spending_the_cpu(nvml, watch):
    before = time.process_time()
    assert code(lambda: nvml.nvmlEventSetWait_v2(watch, 1000)) == nvml.NVML_ERROR_TIMEOUT
    assert time.process_time() - before < 0.25


def test_events_come_in_order_and_once(node, nvml, watch):
    for number in (13, 31, 43):
        node.xid(0, number)
    assert [nvml.nvmlEventSetWait_v2(watch, 1000).eventData for _ in range(3)] == [13, 31, 43]
    assert code(lambda: nvml.nvmlEventSetWait_v2(watch, 0)) == nvml.NVML_ERROR_TIMEOUT


def test_what_happened_before_registration_is_not_delivered(node, nvml):
    node.xid(0, 13)
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), XID, events)
    assert code(lambda: nvml.nvmlEventSetWait_v2(events, 0)) == nvml.NVML_ERROR_TIMEOUT
    nvml.nvmlEventSetFree(events)


def test_two_sets_get_the_same_event(node, nvml, watch):
    other = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), XID, other)
    node.xid(0, 48)
    assert [nvml.nvmlEventSetWait_v2(events, 1000).eventData for events in (watch, other)] == [48, 48]
    nvml.nvmlEventSetFree(other)


def test_a_change_of_the_recovery_action_is_an_event_of_its_own(node, nvml):
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), RECOVERY, events)
    node.set_recovery_action(0, 4)
    event = nvml.nvmlEventSetWait_v2(events, 1000)
    assert (event.eventType, event.eventData) == (RECOVERY, 4)
    nvml.nvmlEventSetFree(events)


@pytest.mark.case("C103")
def test_an_xid_of_a_mig_instance_names_it(node, nvml, watch):
    node.xid(0, 43, gi=7, ci=0)
    event = nvml.nvmlEventSetWait_v2(watch, 1000)
    assert (event.gpuInstanceId, event.computeInstanceId) == (7, 0)


@pytest.mark.case("C100")
def test_a_lost_gpu_in_the_set_ends_every_wait_at_once(node, nvml, watch):
    node.lose_gpu(1)
    before = time.monotonic()
    answers = [code(lambda: nvml.nvmlEventSetWait_v2(watch, LONG_MS)) for _ in range(3)]
    assert answers == [nvml.NVML_ERROR_GPU_IS_LOST] * 3
    assert time.monotonic() - before < LONG_MS / 2000


@pytest.mark.case("C100")
def test_a_fault_of_one_gpu_is_one_of_every_wait_whose_set_has_it(node, nvml, watch):
    node.inject("nvmlEventSetWait*", gpu=1, code=nvml.NVML_ERROR_GPU_IS_LOST)
    other = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), XID, other)
    node.xid(0, 31)
    assert code(lambda: nvml.nvmlEventSetWait_v2(watch, LONG_MS)) == nvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.nvmlEventSetWait_v2(other, LONG_MS).eventData == 31
    nvml.nvmlEventSetFree(other)


def test_a_wait_in_progress_ends_when_a_gpu_gets_lost(node, nvml, watch):
    threading.Timer(0.05, node.lose_gpu, (0,)).start()
    assert code(lambda: nvml.nvmlEventSetWait_v2(watch, LONG_MS)) == nvml.NVML_ERROR_GPU_IS_LOST


def test_a_type_that_is_not_supported_leaves_nothing_registered_and_the_set_usable(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    events = nvml.nvmlEventSetCreate()
    unsupported = XID | 0x10
    assert nvml.nvmlDeviceGetSupportedEventTypes(handle) & 0x10 == 0
    assert code(lambda: nvml.nvmlDeviceRegisterEvents(handle, unsupported, events)) == 3
    node.xid(0, 13)
    assert code(lambda: nvml.nvmlEventSetWait_v2(events, 0)) == nvml.NVML_ERROR_TIMEOUT
    nvml.nvmlDeviceRegisterEvents(handle, XID, events)
    nvml.nvmlEventSetFree(events)


def test_a_burst_longer_than_the_ring_loses_the_oldest_and_hangs_nobody(node, nvml, watch):
    for number in range(300):
        node.xid(0, 1000 + number)
    assert nvml.nvmlEventSetWait_v2(watch, 1000).eventData == 1000 + 300 - 256
