"""What hostile containers, daemons that hang, lost GPUs and full disks do to the MPS service: nothing that lasts."""

import os
import signal
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

import pytest

from dra_gpu.mps.process import PID_FILE, search
from dra_gpu.mps.service import Limits, MpsError
from tests.component.mps.conftest import CLASSIC
from tests.component.node.test_broken_node import fill, small_disk

EXCLUSIVE, DEFAULT, PROHIBITED = 3, 0, 2
A, B = "s_" + "a" * 32, "s_" + "b" * 32
FIFTH = Limits(compute_percent=20, memory_bytes=10 << 30)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Let a process stand still, as one does that waits for its GPU."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_a_pipe_in_place_of_the_pid_file_holds_up_no_other_gpu(make_service):
    service = make_service(CLASSIC)
    share = await service.client.share(service.gpu, A, FIFTH)
    [daemon] = service.daemon_pids()
    file = Path(share.pipe_directory) / PID_FILE
    file.unlink()
    os.mkfifo(file)

    os.kill(service.server_pid, signal.SIGKILL)
    os.kill(daemon, signal.SIGKILL)

    await service.client.share(service.other, A, FIFTH)
    await service.client.stop(service.gpu, A)
    assert service.modes() == [DEFAULT, EXCLUSIVE]


async def test_a_daemon_whose_pid_file_a_container_removed_is_taken_over_and_ended_all_the_same(make_service):
    service = make_service(CLASSIC)
    share = await service.client.share(service.gpu, A, FIFTH)
    client = service.attach(share)
    [daemon] = service.daemon_pids()
    (Path(share.pipe_directory) / PID_FILE).unlink()

    os.kill(service.server_pid, signal.SIGKILL)

    await service.client.share(service.gpu, B, FIFTH)
    assert client.command("alloc 1G").startswith("ok")
    [found] = await service.client.clients()
    assert found.daemon.pid == daemon
    await service.client.stop(service.gpu)
    assert search(Path(share.pipe_directory)) is None


async def test_a_tree_too_deep_to_walk_keeps_no_gpu(service):
    share = await service.client.share(service.gpu, A, FIFTH)
    with chdir(share.shm_directory):
        for _ in range(3000):
            Path("d").mkdir()
            os.chdir("d")

    await service.client.stop(service.gpu, A)

    assert service.modes() == [DEFAULT, DEFAULT]
    assert not Path(share.shm_directory).exists()


async def test_shares_of_a_lost_gpu_can_be_given_up_and_its_mode_is_restored_when_it_is_back(service):
    for name in (A, B):
        await service.client.share(service.gpu, name, FIFTH)
    service.node.lose_gpu(0)

    await service.client.stop(service.gpu, A)
    await service.client.stop(service.gpu, B)

    assert await service.client.clients() == ()
    assert service.daemon_pids() == []
    with pytest.raises(MpsError, match="reset it"):
        await service.client.share(service.gpu, A, FIFTH)
    service.node.return_gpu(0)
    os.kill(service.server_pid, signal.SIGKILL)  # it looks when it starts, and every minute

    async def restored() -> bool:
        return service.modes() == [DEFAULT, DEFAULT]

    await service.until(restored)


async def test_a_daemon_that_hangs_keeps_no_share(make_service):
    service = make_service()
    for name in (A, B):
        await service.client.share(service.gpu, name, FIFTH)
    [daemon] = service.daemon_pids()

    with standing_still(daemon):
        await service.client.stop(service.gpu, A)

    [found] = await service.client.clients()
    assert [share.name for share in found.shares] == [B]
    await service.client.stop(service.gpu, B)
    assert service.modes() == [DEFAULT, DEFAULT]


async def test_a_daemon_that_hangs_is_killed_with_its_server_once_its_last_share_is_given_up(make_service):
    service = make_service(CLASSIC)
    share = await service.client.share(service.gpu, A, FIFTH)
    client = service.attach(share)
    [daemon] = service.daemon_pids()

    with standing_still(daemon):
        await service.client.stop(service.gpu, A)

    assert client.wait() != 0
    assert service.modes() == [DEFAULT, DEFAULT]
    with service.node.client(gpus=[0]) as next_one:
        assert next_one.attached.startswith("attached")


async def test_a_gpu_that_an_administrator_took_out_of_use_meanwhile_stays_so(service):
    await service.client.share(service.gpu, A, FIFTH)
    with service.node.state() as state:
        state.gpus[0].compute_mode = PROHIBITED

    await service.client.stop(service.gpu, A)

    assert service.modes() == [PROHIBITED, DEFAULT]


async def test_a_full_disk_refuses_new_shares_and_keeps_no_old_one(make_service):
    service = make_service(started=False)
    service.directory.mkdir()
    with small_disk(service.directory, 256 * 1024):
        service.start()
        for name in (A, B):
            await service.client.share(service.gpu, name, FIFTH)
        fill(service.directory / "filler")

        with pytest.raises(MpsError, match="free space"):
            await service.client.share(service.gpu, "c", FIFTH)
        await service.client.stop(service.gpu, A)
        await service.client.stop(service.gpu, B)

        assert service.modes() == [DEFAULT, DEFAULT]
        assert await service.client.clients() == ()
        service.stop()


@pytest.mark.parametrize("content", [None, "{"], ids=["lost", "damaged"])
async def test_a_state_that_is_lost_ends_no_program_of_any_share(service, content):
    shares = {name: await service.client.share(service.gpu, name, FIFTH) for name in (A, B)}
    clients = [service.attach(share) for share in shares.values()]
    file = service.directory / "state.json"
    file.unlink()
    if content is not None:
        file.write_text(content)

    os.kill(service.server_pid, signal.SIGKILL)
    for name in shares:
        await service.client.share(service.gpu, name, FIFTH)

    assert [client.command("alloc 1G").startswith("ok") for client in clients] == [True, True]
    for client in clients:
        client.kill()
    await service.client.stop(service.gpu)
    assert service.modes() == [DEFAULT, DEFAULT]
