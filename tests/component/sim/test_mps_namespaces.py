"""MPS of protocol 3: servers and namespaces with limits that a client cannot lift."""

import os
import stat
import subprocess

import pytest

from tests.component.sim.mps import LIMITS, is_error, wait_for_end
from tests.component.sim.test_processes import set_limit

GIB = 1 << 30
CONTEXT = 256 << 20
NOBODY = 65534


def test_the_daemon_tells_the_pipe_directory_and_makes_one_for_each_server_and_namespace(mps):
    pipe = mps.share("s_a")
    assert pipe == mps.pipe / "gpu" / "s_a"
    modes = {path.relative_to(mps.pipe).as_posix(): stat.filemode(path.stat().st_mode) for path in mps.pipe.rglob("*")}
    assert modes["gpu/control"] == modes["gpu/s_a/control"] == "srw-rw-rw-"
    assert modes["gpu/log"] == "prwxrwxrwx"
    assert modes["gpu"] == modes["gpu/s_a"] == "drwxr-xr-x"
    # Asked first: a server that becomes ready between the two would be seen as ready without its log.
    status = mps.ask("server", "get", "gpu", "status")
    assert status == "Initializing" or (mps.base / "log/gpu/server.log").exists()


def test_commands_follow_the_protocol_of_the_running_daemon(make_mps):
    mps = make_mps().start()
    result = mps.run("namespace", "list")
    assert (result.code, result.out) == (1, "")
    assert mps.tell("get_default_active_thread_percentage") == ["100.0"]


def test_the_environment_chooses_the_protocol_over_the_option(make_mps):
    mps = make_mps().start("-p", "2", CUDA_MPS_PROTOCOL_VERSION="3")
    assert mps.rows("server") == []


def test_lists_are_whole_as_csv_and_cut_as_a_table(mps):
    mps.share("s_" + "a" * 32, *LIMITS)
    (default, share) = mps.rows("namespace")
    assert default[:2] == ["default", "gpu"]
    assert share[0] == "s_" + "a" * 32
    assert share[3:6] == ["10G", "20.00", "0"]
    header, *_ = mps.ask("namespace", "list", "--format=csv").splitlines()
    assert header.startswith("NAME,SERVER,SERVER STATUS,PINNED MEMORY LIMIT,ACTIVE THREAD PERCENTAGE")
    assert "s_a... " in mps.ask("namespace", "list")
    assert mps.run("namespace", "list", "--format=yaml").code == 1


def test_values_can_be_read_one_by_one_and_none_is_a_dash(mps):
    mps.share("s_a", "--pinned-memory-limit=1536M")
    assert mps.ask("namespace", "get", "s_a", "gpu", "pinned-memory-limit") == "1536M"
    assert mps.ask("namespace", "get", "s_a", "gpu", "active_thread_percentage") == "-"
    assert mps.run("namespace", "get", "s_a", "gpu", "colour").code == 1
    assert mps.run("namespace", "get", "s_b", "gpu", "name").code == 1


def test_a_client_gets_what_its_namespace_allows_and_not_more(mps):
    pipe = mps.share("s_a", *LIMITS)
    with mps.client(pipe=pipe) as client:
        assert client.attached.endswith("mps=gpu/s_a total=81008 free=9984 used=256 sms=26")
        assert is_error(client.command("alloc 10G"), 2)
        assert client.command("alloc 9G") == "ok used=9472"
        (seen,) = mps.node.clients()
        assert (seen.pid, seen.mps, seen.share) == (client.pid, True, "s_a")
        assert (seen.memory, seen.memory_limit) == (9 * GIB + CONTEXT, 10 * GIB)
        assert (seen.sm_percent, seen.sms) == (20, 26)


@pytest.mark.parametrize(("own", "percent"), [("10", 10), ("90", 20), (None, 20), ("nonsense", 20)])
def test_a_client_can_lower_its_percentage_and_not_raise_it(mps, own, percent):
    pipe = mps.share("s_a", *LIMITS)
    environment = {} if own is None else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": own}
    with mps.client(pipe=pipe, environment=environment) as client:
        assert client.attached.startswith("attached ")
        assert mps.node.clients()[0].sm_percent == percent


@pytest.mark.parametrize(("own", "limit"), [("0=4G", 4 * GIB), ("0=40G", 10 * GIB), ("7=40G", None)])
def test_a_client_can_lower_its_memory_limit_and_lift_it_by_naming_a_gpu_it_does_not_see(mps, own, limit):
    pipe = mps.share("s_a", *LIMITS)
    with mps.client(pipe=pipe, environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": own}) as client:
        assert client.attached.startswith("attached ")
        assert mps.node.clients()[0].memory_limit == limit


def test_the_limit_of_a_cgroup_cannot_be_lifted_that_way(mps, load):
    nvml = load(mps.node)
    set_limit(nvml, nvml.nvmlDeviceGetHandleByIndex(0), "/pod", 10 * GIB)
    pipe = mps.share("s_a", *LIMITS)
    lifted = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "7=40G"}
    with mps.client(pipe=pipe, cgroup="/pod/a", environment=lifted) as client:
        assert is_error(client.command("alloc 10G"), 2)
        assert mps.node.clients()[0].memory_limit == 10 * GIB


def test_a_new_namespace_has_no_limits_and_inherits_none(mps):
    mps.share("s_a")
    mps.ask("server", "set", "gpu", *LIMITS)
    with mps.client(pipe=mps.pipe / "gpu") as default, mps.client(pipe=mps.pipe / "gpu/s_a") as named:
        assert default.attached.endswith("sms=26")
        assert named.attached.endswith("sms=132")


def test_limits_are_of_each_client_and_shares_stand_beside_each_other(mps):
    pipes = [mps.share(f"s_{name}", *LIMITS) for name in "abcd"]
    clients = [mps.client(pipe=pipe) for pipe in pipes]
    try:
        assert [client.command("alloc 9G") for client in clients] == ["ok used=9472"] * 4
        seen = mps.node.clients()
        assert sorted(entry.share for entry in seen) == ["s_a", "s_b", "s_c", "s_d"]
        assert sum(entry.sm_percent for entry in seen) == 80
        assert sum(entry.memory_limit for entry in seen) == 40 * GIB
    finally:
        for client in clients:
            client.__exit__(None, None, None)


def test_limits_cannot_change_while_a_client_is_attached(mps):
    pipe = mps.share("s_a", *LIMITS)
    with mps.client(pipe=pipe) as client:
        assert client.attached.startswith("attached ")
        refused = mps.run("namespace", "set", "s_a", "--server=gpu", "--pinned-memory-limit=20G")
        assert refused.code == 1
        assert "active client" in refused.err
        assert mps.ask("namespace", "get", "s_a", "gpu", "pinned-memory-limit") == "10G"
        client.kill()
    mps.ask("namespace", "set", "s_a", "--server=gpu", "--pinned-memory-limit=20G")
    with mps.client(pipe=pipe) as client:
        assert "free=20224" in client.attached


def test_a_namespace_with_a_client_is_deleted_only_by_force_which_terminates_it(mps):
    pipe = mps.share("s_a")
    with mps.client(pipe=pipe) as client:
        client.command("alloc 5G")
        assert mps.run("namespace", "delete", "s_a", "--server=gpu").code == 1
        mps.ask("namespace", "delete", "s_a", "--server=gpu", "--force")
        assert is_error(client.command("info"), 810)
        assert mps.node.clients() == ()
    assert not pipe.exists()


def test_a_server_with_a_client_is_deleted_only_by_force(mps):
    pipe = mps.share("s_a")
    with mps.client(pipe=pipe) as client:
        assert client.attached.startswith("attached ")
        assert mps.run("server", "delete", "gpu").code == 1
        mps.ask("server", "delete", "gpu", "--force")
        assert client.line() == "CUDA_ERROR_MPS_CLIENT_TERMINATED 810"
    assert mps.rows("server") == []
    assert mps.node.snapshot().processes == ()
    assert not (mps.pipe / "gpu").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("namespace", "create", "s_a", "--server=gpu"),
        ("namespace", "create", "S-A", "--server=gpu"),
        ("namespace", "create", "a" * 65, "--server=gpu"),
        ("namespace", "create", "s_b", "--server=other"),
        ("namespace", "create", "s_b"),
        ("namespace", "set", "s_a", "--server=gpu"),
        ("namespace", "set", "s_a", "--server=gpu", "--active-thread-percentage=0"),
        ("namespace", "set", "s_a", "--server=gpu", "--active-thread-percentage=101"),
        ("namespace", "set", "s_a", "--server=gpu", "--pinned-memory-limit=10Gi"),
        ("namespace", "set", "s_a", "--server=gpu", "--colour=red"),
        ("namespace", "delete", "default", "--server=gpu"),
        ("namespace", "dance"),
        ("server", "create"),
        ("server", "create", "gpu"),
        ("server", "create", "a" * 65),
        ("nonsense", "list"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason_on_the_error_output(mps, words):
    mps.share("s_a")
    result = mps.run(*words)
    assert (result.code, result.out) == (1, "")
    assert result.err


def test_only_the_owner_changes_and_everybody_may_look(mps):
    mps.share("s_a", *LIMITS)
    result = mps.run("namespace", "set", "s_a", "--server=gpu", "--active-thread-percentage=99", user=NOBODY)
    assert result.code == 1
    assert result.err == f"Insufficient privileges for UID {NOBODY}. 'NAMESPACE SET' requires server owner.\n"
    assert "20.00" in mps.run("namespace", "list", user=NOBODY).out


def test_every_user_may_attach_in_the_multi_user_mode_and_nobody_else_without_it(make_mps):
    several = make_mps().start("-p", "3", "-m")
    with several.client(pipe=several.share("s_a"), user=NOBODY) as client:
        assert client.attached.startswith("attached ")
    alone = make_mps().start("-p", "3")
    with alone.client(pipe=alone.share("s_a"), user=NOBODY) as client:
        assert is_error(client.attached, 800)


def test_the_root_of_the_pipe_directory_leads_to_a_server_of_the_user(mps):
    with mps.client() as client:
        assert "mps=uid_0/default" in client.attached
        assert [row[:2] for row in mps.rows("server")] == [["uid_0", "0"]]


def test_clients_are_listed_with_server_device_namespace_and_command(mps):
    pipe = mps.share("s_a")
    with mps.client(pipe=pipe) as client:
        assert client.attached.startswith("attached ")
        (row,) = mps.rows("client")
        assert row == [str(client.pid), "gpu", "0", "s_a", str(mps.node.cuda_client)]
        assert mps.ask("client", "get", str(client.pid), "maws-ns") == "s_a"
        assert mps.ask("client", "list", "--server=gpu", "--format=csv,noheader").startswith(str(client.pid))


def test_a_client_can_be_terminated(mps):
    with mps.client(pipe=mps.share("s_a")) as client:
        client.command("alloc 5G")
        mps.ask("client", "terminate", str(client.pid))
        assert is_error(client.command("info"), 810)
    assert mps.run("client", "terminate", "1").code == 1


def test_devices_are_listed_with_their_sms(mps):
    with mps.client(pipe=mps.share("s_a")) as client:
        assert client.attached.startswith("attached ")
        (row,) = mps.rows("device")
        assert row[:4] == ["0", "gpu", "00000000:1B:00.0", mps.node.uuids[0]]
        assert row[5] == "132"


def test_a_server_serves_its_allowed_devices_only(make_mps):
    mps = make_mps(gpus=2).start("-p", "3", "-m")
    mps.ask("server", "create", "gpu", f"--allowed-devices={mps.node.uuids[1]}")
    with mps.client(pipe=mps.share("s_a")) as client:
        assert f"gpu={mps.node.uuids[1]}" in client.attached
        (server,) = [process for process in mps.node.snapshot().processes if process.kind == 4]
        assert server.gpu == 1


def test_a_server_of_an_absent_gpu_is_created_and_leaves_and_its_clients_run_without_mps(make_mps):
    mps = make_mps().start("-p", "3", "-m")
    assert mps.ask("server", "create", "gpu", "--allowed-devices=GPU-00000000-aaaa-bbbb-cccc-000000000000") == ""
    while mps.rows("server"):
        pass  # each list is an answer of the daemon; the test's time limit ends this
    with mps.client(pipe=mps.pipe / "gpu") as client:
        assert "mps=no" in client.attached
        assert client.attached.endswith("sms=132")


def test_a_killed_daemon_ends_its_clients_and_a_new_one_serves_the_same_directories(mps):
    pipe = mps.share("s_a", *LIMITS)
    with mps.client("hold", pipe=pipe) as client:
        assert client.attached.startswith("attached ")
        assert client.line() == "holding"
        server = os.pidfd_open(int(mps.ask("server", "get", "gpu", "pid")))
        directory = pipe.stat().st_ino
        mps.kill()
        assert is_error(client.line(), 806)
        wait_for_end(server)
    assert mps.node.snapshot().processes == ()
    mps.start("-p", "3", "-m")
    assert mps.rows("namespace") == []
    mps.share("s_a", *LIMITS)
    assert pipe.stat().st_ino == directory  # a container that has it mounted finds the new socket
    with mps.client(pipe=pipe) as client:
        assert client.attached.endswith("sms=26")


def test_a_server_that_is_killed_starts_again_for_the_next_client(mps):
    pipe = mps.share("s_a", *LIMITS)
    with mps.client("hold", pipe=pipe) as client:
        assert client.attached.startswith("attached ")
        assert client.line() == "holding"
        os.kill(int(mps.ask("server", "get", "gpu", "pid")), 9)
        assert is_error(client.line(), 806)
    with mps.client(pipe=pipe) as client:
        assert client.attached.endswith("sms=26")


def test_an_exclusive_gpu_is_the_servers(mps, load):
    nvml = load(mps.node)
    nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByIndex(0), nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    pipe = mps.share("s_a")
    with mps.client(pipe=pipe) as first, mps.client(pipe=pipe) as second:
        assert first.attached.startswith("attached ")
        assert second.attached.startswith("attached ")
        with mps.node.client() as bypass:
            assert is_error(bypass.attached, 46)


def test_quit_and_sigterm_end_everything(mps):
    mps.share("s_a")
    assert mps.run("-q").code == 0
    assert not (mps.pipe / "nvidia-cuda-mps-control.pid").exists()
    mps.start("-p", "3", "-m")
    with mps.client("hold", pipe=mps.share("s_a")) as client:
        assert client.attached.startswith("attached ")
        assert client.line() == "holding"
        ended = os.pidfd_open(mps.pid)
        os.kill(mps.pid, 15)
        assert is_error(client.line(), 806)
        wait_for_end(ended)
    assert mps.node.snapshot().processes == ()
    assert not (mps.pipe / "nvidia-cuda-mps-control.pid").exists()


CONFIGURATION = """
schema_version = "1.0"
[servers.gpu]
allowed_devices = ["0"]  # the first
active_thread_percentage = "30"
[servers.gpu.namespaces.s_a]
pinned_memory_limit = "10G"
active_thread_percentage = "20"
[features.memacct]
audit_log = true
"""


def test_a_file_makes_servers_and_namespaces_at_the_start(make_mps):
    mps = make_mps()
    (mps.base / "mps.toml").write_text(CONFIGURATION)
    mps.start("-p", "3", "-m", "-a", str(mps.base / "mps.toml"))
    assert [row[:2] + row[3:5] for row in mps.rows("namespace")] == [
        ["default", "gpu", "-", "30.00"],
        ["s_a", "gpu", "10G", "20.00"],
    ]
    with mps.client(pipe=mps.pipe / "gpu/s_a") as client:
        assert client.attached.endswith("sms=26")


@pytest.mark.parametrize("line", ["colour = 1", "schema_version = '2'", "[clients.a]", "[servers.A]", "nonsense"])
def test_a_file_with_something_unknown_keeps_the_daemon_from_starting(make_mps, line):
    mps = make_mps()
    (mps.base / "mps.toml").write_text(f"{line}\n")
    result = mps.run("-p", "3", "-d", "-a", str(mps.base / "mps.toml"))
    assert result.code == 1
    assert "line 1" in result.err


def test_in_the_foreground_with_an_open_input_it_serves_until_quit(make_mps):
    mps = make_mps()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe), "CUDA_MPS_LOG_DIRECTORY": str(mps.base)}
    daemon = subprocess.Popen(
        [mps.node.mps_control, "-p", "3", "-m", "-f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    with daemon:
        assert daemon.stdout.readline() == f"CUDA_MPS_PIPE_DIRECTORY={mps.pipe}\n".encode()
        mps.share("s_a")
        daemon.stdin.write(b"quit\n")
        daemon.stdin.flush()
        assert daemon.wait(60) == 0


def test_mps_works_on_a_mig_device_with_its_sms_and_fewer_clients(make_mps, load):
    mps = make_mps(settings=("node.context_mib=1",))
    nvml = load(mps.node)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(handle, 19)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    device = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0))
    mps.start(CUDA_VISIBLE_DEVICES=device)
    clients = [mps.client(environment={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}) for _ in range(8)]
    try:
        *let_in, kept_out = sorted((client.attached for client in clients), key=lambda line: line.startswith("CUDA"))
        assert all(line.startswith(f"attached gpu={device}") and line.endswith("sms=8") for line in let_in)
        assert is_error(kept_out, 808)
    finally:
        for client in clients:
            client.__exit__(None, None, None)


def test_a_command_can_be_made_to_fail_or_to_hang(mps):
    mps.share("s_a")
    mps.node.inject("nvidia-cuda-mps-control namespace create", code=999, count=1)
    assert mps.run("namespace", "create", "s_b", "--server=gpu").code == 1
    mps.ask("namespace", "create", "s_b", "--server=gpu")
    mps.node.inject("nvidia-cuda-mps-control namespace*", block=True)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([mps.node.mps_control, "namespace", "list"], timeout=0.2, check=False, stdin=subprocess.DEVNULL)
    mps.node.clear()
    assert len(mps.rows("namespace")) == 3
