"""The supervisor, and the socket as whoever sends it something odd sees it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dra_gpu.mps import server as server_module
from dra_gpu.mps.server import DirectoryBusyError, Server, hold_lock
from dra_gpu.mps.service import Limits, MpsError, MpsErrorKind

A = "s_" + "a" * 32


def test_a_wrong_flag_ends_the_supervisor_too():
    done = subprocess.run(
        [sys.executable, "-m", "dra_gpu", "mps", "--directory", "relative"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "must be absolute" in done.stderr


def test_help_is_said_once():
    done = subprocess.run(
        [sys.executable, "-m", "dra_gpu", "mps", "--help"], capture_output=True, text=True, check=True
    )

    assert "--driver-root" in done.stdout


async def test_orphans_are_collected(make_service):
    service = make_service()
    await service.client.share(service.gpu, A, Limits())
    (pid,) = service.daemon_pids()

    os.kill(pid, signal.SIGKILL)

    async def gone() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await service.until(gone)


async def test_a_service_without_its_supervisor_ends_and_the_daemons_go_on(make_service):
    service = make_service()
    await service.client.share(service.gpu, A, Limits())
    pid, daemons = service.server_pid, service.daemon_pids()

    service.kill_supervisor()

    async def gone() -> bool:
        return not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]

    await service.until(gone)
    assert service.daemon_pids() == daemons
    service.start()
    (found,) = await service.client.clients()
    assert [found.daemon.pid] == daemons


async def test_a_second_service_in_the_same_directory_waits_and_then_says_who_is_in_the_way(tmp_path):
    first = await hold_lock(tmp_path, 0.1)

    with pytest.raises(DirectoryBusyError, match="--directory of its own"):
        await hold_lock(tmp_path, 0.1)

    os.close(first)
    os.close(await hold_lock(tmp_path, 0.1))


class SlowService:
    """Holds every call until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.done = 0

    async def stop(self, _gpu: str, _name: str = "") -> None:
        await self.go.wait()
        self.done += 1

    async def ensure(self, _gpu: str) -> None:
        raise MpsError(MpsErrorKind.BUSY, "somebody is there")

    async def clients(self, _gpu: str = "") -> tuple:
        return ()


@pytest.fixture
async def served(tmp_path):
    service = SlowService()
    server = Server(service, tmp_path / "mps.sock", call_seconds=0.3)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "mps.sock"))

    async def ask(*lines: bytes) -> list[dict]:
        writer.write(b"".join(line + b"\n" for line in lines))
        return [json.loads(await asyncio.wait_for(reader.readline(), 60)) for _ in lines]

    ask.reader = reader
    yield service, ask
    writer.close()
    await server.stop()


async def test_answers_carry_the_number_of_their_request_and_may_overtake(served):
    service, ask = served

    answers = asyncio.create_task(ask(b'{"call":"stop","id":7,"gpu":"g"}', b'{"call":"clients","id":8}'))
    await asyncio.sleep(0)
    service.go.set()

    assert sorted(answer["id"] for answer in await answers) == [7, 8]


async def test_an_error_says_what_a_caller_can_do(served):
    _, ask = served

    (answer,) = await ask(b'{"call":"ensure","id":1,"gpu":"g"}')

    assert answer["error"] == {"kind": "busy", "message": "somebody is there"}


async def test_a_call_that_takes_too_long_is_answered(served):
    _, ask = served

    (answer,) = await ask(b'{"call":"stop","id":1,"gpu":"g"}')

    assert answer["error"]["kind"] == "transient"
    assert "did not end within 0.3 s" in answer["error"]["message"]


@pytest.mark.parametrize(
    "line", [b"", b"{", b"\xff", b'{"call":"format","id":1}', b'{"call":"stop","id":"x","gpu":1}', b"x" * 20_000]
)
async def test_what_cannot_be_read_is_refused_and_the_connection_closed(served, line):
    _, ask = served

    (answer,) = await ask(line)

    assert (answer["id"], answer["error"]["kind"]) == (0, "unsupported")
    assert await ask.reader.read() == b""


async def test_a_running_call_ends_before_the_socket_goes(tmp_path):
    service = SlowService()
    server = Server(service, tmp_path / "mps.sock")
    await server.start()
    _, writer = await asyncio.open_unix_connection(str(tmp_path / "mps.sock"))
    writer.write(b'{"call":"stop","id":1,"gpu":"g"}\n')
    await writer.drain()
    while not server._calls:
        await asyncio.sleep(0.01)

    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    service.go.set()
    await stopping

    assert service.done == 1
    assert not (tmp_path / "mps.sock").exists()
    writer.close()


class TalkativeService(SlowService):
    """Answers at more length than any socket holds."""

    async def clients(self, _gpu: str = "") -> tuple:
        return ("x" * 4_000_000,)


async def test_a_caller_who_does_not_read_holds_up_neither_the_others_nor_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_READ_SECONDS", 0.1)
    server = Server(TalkativeService(), tmp_path / "mps.sock")
    await server.start()
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(tmp_path / "mps.sock"))
    silent.send(b'{"call":"clients","id":1}\n' * 40)
    while not server._calls:
        await asyncio.sleep(0.01)

    async with asyncio.timeout(50):
        await server.stop()

    silent.close()
