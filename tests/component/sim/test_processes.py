"""Processes, memory and memory limits."""

import os
import subprocess

import pytest

from tests.component.sim.conftest import code

GIB = 1 << 30


def test_memory_of_processes_is_used_memory(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.add_process(os.getpid(), 0, memory=10 * GIB)
    second = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    assert (second.used, second.reserved) == (10 * GIB, 551 << 20)
    assert second.total == second.used + second.reserved + second.free
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used == second.used + second.reserved


def test_running_processes_are_listed_and_the_dead_are_dropped(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    dead = subprocess.Popen(["true"])
    dead.wait()
    node.add_process(os.getpid(), 0, memory=GIB)
    node.add_process(dead.pid, 0, memory=GIB)
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert [(process.pid, process.usedGpuMemory) for process in listed] == [(os.getpid(), GIB)]
    assert node.snapshot().holders(0) == (os.getpid(),)


def test_mps_clients_have_a_list_of_their_own(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.add_process(os.getpid(), 0, memory=GIB, kind=4)
    node.add_process(os.getppid(), 0, memory=GIB, kind=3)
    assert len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) == 2
    assert [process.pid for process in nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)] == [os.getppid()]
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == []


def test_utilisation_without_a_process_is_not_found(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code(lambda: nvml.nvmlDeviceGetProcessUtilization(handle, 0)) == nvml.NVML_ERROR_NOT_FOUND
    node.add_process(os.getpid(), 0, memory=GIB)
    assert [sample.pid for sample in nvml.nvmlDeviceGetProcessUtilization(handle, 0)] == [os.getpid()]


def limits(nvml, handle, path):
    found = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=path.encode())
    nvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
    return found.softLimit, found.hardLimit, found.currentUsed


def set_limit(nvml, handle, path, hard, soft=0):
    nvml.nvmlDeviceSetMemoryLimits_v1(handle, nvml.c_nvmlSetMemoryLimits_v1_t(path.encode(), soft, hard))


def test_a_limit_is_kept_inherited_and_cleared(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    none = 2**64 - 1
    assert limits(nvml, handle, "/kubepods/pod1") == (0, none, 0)
    set_limit(nvml, handle, "/kubepods/pod1", 10 * GIB)
    node.add_process(os.getpid(), 0, memory=12 * GIB, cgroup="/kubepods/pod1/container")
    assert limits(nvml, handle, "/kubepods/pod1/container") == (0, 10 * GIB, 12 * GIB)
    assert limits(nvml, handle, "/kubepods/pod10") == (0, none, 0)
    assert [limit.hard for limit in node.snapshot().limits] == [10 * GIB]
    set_limit(nvml, handle, "/kubepods/pod1", none)
    assert node.snapshot().limits == ()


def test_a_limit_below_the_present_use_is_accepted(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.add_process(os.getpid(), 0, memory=20 * GIB, cgroup="/pod")
    assert code(lambda: set_limit(nvml, handle, "/pod", GIB)) == 0


@pytest.mark.parametrize(("soft", "hard"), [(2 * GIB, GIB), (0, 100 * GIB)])
def test_a_soft_limit_above_the_hard_one_or_more_than_the_gpu_is_refused(nvml, soft, hard):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code(lambda: set_limit(nvml, handle, "/pod", hard, soft)) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_cgroup_that_does_not_exist_cannot_be_limited(make_node, load, tmp_path):
    (tmp_path / "cgroup/pod").mkdir(parents=True)
    nvml = load(make_node("H100", gpus=1, settings=[f"node.cgroup_root={tmp_path}/cgroup"]))
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code(lambda: set_limit(nvml, handle, "/pod", GIB)) == 0
    assert code(lambda: set_limit(nvml, handle, str(tmp_path / "cgroup/pod"), GIB)) == 0
    assert code(lambda: set_limit(nvml, handle, "/gone", GIB)) == nvml.NVML_ERROR_NOT_FOUND


def test_memory_limits_do_not_exist_in_mig(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == 0
    assert code(lambda: set_limit(nvml, handle, "/pod", GIB)) == nvml.NVML_ERROR_NOT_SUPPORTED


def test_a_snapshot_compares_equal_when_everything_is_as_it_was(node, nvml):
    before = node.snapshot()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetComputeMode(handle, 3)
    assert node.snapshot() != before
    nvml.nvmlDeviceSetComputeMode(handle, 0)
    assert node.snapshot() == before
