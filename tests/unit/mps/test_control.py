"""nvidia-cuda-mps-control as a program: what it is told, and what its failures mean."""

import os
from pathlib import Path

import pytest

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.control import ControlError, ControlProgram, MpsHost, Refusal
from dra_gpu.mps.directories import GpuDirectories
from dra_gpu.mps.process import PID_FILE, find

GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"


class Script:
    """A driver root whose control program is a shell script."""

    def __init__(self, root: Path, protocol: MpsProtocol, *, seconds: float = 10.0) -> None:
        self.directories = GpuDirectories(root / "01234567")
        self.directories.make(own_memory=False)
        self._program = root / "driver/usr/bin/nvidia-cuda-mps-control"
        self._program.parent.mkdir(parents=True)
        library = root / "driver/usr/lib64/libnvidia-ml.so.1"
        library.parent.mkdir()
        library.touch()
        host = MpsHost(root / "driver", own_shm=False, call_seconds=seconds)
        self.control = ControlProgram(host, GPU, self.directories, protocol)

    def does(self, text: str) -> ControlProgram:
        self._program.write_text(f"#!/bin/sh\n{text}\n")
        self._program.chmod(0o755)
        return self.control


@pytest.fixture
def modern(tmp_path) -> Script:
    return Script(tmp_path, MpsProtocol.NAMESPACE)


@pytest.fixture
def classic(tmp_path) -> Script:
    return Script(tmp_path, MpsProtocol.CLASSIC)


async def test_protocol_3_takes_commands_as_arguments(modern, tmp_path):
    control = modern.does(f'echo "$@" >> {tmp_path}/told')

    await control.create("s_a")
    await control.set("s_a", ("--active-thread-percentage=20",))
    await control.delete("s_a")

    assert (tmp_path / "told").read_text().splitlines() == [
        "namespace create s_a --server=gpu",
        "namespace set s_a --server=gpu --active-thread-percentage=20",
        "namespace delete s_a --server=gpu --force",
    ]


async def test_protocol_2_takes_commands_on_its_standard_input(classic, tmp_path):
    control = classic.does(
        f"read line; echo $line >> {tmp_path}/told; case $line in get_server_list) echo 7;; get_client*) echo 8;; esac"
    )

    clients = await control.clients()

    assert [client.pid for client in clients] == [8]
    assert (tmp_path / "told").read_text().splitlines() == ["get_server_list", "get_client_list 7"]


@pytest.mark.parametrize(("protocol", "told"), [("namespace", "-p 3 -m -d"), ("classic", "-d -multiuser-server")])
async def test_a_daemon_is_started_for_its_gpu_and_its_directories(tmp_path, protocol, told):
    script = Script(tmp_path, MpsProtocol(protocol))
    control = script.does(
        f"echo $@ > {tmp_path}/told; echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY "
        f"$LD_LIBRARY_PATH >> {tmp_path}/told"
    )

    await control.start()

    assert (tmp_path / "told").read_text().splitlines() == [
        told,
        f"{GPU} {script.directories.pipe} {script.directories.log} {tmp_path}/driver/usr/lib64",
    ]


async def test_a_daemon_that_keeps_its_standard_output_does_not_hold_the_start_up(modern):
    control = modern.does("sleep 30 & echo $! > $CUDA_MPS_PIPE_DIRECTORY/" + PID_FILE)

    await control.start()

    running = find(modern.directories.pipe)
    assert running.alive
    running.send(9)
    assert await running.wait(10)
    running.close()


async def test_a_start_that_fails_says_what_was_printed(modern):
    with pytest.raises(ControlError, match="ended with 3: 'no GPU today'") as refused:
        await modern.does("echo no GPU today >&2; exit 3").start()
    assert refused.value.refusal is Refusal.REFUSED


async def test_a_missing_daemon_is_told_from_a_refusal(modern):
    with pytest.raises(ControlError) as refused:
        await modern.does("echo Cannot find MPS control daemon process >&2; exit 1").namespaces()
    assert refused.value.refusal is Refusal.NO_DAEMON
    assert not await modern.control.answers()


async def test_a_program_that_hangs_is_ended_by_its_deadline(tmp_path):
    script = Script(tmp_path, MpsProtocol.CLASSIC, seconds=0.2)

    with pytest.raises(ControlError, match=r"did not end within 0.2 s") as refused:
        await script.does("exec sleep 60").servers()
    assert refused.value.refusal is Refusal.SILENT


async def test_output_in_another_form_is_said_with_its_command(modern):
    with pytest.raises(ControlError, match="`client list` printed 'PID SERVER'") as refused:
        await modern.does("echo PID SERVER").clients()
    assert refused.value.refusal is Refusal.BROKEN


async def test_a_missing_program_names_where_it_was_looked_for(modern):
    with pytest.raises(ControlError, match=r"nvidia-cuda-mps-control is in none of .*usr/bin") as refused:
        await modern.control.start()
    assert refused.value.refusal is Refusal.BROKEN


def test_a_pid_file_of_somebody_else_is_no_daemon(modern):
    pipe = modern.directories.pipe
    for content in ("", "x", "-1", "0", str(os.getpid()), str(2**22 + 1), "9" * 30, "1" * 1000):
        (pipe / PID_FILE).write_text(content)
        assert find(pipe) is None


def test_what_a_container_puts_in_place_of_a_pid_file_is_not_waited_for_and_not_followed(modern):
    file = modern.directories.pipe / PID_FILE
    os.mkfifo(file)
    assert find(file.parent) is None
    file.unlink()
    file.symlink_to("/dev/zero")
    assert find(file.parent) is None
