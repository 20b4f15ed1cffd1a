"""What breaks, and how a client sees it."""

import subprocess
import sys
import threading
import time

import pytest

from dra_gpu_sim.checker import sessions
from dra_gpu_sim.node import SimulatedNode
from tests.component.sim.conftest import code


def until_hit(node: SimulatedNode) -> None:
    """Wait until a call has met the first fault; only the state file tells."""
    while not node.faults()[0].hits:
        time.sleep(0.001)


def test_a_call_answers_the_injected_code_on_one_gpu_only(node, nvml):
    first, second = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    node.inject("nvmlDeviceGetName", gpu=1, code=999)
    assert code(lambda: nvml.nvmlDeviceGetName(first)) == 0
    assert code(lambda: nvml.nvmlDeviceGetName(second)) == 999


def test_a_counted_fault_happens_so_often_and_is_gone(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.inject("nvmlDeviceGetName", code=999, count=2)
    assert [code(lambda: nvml.nvmlDeviceGetName(handle)) for _ in range(3)] == [999, 999, 0]
    assert node.faults() == []


def test_a_star_matches_every_call_that_begins_so(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.inject("nvmlDeviceGetMemory*", code=3)
    assert code(lambda: nvml.nvmlDeviceGetMemoryInfo(handle)) == 3
    assert code(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)) == 3
    assert code(lambda: nvml.nvmlDeviceGetName(handle)) == 0


def test_a_handle_lookup_fails_for_the_gpu_that_the_fault_names(node, nvml):
    node.inject("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=15)
    assert code(lambda: nvml.nvmlDeviceGetHandleByIndex(0)) == 0
    assert code(lambda: nvml.nvmlDeviceGetHandleByIndex(1)) == 15


def test_initialisation_can_fail(node, load):
    node.inject("nvmlInit*", code=9, count=1)
    assert code(lambda: load(node)) == 9
    assert code(lambda: load(node)) == 0


def test_a_delay_passes_before_the_answer(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.inject("nvmlDeviceGetName", delay_ms=60)
    before = time.monotonic()
    nvml.nvmlDeviceGetName(handle)
    assert time.monotonic() - before >= 0.06


def test_a_delayed_call_does_not_hold_up_calls_on_other_gpus(node, nvml):
    first, second = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    node.inject("nvmlDeviceGetName", gpu=0, delay_ms=3000)
    late = threading.Thread(target=nvml.nvmlDeviceGetName, args=(first,))
    late.start()
    until_hit(node)
    nvml.nvmlDeviceGetName(second)
    assert late.is_alive()
    late.join()


def test_a_blocked_call_hangs_until_the_fault_is_cleared_and_then_answers(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    serial = node.inject("nvmlDeviceGetName", block=True)
    names = []
    stuck = threading.Thread(target=lambda: names.append(nvml.nvmlDeviceGetName(handle)))
    stuck.start()
    until_hit(node)
    assert code(lambda: nvml.nvmlDeviceGetUUID(handle)) == 0
    assert stuck.is_alive()
    node.clear(serial=serial)
    stuck.join(60)
    assert names == ["NVIDIA H100 80GB HBM3"]


@pytest.mark.case("C67")
@pytest.mark.parametrize("wrong", [3, 15, 999])
def test_every_getter_can_be_made_to_fail(node, nvml, wrong):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    getters = [nvml.nvmlDeviceGetBrand, nvml.nvmlDeviceGetArchitecture, nvml.nvmlDeviceGetSerial]
    getters += [nvml.nvmlDeviceGetPciInfo, nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetComputeMode]
    getters += [nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetAddressingMode, nvml.nvmlDeviceGetMinorNumber]
    for getter in getters:
        node.inject(f"{getter.__name__}*", code=wrong)
        assert code(lambda getter=getter: getter(handle)) == wrong
        node.clear()
        assert code(lambda getter=getter: getter(handle)) == 0


def test_a_lost_gpu_answers_so_to_every_call_and_to_lookups(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    node.lose_gpu(1)
    for call in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlDeviceGetComputeMode):
        assert code(lambda call=call: call(handle)) == nvml.NVML_ERROR_GPU_IS_LOST
    assert code(lambda: nvml.nvmlDeviceGetHandleByIndex(1)) == nvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.nvmlDeviceGetCount() == 2


def test_with_one_gpu_lost_no_gpu_is_found_by_uuid(node, nvml):
    node.lose_gpu(1)
    assert code(lambda: nvml.nvmlDeviceGetHandleByUUID(node.uuids[0])) == nvml.NVML_ERROR_GPU_IS_LOST
    assert code(lambda: nvml.nvmlDeviceGetHandleByIndex(0)) == 0


def test_a_gpu_that_returns_stays_lost_to_whoever_initialised_before(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    node.lose_gpu(1)
    node.return_gpu(1)
    assert code(lambda: nvml.nvmlDeviceGetUUID(handle)) == nvml.NVML_ERROR_GPU_IS_LOST
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1)) == node.uuids[1]


HOLD_THE_LOCK = """
import sys
from pathlib import Path
from dra_gpu_sim.statefile import locked
with locked(Path(sys.argv[1])) as state:
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_process_killed_while_it_holds_the_lock_does_not_block_the_others(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, node.state_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        waiting = threading.Thread(target=nvml.nvmlDeviceGetName, args=(handle,))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        holder.kill()
    waiting.join(60)
    assert not waiting.is_alive()


CALL_FOR_EVER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
assert library.nvmlInit_v2() == 0
handle = ctypes.c_void_p()
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
print("ready", flush=True)
mode = 0
while True:
    library.nvmlDeviceSetComputeMode(handle, 0 if mode else 3)
    mode = not mode
"""


def test_a_process_killed_in_the_middle_of_its_calls_leaves_a_working_node(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", CALL_FOR_EVER, node.library], stdout=subprocess.PIPE) as caller:
            caller.stdout.readline()
            caller.kill()
        assert nvml.nvmlDeviceGetComputeMode(handle) in (0, 3)


def test_a_thread_and_a_forked_child_do_not_share_the_lock(node):
    script = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
assert library.nvmlInit_v2() == 0
child = os.fork()
count = ctypes.c_uint()
for _ in range(200):
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 2
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script, node.library], check=False, timeout=120).returncode == 0


def test_a_nonsense_handle_is_an_invalid_argument_and_no_crash(nvml):
    assert code(lambda: nvml.nvmlDeviceGetName(nvml.c_nvmlDevice_t())) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_wrong_struct_version_is_told(nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, 0x0300_0028)) == 25


def test_a_state_of_another_layout_is_a_version_mismatch(node, load):
    with node.state() as state:
        state.layout_version += 1
    assert code(lambda: load(node)) == 18


def test_every_call_is_logged_with_pid_gpu_and_result(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    node.forget_calls()
    nvml.nvmlDeviceSetComputeMode(handle, nvml.NVML_COMPUTEMODE_PROHIBITED)
    node.lose_gpu(1)
    code(lambda: nvml.nvmlDeviceGetName(handle))
    seen = [(call.name, call.gpu, call.result, call.detail) for call in node.calls()]
    assert seen == [("nvmlDeviceSetComputeMode", 1, 0, "mode=2"), ("nvmlDeviceGetName", 1, 15, "")]


def test_the_log_can_be_turned_off(node, nvml):
    node.log_calls(on=False)
    node.forget_calls()
    nvml.nvmlDeviceGetCount()
    assert node.calls() == []


def test_a_session_holds_the_gpus_it_took_handles_of_until_it_shuts_down(node, nvml):
    nvml.nvmlDeviceGetHandleByIndex(1)
    assert list(sessions(node.root).values()) == [(1,)]
    nvml.nvmlShutdown()
    assert sessions(node.root) == {}
    nvml.nvmlInit()


def test_a_fault_that_would_do_nothing_is_refused(node):
    with pytest.raises(ValueError, match="needs a code, a delay or block"):
        node.inject("nvmlInit_v2")
    with pytest.raises(ValueError, match="there is no GPU 7: the node has 2"):
        node.inject("nvmlInit_v2", gpu=7, code=1)


def test_what_a_board_does_not_support_is_no_fault_and_survives_clearing(make_node, load):
    node = make_node("P-uma1")
    assert node.faults() == []
    assert node.clear() == 0
    nvml = load(node)
    assert code(lambda: nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0))) == 3


def test_a_destroyed_node_leaves_nothing_and_can_be_made_again(tmp_path):
    node = SimulatedNode.create(tmp_path / "node", "L4", gpus=1)
    with pytest.raises(FileExistsError):
        SimulatedNode.create(tmp_path / "node", "L4")
    node.destroy()
    assert not (tmp_path / "node").exists()
    SimulatedNode.create(tmp_path / "node", "L4", gpus=1).destroy()
