"""MPS of protocol 2 as its programs show it: commands on the standard input, one server, limits in the environment."""

import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.component.sim.mps import Mps, is_error, wait_for_end

GIB = 1 << 30
NOBODY = 65534


def test_without_a_daemon_the_control_program_says_so(make_mps):
    result = make_mps(driver_version="580.95.05").run(stdin="quit\n")
    assert (result.code, result.err) == (1, "Cannot find MPS control daemon process\n")


def test_the_pipe_directory_holds_sockets_a_lock_a_fifo_and_the_pid(classic):
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in classic.pipe.iterdir()}
    assert modes == {
        "control": "srw-rw-rw-",
        "control_privileged": "srwxr-xr-x",
        "control_lock": "-rw-rw-rw-",
        "log": "prwxrwxrwx",
        "nvidia-cuda-mps-control.pid": "-rw-rw-rw-",
    }
    os.kill(classic.pid, 0)


def test_a_second_daemon_in_the_directory_is_refused(classic):
    result = classic.run("-d")
    assert (result.code, result.err) == (1, "An instance of this daemon is already running\n")


def test_a_directory_left_by_a_killed_daemon_can_be_used_again(classic):
    classic.kill()
    classic.start()
    assert classic.tell("get_default_active_thread_percentage") == ["100.0"]


def test_quit_ends_the_daemon_and_takes_its_pid_file_away(classic):
    assert classic.tell("quit") == []
    assert not (classic.pipe / "nvidia-cuda-mps-control.pid").exists()
    assert classic.run(stdin="get_server_list\n").code == 1


def test_a_pipe_path_of_more_than_107_bytes_ends_the_daemon_without_a_word(make_mps):
    mps = make_mps()
    long = {"CUDA_MPS_PIPE_DIRECTORY": str(mps.base / ("x" * (108 - len(f"{mps.base}//control"))))}
    assert len(long["CUDA_MPS_PIPE_DIRECTORY"] + "/control") == 108
    result = mps.run("-d", **long)
    assert (result.code, result.out, result.err) == (0, "", "")
    assert mps.run(stdin="get_server_list\n", **long).err == "Cannot find MPS control daemon process\n"
    assert not (mps.base / "log").exists()


def test_an_unknown_command_is_told_and_the_shell_goes_on(classic):
    assert classic.tell("dance", "get_default_active_thread_percentage")[1:] == ["100.0"]


@pytest.mark.parametrize("arguments", [("-p", "3", "-d"), ("namespace", "list"), ("-q",)])
def test_a_driver_before_615_knows_nothing_of_protocol_3(classic, arguments):
    assert classic.run(*arguments).code == 1


def test_in_the_foreground_it_reads_commands_and_ends_with_its_input(make_mps):
    mps = make_mps(driver_version="580.95.05")
    result = mps.run("-f", stdin="get_default_active_thread_percentage\n")
    assert (result.code, result.out) == (0, "100.0\n")
    assert "Cmd:get_default_active_thread_percentage" in (mps.base / "log/control.log").read_text()


def test_the_first_client_starts_the_server_which_stays_after_the_last(classic):
    assert classic.tell("get_server_list") == []
    with classic.client() as client:
        assert "mps=classic" in client.attached
        (server,) = classic.tell("get_server_list")
        assert classic.tell(f"get_client_list {server}", f"get_server_status {server}") == [str(client.pid), "ACTIVE"]
    assert classic.tell("get_server_list") == [server]
    assert "Starting new server" in (classic.base / "log/control.log").read_text()


def test_nvml_shows_the_server_and_its_clients(classic, load):
    nvml = load(classic.node)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with classic.client() as client:
        client.command("alloc 1G")
        (server,) = classic.tell("get_server_list")
        memory = {entry.pid: entry.usedGpuMemory for entry in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        assert memory == {int(server): 60 << 20, client.pid: GIB + (256 << 20)}
        assert [entry.pid for entry in nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)] == [client.pid]
        listing = subprocess.check_output([classic.node.nvidia_smi, "-q"], text=True)
        assert "M+C" in listing


def test_the_environment_of_a_client_limits_it(classic):
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10G"}
    with classic.client(environment=limits) as client:
        assert client.attached.endswith("total=81008 free=9984 used=256 sms=26")
        assert is_error(client.command("alloc 10G"), 2)
        assert client.command("alloc 9G") == "ok used=9472"
        (seen,) = classic.node.clients()
        assert (seen.mps, seen.namespace, seen.sm_percent, seen.sms) == (True, "", 20, 26)
        assert seen.memory_limit == 10 * GIB


def test_a_limit_can_be_given_by_uuid(classic):
    uuid = classic.node.uuids[0]
    with classic.client(environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{uuid}=10240M"}) as client:
        assert "free=9984" in client.attached


def test_one_entry_for_a_gpu_the_process_does_not_see_takes_every_memory_limit_away(classic):
    classic.tell("set_default_device_pinned_mem_limit 0 10G")
    environment = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=5G,GPU-00000000-aaaa-bbbb-cccc-000000000000=5G",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }
    with classic.client(environment=environment) as client:
        assert client.attached.endswith("sms=66")
        (seen,) = classic.node.clients()
        assert (seen.memory_limit, seen.sm_percent) == (None, 50)


@pytest.mark.parametrize(("percent", "sms"), [("10", 18), ("25", 46), ("50", 94), ("75", 140), ("100", 188)])
def test_a_percentage_is_rounded_down_to_pairs_of_sms(make_mps, percent, sms):
    mps = make_mps(driver_version="580.95.05", settings=("gpu.0.sm_count=188",)).start()
    with mps.client(environment={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent}) as client:
        assert client.attached.endswith(f"sms={sms}")


def test_percentages_may_add_up_to_more_than_the_gpu(classic):
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "80"}
    with classic.client(environment=limits) as first, classic.client(environment=limits) as second:
        assert (first.attached[-7:], second.attached[-7:]) == ("sms=104", "sms=104")


def test_a_default_reaches_only_the_servers_that_start_later(classic):
    with classic.client() as before:
        assert before.attached.endswith("sms=132")
        assert classic.tell("set_default_active_thread_percentage 25") == ["25.0"]
        with classic.client() as same_server:
            assert same_server.attached.endswith("sms=132")
    (server,) = classic.tell("get_server_list")
    classic.tell(f"shutdown_server {server}")
    with classic.client() as after:
        assert after.attached.endswith("sms=32")


def test_a_change_on_the_server_reaches_only_the_clients_that_come_later(classic):
    with classic.client() as before:
        assert before.attached.endswith("sms=132")
        (server,) = classic.tell("get_server_list")
        classic.tell(f"set_active_thread_percentage {server} 50", f"set_device_pinned_mem_limit {server} 0 8G")
        assert before.command("info").endswith("free=80692 used=256 sms=132")
        with classic.client() as after:
            assert after.attached.endswith("free=7936 used=256 sms=66")


def test_of_two_limits_for_one_gpu_the_last_wins_and_an_unknown_gpu_is_ignored(classic):
    uuid = classic.node.uuids[0]
    classic.tell(
        f"set_default_device_pinned_mem_limit {uuid} 5G",
        "set_default_device_pinned_mem_limit 0 6G",
        "set_default_device_pinned_mem_limit 7 1G",
    )
    assert classic.tell("get_default_device_pinned_mem_limit 7") == ["1G"]
    with classic.client() as client:
        assert "free=5888" in client.attached


def test_another_user_waits_until_the_server_of_the_first_has_gone(classic):
    with classic.client() as first:
        assert first.attached.startswith("attached ")
        with classic.client("exit", user=NOBODY) as second:
            (server,) = classic.tell("get_server_list")
            assert classic.tell(f"get_client_list {server}") == [str(first.pid)]
            first.kill()
            assert second.attached.startswith("attached ")


def test_users_share_one_server_in_the_multi_user_mode(make_mps):
    mps = make_mps(driver_version="580.95.05").start("-multiuser-server")
    with mps.client() as first, mps.client(user=NOBODY) as second:
        assert first.attached.startswith("attached ")
        assert second.attached.startswith("attached ")
        assert sorted(seen.uid for seen in mps.node.clients()) == [0, NOBODY]


def test_other_users_may_look_and_not_change(classic):
    result = classic.run(stdin="set_default_active_thread_percentage 10\n", user=NOBODY)
    assert "Insufficient privileges" in result.out
    assert classic.tell("get_default_active_thread_percentage") == ["100.0"]


@pytest.mark.parametrize(("driver", "most"), [("580.95.05", 48), ("590.10", 60)])
def test_a_gpu_takes_48_clients_and_60_from_cuda_13_1(make_mps, driver, most):
    mps = make_mps(driver_version=driver, settings=("node.context_mib=1",)).start()
    clients = [mps.client() for _ in range(most)]
    try:
        assert all(client.attached.startswith("attached ") for client in clients)
        with mps.client() as one_more:
            assert is_error(one_more.attached, 808)
    finally:
        for client in clients:
            client.__exit__(None, None, None)


def exclusive(node, load):
    nvml = load(node)
    nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByIndex(0), nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)


def test_without_the_pipe_a_process_has_the_whole_gpu_unless_the_mode_is_exclusive(classic, load):
    with classic.client() as client:
        assert client.attached.startswith("attached ")
        with classic.node.client() as bypass:
            assert "mps=no" in bypass.attached
        exclusive(classic.node, load)
        with classic.node.client() as bypass:
            assert is_error(bypass.attached, 46)
        with classic.client() as another:
            assert "mps=classic" in another.attached


def test_a_server_does_not_start_on_an_exclusive_gpu_that_is_taken(classic, load):
    exclusive(classic.node, load)
    with classic.node.client() as first:
        assert first.attached.startswith("attached ")
        with classic.client() as client:
            assert is_error(client.attached, 805)


def test_a_killed_daemon_ends_its_clients_and_its_server(classic):
    with classic.client("hold") as client:
        assert client.attached.startswith("attached ")
        assert client.line() == "holding"
        (server,) = classic.tell("get_server_list")
        ended = os.pidfd_open(int(server))
        classic.kill()
        assert is_error(client.line(), 806)
        assert client.wait() == 1
        wait_for_end(ended)
        assert classic.node.snapshot().processes == ()


def test_a_killed_server_ends_its_clients_and_the_next_one_starts_another(classic):
    with classic.client() as client:
        assert client.attached.startswith("attached ")
        (server,) = classic.tell("get_server_list")
        os.kill(int(server), signal.SIGKILL)
        assert is_error(client.line(), 806)
        assert client.wait() == 1
    with classic.client() as client:
        assert client.attached.startswith("attached ")
        assert classic.tell("get_server_list") != [server]


def test_quit_waits_for_the_clients_and_lets_no_new_ones_in(classic):
    with classic.client() as client:
        assert client.attached.startswith("attached ")
        with shell(classic, "quit") as quitting:
            with classic.client() as late:
                assert is_error(late.attached, 807)
            assert quitting.poll() is None
            client.kill()
            assert quitting.communicate(timeout=60) == (b"", None)


@contextmanager
def shell(mps: Mps, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A control program that has given one command, which the daemon has begun to work on."""
    program = subprocess.Popen(
        [mps.node.mps_control],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe)},
    )
    with program:
        try:
            assert program.stdin is not None
            program.stdin.write(f"{command}\n".encode())
            program.stdin.flush()
            wait_for_log(mps, f"Cmd:{command}")
            yield program
        finally:
            program.kill()


def wait_for_fault(client) -> None:
    """Wait until a client has heard of another one's fault: the server tells one after the other."""
    deadline = time.monotonic() + 60
    while not is_error(client.command("info"), 719):
        assert time.monotonic() < deadline, "the fault does not arrive"


def wait_for_log(mps, text: str) -> None:
    """Have the daemon answer one more command: what came before is then done."""
    for _ in range(1000):
        if text in (mps.base / "log/control.log").read_text():
            return
        mps.run(stdin="get_server_list\n")
    raise AssertionError(f"{text} is not in control.log")


def test_quit_with_a_time_ends_the_clients_after_it(classic):
    with classic.client("hold") as client:
        assert client.attached.startswith("attached ")
        assert client.line() == "holding"
        classic.tell("quit -t 1")
        assert is_error(client.line(), 806)


def test_a_terminated_client_stays_a_process_with_an_error_that_sticks(classic):
    with classic.client() as client:
        client.command("alloc 5G")
        (server,) = classic.tell("get_server_list")
        assert classic.tell(f"terminate_client {server} {client.pid}") == ["0"]
        assert classic.node.clients() == ()
        assert is_error(client.command("alloc 1G"), 810)
        assert is_error(client.command("info"), 810)
        assert client.running


def test_terminate_waits_for_the_kernel_and_new_clients_are_refused_meanwhile(classic):
    with classic.client() as client:
        assert client.command("launch") == "running"
        (server,) = classic.tell("get_server_list")
        with shell(classic, f"terminate_client {server} {client.pid}") as terminating:
            with classic.client() as late:
                assert is_error(late.attached, 807)
            assert terminating.poll() is None
            client.send("sync")
            assert terminating.communicate(timeout=60) == (b"0\n", None)


def test_a_client_killed_within_a_kernel_leaves_the_server_hanging_until_the_daemon_is_restarted(classic):
    with classic.client() as client:
        assert client.command("launch") == "running"
        client.kill()
    with classic.client("exit") as stuck:
        (server,) = classic.tell("get_server_list")
        assert classic.tell(f"get_server_status {server}") == ["ACTIVE"]
        with pytest.raises(subprocess.TimeoutExpired):
            stuck.wait(0.2)
    classic.kill()
    classic.start()
    with classic.client() as client:
        assert client.attached.startswith("attached ")


def test_a_fault_reaches_every_client_of_the_gpu_and_no_new_one_comes_in_until_they_have_left(make_mps):
    mps = make_mps(driver_version="580.95.05", gpus=2).start()
    with (
        mps.client(gpus=[0]) as guilty,
        mps.client(gpus=[0]) as innocent,
        mps.client(gpus=[1]) as elsewhere,
    ):
        for client in (guilty, innocent, elsewhere):
            assert client.attached.startswith("attached ")
        (server,) = mps.tell("get_server_list")
        assert is_error(guilty.command("fault"), 719)
        wait_for_fault(innocent)
        assert is_error(innocent.command("alloc 1G"), 719)
        assert elsewhere.command("alloc 1G") == "ok used=1280"
        assert mps.tell(f"get_server_status {server}") == ["FAULT"]
        with mps.client() as late:
            assert is_error(late.attached, 807)


def test_a_server_takes_time_to_start_and_its_first_client_waits(make_mps):
    mps = make_mps(driver_version="580.95.05", settings=("node.mps_start_ms=3000",)).start()
    with mps.client() as client:
        wait_for_log(mps, "Starting new server")
        (server,) = mps.tell("get_server_list")
        assert mps.tell(f"get_server_status {server}") == ["INITIALIZING"]
        assert client.attached.startswith("attached ")
        assert mps.tell(f"get_server_status {server}") == ["ACTIVE"]


def test_the_daemon_serves_only_the_gpus_of_its_environment(make_mps):
    mps = make_mps(driver_version="580.95.05", gpus=2)
    mps.environment["CUDA_VISIBLE_DEVICES"] = mps.node.uuids[1]
    mps.start()
    with mps.client() as client:
        assert f"gpu={mps.node.uuids[1]}" in client.attached


def test_ps_shows_pid_server_device_and_command(classic):
    with classic.client() as client:
        assert client.attached.startswith("attached ")
        (server,) = classic.tell("get_server_list")
        header, row = classic.tell("ps")
        assert header.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
        assert row.split()[:4] == [str(client.pid), "0", server, classic.node.uuids[0][:22]]


def test_a_daemon_in_a_pid_namespace_of_its_own_knows_no_client(make_mps):
    mps = make_mps(driver_version="580.95.05")
    daemon = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", mps.node.mps_control, "-f"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={
            "PATH": "/usr/bin:/bin",
            "CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(mps.base),
        },
    )
    try:
        daemon.stdin.write(b"get_server_list\n")
        daemon.stdin.flush()
        while not (mps.base / "control.log").exists() or "Cmd:" not in (mps.base / "control.log").read_text():
            assert daemon.poll() is None
        with mps.client() as client:
            assert client.attached.startswith("attached ")
            assert "failed to register client pid 0" in (mps.base / "server.log").read_text()
            assert [seen.pid for seen in mps.node.clients()] == [client.pid]
    finally:
        daemon.kill()
        daemon.stdin.close()
        daemon.wait()


def test_starting_the_daemon_can_be_made_to_fail_and_is_in_the_call_log(make_mps):
    mps = make_mps(driver_version="580.95.05")
    mps.node.inject("nvidia-cuda-mps-control -d", code=999, count=1)
    assert mps.run("-d").code == 1
    mps.start()
    mps.tell("get_server_list")
    names = [call.name for call in mps.node.calls("nvidia-cuda-mps-control*")]
    assert names == ["nvidia-cuda-mps-control -d"] * 2 + ["nvidia-cuda-mps-control get_server_list"]
