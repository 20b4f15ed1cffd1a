"""A program on a GPU without MPS: what it sees, what it may take, when it is kept out and when it is forgotten."""

import os
from pathlib import Path

import pytest

from dra_gpu_sim.checker import GpuUse, uses
from tests.component.sim.mps import is_error, wait_for_end
from tests.component.sim.test_processes import set_limit

GIB = 1 << 30
CONTEXT = 256 << 20


def test_a_program_has_the_whole_gpu_with_its_memory_and_sms(node):
    with node.client() as client:
        assert client.attached == f"attached gpu={node.uuids[0]} mps=no total=81008 free=80752 used=256 sms=132"
        assert client.command("alloc 5G") == "ok used=5376"
        (seen,) = node.clients()
        assert (seen.pid, seen.gpu, seen.mps, seen.memory) == (client.pid, 0, False, 5 * GIB + CONTEXT)
        assert (seen.sm_percent, seen.sms, seen.memory_limit) == (100, 132, None)


def test_the_uses_of_each_gpu_are_added_up(node, nvml):
    set_limit(nvml, nvml.nvmlDeviceGetHandleByIndex(0), "/pod", 10 * GIB)
    with node.client(cgroup="/pod") as first, node.client() as second:
        assert first.command("alloc 5G") == second.command("alloc 5G") == "ok used=5376"
        used, unused = uses(node.root)
        assert {client.pid for client in used.clients} == {first.pid, second.pid}
        assert used.memory == 2 * (5 * GIB + CONTEXT)
        assert used.memory_limits == 10 * GIB + node.gpus[0].memory
        assert used.sm_percent == 200
        assert unused == GpuUse(1, (), 0, 0, 0)


def test_memory_can_be_freed_and_allocated_again(node):
    with node.client() as client:
        client.command("alloc 60G")
        assert is_error(client.command("alloc 20G"), 2)
        assert client.command("free 30G") == "ok used=30976"
        assert client.command("alloc 20G") == "ok used=51456"
        assert client.command("free") == "ok used=256"


def test_commands_as_arguments_end_with_the_first_error(node):
    with node.client("alloc", "60G", "info", "alloc", "20G", "info") as client:
        assert client.wait() == 1
        assert client.attached.startswith("attached ")
        assert client.line() == "ok used=61696"
        assert client.line().endswith("free=19312 used=61696 sms=132")
        assert is_error(client.line(), 2)


def test_the_memory_of_a_killed_program_is_free(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with node.client() as client:
        client.command("alloc 5G")
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        assert [(entry.pid, entry.usedGpuMemory) for entry in listed] == [(client.pid, 5 * GIB + CONTEXT)]
        client.kill()
        assert node.clients() == ()
        assert node.snapshot().processes == ()
        assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []


def test_a_program_in_a_pid_namespace_of_its_own_is_known_by_its_pid_outside(node, short):
    program = short / "start"
    program.write_text(f'#!/bin/sh\nexec unshare --pid --fork --kill-child {node.root}/bin/cuda-client "$@"\n')
    program.chmod(0o755)
    node.cuda_client = program
    with node.client(environment={"PATH": "/usr/bin:/bin"}) as outer:
        assert outer.attached.startswith("attached ")
        (client,) = node.clients()
        assert client.pid != outer.pid
        stat = Path(f"/proc/{client.pid}/stat").read_text()
        assert int(stat.rpartition(")")[2].split()[1]) == outer.pid
        ended = os.pidfd_open(client.pid)
        outer.kill()
        wait_for_end(ended)
    assert node.clients() == ()


def test_a_program_uses_the_gpu_whose_node_it_has(node):
    with node.client(gpus=[1]) as client:
        assert f"gpu={node.uuids[1]}" in client.attached
        assert [seen.gpu for seen in node.clients()] == [1]


def test_without_a_node_there_is_no_device(node):
    with node.client(gpus=[]) as client:
        assert is_error(client.attached, 100)
        assert client.wait() == 1


@pytest.mark.parametrize(("devices", "index"), [("1", 1), ("1,0", 1), ("{1}", 1), ("0,7", 0), ("", None), ("7", None)])
def test_cuda_visible_devices_selects_up_to_the_first_that_is_none(node, devices, index):
    chosen = devices.format(*node.uuids)
    with node.client(environment={"CUDA_VISIBLE_DEVICES": chosen}) as client:
        expected = "CUDA_ERROR_NO_DEVICE 100" if index is None else f"attached gpu={node.uuids[index]}"
        assert client.attached.startswith(expected)


def test_an_exclusive_gpu_takes_one_process(node, nvml):
    nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByIndex(0), nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    with node.client() as first:
        assert first.attached.startswith("attached ")
        with node.client() as second:
            assert is_error(second.attached, 46)
        first.kill()
        with node.client() as third:
            assert third.attached.startswith("attached ")


def test_a_prohibited_gpu_takes_none(node, nvml):
    nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByIndex(0), nvml.NVML_COMPUTEMODE_PROHIBITED)
    with node.client() as client:
        assert is_error(client.attached, 46)


def test_the_limit_of_a_cgroup_binds_all_its_processes_together(node, nvml):
    set_limit(nvml, nvml.nvmlDeviceGetHandleByIndex(0), "/pod", 10 * GIB)
    with node.client(cgroup="/pod/a") as first, node.client(cgroup="/pod/b") as second, node.client() as free:
        assert first.command("alloc 6G") == "ok used=6400"
        assert is_error(second.command("alloc 6G"), 2)
        assert second.command("alloc 3G") == "ok used=3328"
        assert free.command("alloc 20G") == "ok used=20736"
        assert {seen.memory_limit for seen in node.clients()} == {10 * GIB, None}


def test_a_limit_on_the_parent_leaves_the_total_as_it_is_and_one_on_the_own_cgroup_is_seen_as_the_total(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    set_limit(nvml, handle, "/pod", 10 * GIB)
    with node.client(cgroup="/pod/a") as client:
        assert "total=81008 free=9984" in client.command("info")
        set_limit(nvml, handle, "/pod/a", 4 * GIB)
        assert "total=4096 free=3840" in client.command("info")


def test_a_hard_limit_below_the_use_takes_nothing_back_and_gives_nothing_more(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with node.client(cgroup="/pod/a") as client:
        client.command("alloc 8G")
        set_limit(nvml, handle, "/pod", 4 * GIB)
        assert is_error(client.command("alloc 1M"), 2)
        assert node.clients()[0].memory == 8 * GIB + CONTEXT


def test_a_limit_ends_with_its_cgroup(make_node, load, tmp_path):
    (tmp_path / "cgroup/pod").mkdir(parents=True)
    node = make_node("H100", gpus=1, settings=[f"node.cgroup_root={tmp_path}/cgroup"])
    nvml = load(node)
    set_limit(nvml, nvml.nvmlDeviceGetHandleByIndex(0), "/pod", GIB)
    assert len(node.snapshot().limits) == 1
    (tmp_path / "cgroup/pod").rmdir()
    assert node.snapshot().limits == ()
    with node.client(cgroup="/pod") as client:
        assert client.command("alloc 5G") == "ok used=5376"


def test_a_mig_device_has_its_own_memory_and_sms(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(handle, 19)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with node.client(gpus=[0]) as client:
        assert client.attached.startswith("attached gpu=MIG-")
        assert client.attached.endswith("sms=16")
        assert is_error(client.command("alloc 20G"), 2)


def test_a_fault_ends_the_context_and_not_the_process(node):
    with node.client() as client:
        assert is_error(client.command("fault"), 719)
        assert is_error(client.command("alloc 1G"), 719)
        assert client.running
