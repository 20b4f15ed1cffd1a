"""A node on which things are broken or in the way: the shipped process says so, harms nobody, and goes on by itself."""

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import stat
import subprocess
import time

import pytest

from dra_gpu.kubelet.listening import somebody_listens
from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.kubelet import Claim, register
from tests.component.node.node_under_fire import (
    PATIENCE,
    SOON_REFUSED,
    held_twice,
    journal_path,
    records,
    status_of,
    until,
)

LONG = 3
VIEWS = "--views=gpu,monitor"
FIRST_STATE_BYTES = 1 << 20


@contextlib.contextmanager
def small_disk(path, size=FIRST_STATE_BYTES):
    """Put a file system of its own at a directory."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    made = subprocess.run(command, check=False, capture_output=True)
    if made.returncode:
        pytest.skip(f"no right to mount: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(path):
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


def alive(world) -> bool:
    return world.plugin.process.returncode is None


async def test_a_full_state_directory_is_told_and_a_held_claim_is_given_back(make_world):
    world = await make_world(gpus=2)
    with small_disk(world.cluster.paths.state):
        await world.start(devices=4)
        held, fresh = world.claim("held", "gpu-0", interval="Long"), world.claim("fresh", "gpu-1", interval="Long")
        await world.prepared(held)
        filler = fill(world.cluster.paths.state / "filler")

        assert "ENOSPC" in (await world.prepare(fresh, within=SOON_REFUSED))[fresh.uid].error
        assert world.time_slices() == [LONG, 0]
        await world.unprepare(held)
        assert world.time_slices() == [0, 0]

        filler.unlink()
        await world.prepared(fresh)
        assert alive(world)
        await world.plugin.kill()


async def test_an_instance_that_is_registered_while_the_disk_is_full_publishes_once_there_is_room(make_world):
    world = await make_world(gpus=2)
    with small_disk(world.cluster.paths.state):
        world.plugin = await world.cluster.start_plugin(VIEWS)
        await until(lambda: "GPUs of this node" in world.plugin.read_log())
        filler = fill(world.cluster.paths.state / "filler")

        await world.kubelet.wait_registered(DRIVER)
        await until(lambda: "publisher lock" in world.plugin.read_log() or not alive(world))
        assert alive(world), world.plugin.read_log()
        filler.unlink()

        await world.cluster.wait_slices(4)
        await world.plugin.kill()


async def test_a_full_cdi_directory_refuses_the_claim_and_leaves_nothing(make_world):
    world = await make_world(gpus=2)
    with small_disk(world.cluster.paths.cdi, 64 * 1024):
        await world.start(devices=4)
        filler = fill(world.cluster.paths.cdi / "filler")
        claim = world.claim("job", "gpu-0", interval="Long")

        assert "No space left" in (await world.prepare(claim, within=SOON_REFUSED))[claim.uid].error
        assert world.cdi_files == ["filler"]
        assert world.time_slices() == [0, 0]
        filler.unlink()

        await world.prepared(claim)
        await world.plugin.kill()


@pytest.mark.parametrize("what", ["file", "directory-in-the-place-of-a-temporary", "loop"])
async def test_an_instance_starts_whatever_stands_in_the_place_of_the_cdi_directory(make_world, what):
    world = await make_world(gpus=1)
    cdi = world.cluster.paths.cdi
    if what == "directory-in-the-place-of-a-temporary":
        (cdi / f".k8s.{DRIVER}-claim_u1.{'0' * 16}.tmp").mkdir()
    else:
        cdi.rmdir()
        cdi.write_text("") if what == "file" else cdi.symlink_to(cdi)

    await world.start(devices=2)
    answer = (await world.prepare(claim := world.claim("job", "gpu-0"), within=SOON_REFUSED))[claim.uid]

    assert alive(world), world.plugin.read_log()
    assert bool(answer.devices) == (what == "directory-in-the-place-of-a-temporary")
    assert "internal error" not in answer.error
    assert (await world.unprepare(claim))[claim.uid] == ""


async def test_a_cdi_directory_that_is_removed_is_made_again(world):
    await world.prepared(claim := world.claim("job", "gpu-0"))
    shutil.rmtree(world.cluster.paths.cdi)

    await world.prepared(claim)
    await world.prepared(world.claim("next", "gpu-1"))

    assert len(world.cdi_files) == 2


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '{"kind": 5}', "\xff"], ids=["cut", "deep", "odd", "latin"])
async def test_a_cdi_file_that_somebody_spoilt_is_written_anew(world, content):
    await world.prepared(claim := world.claim("job", "gpu-0"))
    [name] = world.cdi_files
    good = (world.cluster.paths.cdi / name).read_bytes()
    (world.cluster.paths.cdi / name).write_text(content, encoding="latin-1")

    await world.prepared(claim)

    assert (world.cluster.paths.cdi / name).read_bytes() == good


async def test_a_journal_that_is_deleted_gives_nothing_away_and_is_rebuilt_at_the_next_start(make_world):
    world = await make_world(gpus=2)
    await world.start(devices=4)
    held, other = world.claim("held", "gpu-0"), world.claim("other", "gpu-0")
    await world.prepared(held)
    await world.plugin.kill()
    for path in journal_path(world).parent.glob("journal.db*"):
        path.unlink()
    world.kubelet.restart()
    await world.start()

    answer = (await world.prepare(other, within=SOON_REFUSED))[other.uid]

    assert f"({held.uid})" in answer.error
    assert held_twice(world) == []
    assert (await world.unprepare(held))[held.uid] == ""
    await world.prepared(other)


async def test_a_journal_that_is_deleted_under_a_running_instance_is_put_back_with_all_that_was_in_it(world):
    held, other = world.claim("held", "gpu-0", interval="Long"), world.claim("other", "gpu-0")
    await world.prepared(held)
    for path in journal_path(world).parent.glob("journal.db*"):
        path.unlink()

    answer = (await world.prepare(other, within=SOON_REFUSED))[other.uid]

    assert f"({held.uid})" in answer.error
    assert records(world) == {held.uid: "prepared"}
    assert stat.S_IMODE(journal_path(world).stat().st_mode) == 0o600
    assert (await world.unprepare(held))[held.uid] == ""
    assert world.time_slices()[0] == 0


async def test_nobody_else_on_the_node_can_read_what_it_writes(world):
    await world.prepared(world.claim("job", "gpu-0", interval="Long"))

    paths = world.cluster.paths
    written = [*paths.state.rglob("*"), *paths.cdi.iterdir(), *(paths.kubelet / "plugins_registry").iterdir()]

    modes = {str(path): stat.S_IMODE(path.lstat().st_mode) for path in written}
    assert len(written) >= 6
    assert [path for path, mode in modes.items() if mode & 0o077] == []


async def test_sockets_that_are_removed_come_back(world):
    for path in (world.kubelet.plugins[-1].socket, world.cluster.paths.state / "dra.sock"):
        path.unlink()
    await world.kubelet.look()

    await world.kubelet.wait_registered(DRIVER)

    await world.prepared(world.claim("job", "gpu-0"))


async def test_garbage_on_the_sockets_costs_its_sender_only(world):
    paths = [world.kubelet.plugins[-1].socket, world.cluster.paths.state / "dra.sock"]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for path in paths * 10:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", preface + secrets.token_bytes(2_000), b"\x00" * 70_000):
            with socket.socket(socket.AF_UNIX) as sender, contextlib.suppress(OSError):
                sender.connect(str(path))
                sender.sendall(garbage)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(50)]
    for one in silent:
        one.connect(str(paths[1]))

    await world.prepared(world.claim("job", "gpu-0"))

    for one in silent:
        one.close()
    assert alive(world)


async def test_a_kubelet_that_goes_away_in_a_call_finds_it_done(world):
    world.node.inject("nvidia-smi compute-policy", gpu=0, delay_ms=300)
    claim = world.claim("job", "gpu-0", interval="Long")
    calling = asyncio.create_task(world.prepare(claim))
    await until(lambda: records(world))

    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    world.kubelet.restart()
    await world.kubelet.wait_registered(DRIVER)

    await world.prepared(claim)
    assert world.time_slices()[0] == LONG


async def test_two_thousand_claims_in_one_call_are_all_answered(world):
    claims = [Claim("default", f"c{number}", f"{number:08d}-0000-0000-0000-000000000000") for number in range(2_000)]

    answers = await world.prepare(*claims)

    assert len(answers) == 2_000
    assert all(answer.error for answer in answers.values())
    assert alive(world)


def dead_socket(path, age: float) -> None:
    """Leave a socket as a killed process does, so many seconds ago."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    os.utime(path, times=(time.time() - age, time.time() - age))


async def test_dead_registration_sockets_of_earlier_instances_are_taken_away_at_the_start(make_world):
    world = await make_world(gpus=1)
    registry = world.kubelet.registry
    for uid, age in (("0b0b", 60), ("young", -600)):  # young still, however long a start takes
        dead_socket(registry / f"{DRIVER}-{uid}-reg.sock", age)
    dead_socket(registry / "other.driver.test-0b0b-reg.sock", 60)
    (registry / f"{DRIVER}-file-reg.sock").write_text("")
    living = socket.socket(socket.AF_UNIX)
    living.bind(str(registry / f"{DRIVER}-living-reg.sock"))
    living.listen(1)
    os.utime(registry / f"{DRIVER}-living-reg.sock", times=(1, 1))

    world.plugin = await world.cluster.start_plugin(VIEWS, "--pod-uid=new")
    await until((registry / f"{DRIVER}-new-reg.sock").exists)

    left = sorted(path.name for path in registry.iterdir())
    assert left == sorted(
        [
            f"{DRIVER}-young-reg.sock",
            "other.driver.test-0b0b-reg.sock",
            f"{DRIVER}-file-reg.sock",
            f"{DRIVER}-living-reg.sock",
            f"{DRIVER}-new-reg.sock",
        ]
    )
    living.close()


@pytest.mark.parametrize("manner", ["random", "http1", "silent", "grpc-nonsense"])
async def test_another_plugin_that_talks_nonsense_disturbs_nothing(make_world, manner):
    world = await make_world(gpus=1)
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    # HEADERS of stream 1 (:status 200, content-type application/grpc), then a DATA frame that is no protobuf.
    headers = b"\x88\x5f\x10application/grpc"
    message = b"\x00\x00\x00\x00\x05\xff\xff\xff\xff\xff"
    frames = {
        "random": secrets.token_bytes(3_000),
        "http1": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        "silent": b"",
        "grpc-nonsense": settings
        + len(headers).to_bytes(3) + b"\x01\x04\x00\x00\x00\x01" + headers
        + len(message).to_bytes(3) + b"\x00\x01\x00\x00\x00\x01" + message,
    }  # fmt: skip

    async def talk(reader, writer) -> None:
        if manner == "grpc-nonsense":
            await reader.read(1_000)
        writer.write(frames[manner])
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    path = world.kubelet.registry / "nonsense-reg.sock"
    server = await asyncio.start_unix_server(talk, path)

    world.plugin = await world.cluster.start_plugin(VIEWS)
    own = world.kubelet.registry / f"{DRIVER}-reg.sock"
    await until(lambda: somebody_listens(own))
    world.kubelet.plugins.append(await register(own, PATIENCE))
    await world.cluster.wait_slices(2)

    assert alive(world), world.plugin.read_log()
    await world.prepared(world.claim("job", "gpu-0"))
    server.close()
    await server.wait_closed()
    assert status_of(world.plugin.pid, "Threads") < 30
