"""The MPS service as the node plugin sees it: GPUs, daemons, shares."""

import asyncio
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.client import MpsClient
from dra_gpu.mps.service import Limits, MpsError, MpsErrorKind
from tests.component.mps.conftest import CLASSIC

EXCLUSIVE, PROHIBITED, DEFAULT = 3, 2, 0
A, B = "s_" + "a" * 32, "s_" + "b" * 32
FIFTH = Limits(compute_percent=20, memory_bytes=10 << 30)
HALF = Limits(compute_percent=50, memory_bytes=20 << 30)


async def test_a_shared_gpu_is_exclusive_and_has_a_daemon(service):
    share = await service.client.share(service.gpu, A, FIFTH)

    assert service.modes() == [EXCLUSIVE, DEFAULT]
    assert share.limits == FIFTH
    assert (Path(share.pipe_directory) / "control").is_socket()
    (found,) = await service.client.clients()
    assert service.daemon_pids() == [found.daemon.pid]


async def test_the_protocol_follows_the_driver(service):
    daemon = await service.client.ensure(service.gpu)

    assert daemon.protocol is (MpsProtocol.CLASSIC if service.driver == CLASSIC else MpsProtocol.NAMESPACE)


async def test_the_same_call_again_changes_nothing(service):
    first = await service.client.share(service.gpu, A, FIFTH)
    pids = service.daemon_pids()

    assert await service.client.share(service.gpu, A, FIFTH) == first
    assert service.daemon_pids() == pids


@pytest.mark.case("C86")
@pytest.mark.parametrize("former", [DEFAULT, EXCLUSIVE])
async def test_the_compute_mode_of_before_is_set_again(service, former):
    with service.node.state() as state:
        state.gpus[0].compute_mode = former
    await service.client.share(service.gpu, A, FIFTH)

    await service.client.stop(service.gpu, A)

    assert service.modes() == [former, DEFAULT]
    assert service.daemon_pids() == []
    assert await service.client.clients() == ()


@pytest.mark.case("C97")
async def test_the_daemon_stays_until_the_last_share_is_given_up(service):
    await service.client.share(service.gpu, A, FIFTH)
    kept = await service.client.share(service.gpu, B, HALF)
    pids = service.daemon_pids()

    await service.client.stop(service.gpu, A)

    assert service.daemon_pids() == pids
    client = service.attach(kept)
    ((found,),) = [gpu.shares for gpu in await service.client.clients()]
    assert (found.name, found.limits, found.clients) == (B, HALF, (client.pid,))


async def test_all_shares_of_a_gpu_can_be_given_up_at_once(service):
    await service.client.share(service.gpu, A, FIFTH)
    await service.client.share(service.gpu, B, FIFTH)

    await service.client.stop(service.gpu)

    assert service.modes() == [DEFAULT, DEFAULT]


async def test_giving_up_what_is_not_there_is_done(service):
    await service.client.stop(service.gpu, A)
    await service.client.stop(service.gpu)

    assert service.modes() == [DEFAULT, DEFAULT]


async def test_gpus_do_not_wait_for_each_other(service):
    shares = await asyncio.gather(
        service.client.share(service.gpu, A, FIFTH), service.client.share(service.other, A, FIFTH)
    )

    assert len({share.shm_directory for share in shares}) == 2
    assert service.modes() == [EXCLUSIVE, EXCLUSIVE]


async def test_a_daemon_that_dies_is_started_again_with_its_shares(service):
    share = await service.client.share(service.gpu, A, FIFTH)
    client = service.attach(share)
    (killed,) = service.daemon_pids()

    os.kill(killed, signal.SIGKILL)

    assert client.wait() != 0

    async def again() -> bool:
        (found,) = await service.client.clients(service.gpu)
        return found.daemon.restarts == 1

    await service.until(again)
    assert service.daemon_pids() != [killed]
    service.attach(await service.client.share(service.gpu, A, FIFTH))


async def nobody_is_let_on(service) -> bool:
    return service.modes()[0] == PROHIBITED


async def test_while_a_dead_daemon_is_not_back_nobody_gets_the_gpu_without_limits(service):
    share = await service.client.share(service.gpu, A, FIFTH)
    service.node.inject("nvidia-cuda-mps-control -d", code=999)
    (killed,) = service.daemon_pids()

    os.kill(killed, signal.SIGKILL)

    await service.until(lambda: nobody_is_let_on(service))
    with service.node.client(pipe=Path(share.pipe_directory), gpus=[0]) as hasty:
        assert not hasty.attached.startswith("attached")
    service.node.clear()

    async def again() -> bool:
        (found,) = await service.client.clients(service.gpu)
        return found.daemon.restarts == 1 and service.modes()[0] == EXCLUSIVE

    await service.until(again)
    service.attach(await service.client.share(service.gpu, A, FIFTH))


async def test_a_share_is_given_up_while_its_dead_daemon_is_not_back(service):
    await service.client.share(service.gpu, A, FIFTH)
    service.node.inject("nvidia-cuda-mps-control -d", code=999)
    (killed,) = service.daemon_pids()
    os.kill(killed, signal.SIGKILL)

    await service.until(lambda: nobody_is_let_on(service))
    await service.client.stop(service.gpu, A)

    assert service.modes() == [DEFAULT, DEFAULT]


async def test_daemons_and_clients_outlive_the_service(service):
    share = await service.client.share(service.gpu, A, FIFTH)
    client = service.attach(share)
    pids, before = service.daemon_pids(), service.server_pid

    os.kill(before, signal.SIGKILL)

    (found,) = await service.client.clients()
    assert service.server_pid != before
    assert (found.daemon.pid, found.daemon.restarts) == (pids[0], 0)
    assert found.shares[0].clients == (client.pid,)
    assert client.command("alloc 1G").startswith("ok")


async def test_when_its_pod_goes_the_gpus_stay_exclusive_and_the_next_one_takes_over(service):
    await service.client.share(service.gpu, A, FIFTH)
    pids = service.daemon_pids()

    assert service.stop() == 0
    assert service.modes() == [EXCLUSIVE, DEFAULT]
    service.start()

    (found,) = await service.client.clients()
    assert [found.daemon.pid] == pids
    await service.client.stop(service.gpu, A)
    assert service.modes() == [DEFAULT, DEFAULT]


async def test_daemons_that_the_runtime_killed_with_the_pod_are_there_again(service):
    await service.client.share(service.gpu, A, FIFTH)
    service.stop()
    os.kill(service.daemon_pids()[0], signal.SIGKILL)

    service.start()

    async def runs() -> bool:
        (found,) = await service.client.clients(service.gpu)
        return found.daemon.pid

    await service.until(runs)
    share = await service.client.share(service.gpu, A, FIFTH)
    service.attach(share)


async def test_after_a_reboot_nothing_is_left_to_do(service):
    await service.client.share(service.gpu, A, FIFTH)
    service.stop()
    os.kill(service.daemon_pids()[0], signal.SIGKILL)
    service.node.reboot()

    service.start()

    assert await service.client.clients() == ()
    assert service.modes() == [DEFAULT, DEFAULT]


async def test_limits_of_a_share_change_only_without_clients(make_service):
    service = make_service()
    client = service.attach(await service.client.share(service.gpu, A, FIFTH))

    with pytest.raises(MpsError, match=f"process {client.pid} must end first") as refused:
        await service.client.limits(service.gpu, A, HALF)
    assert refused.value.kind is MpsErrorKind.BUSY
    (found,) = await service.client.clients(service.gpu)
    assert found.shares[0].limits == FIFTH

    client.kill()

    async def changed() -> bool:
        try:
            return (await service.client.limits(service.gpu, A, HALF)).limits == HALF
        except MpsError:
            return False

    await service.until(changed)


async def test_classic_limits_are_what_containers_are_given_and_change_at_once(make_service):
    service = make_service(CLASSIC)
    service.attach(await service.client.share(service.gpu, A, FIFTH))

    assert (await service.client.limits(service.gpu, A, HALF)).limits == HALF


async def test_limits_of_a_share_that_is_not_there_are_refused(service):
    with pytest.raises(MpsError, match="make it with `share` first"):
        await service.client.limits(service.gpu, A, HALF)


async def test_giving_up_a_share_ends_its_clients(make_service):
    service = make_service()
    client = service.attach(await service.client.share(service.gpu, A, FIFTH))
    await service.client.share(service.gpu, B, FIFTH)

    await service.client.stop(service.gpu, A)

    assert client.command("alloc 1G") == "CUDA_ERROR_MPS_CLIENT_TERMINATED 810"


@pytest.mark.case("C157")
async def test_directories_of_one_share_are_closed_to_others(make_service):
    service = make_service()
    one = await service.client.share(service.gpu, A, FIFTH)
    two = await service.client.share(service.gpu, B, FIFTH)
    pipe, shm = Path(one.pipe_directory), Path(one.shm_directory)

    assert pipe != Path(two.pipe_directory)
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o755
    assert stat.S_IMODE((pipe / "control").stat().st_mode) & 0o666 == 0o666
    assert stat.S_IMODE(shm.stat().st_mode) == 0o1777
    assert stat.S_IMODE(shm.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((shm.parent / "log").stat().st_mode) == 0o700
    assert stat.S_IMODE(service.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((service.directory / "mps.sock").stat().st_mode) == 0o600


@pytest.mark.case("C157")
async def test_what_a_client_leaves_behind_is_removed_mounts_too(service):
    share = await service.client.share(service.gpu, A, FIFTH)
    pipe, shm = Path(share.pipe_directory), Path(share.shm_directory)
    (pipe / "left").write_text("x")
    (shm / "segment").write_text("x")
    (shm / "inside").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", shm / "inside"], check=True)

    await service.client.stop(service.gpu, A)

    assert sorted(path.name for path in service.directory.iterdir()) == ["lock", "mps.sock", "state.json"]


async def test_what_clients_write_to_dev_shm_fills_nothing_but_their_gpus_own(service):
    share = await service.client.share(service.gpu, A, FIFTH)

    shm = os.statvfs(share.shm_directory)

    assert Path(share.shm_directory).is_mount()
    assert shm.f_fsid != os.statvfs(service.directory).f_fsid
    assert shm.f_blocks * shm.f_frsize <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


async def test_the_memory_at_dev_shm_stays_while_the_service_restarts_and_goes_with_the_last_share(service):
    share = await service.client.share(service.gpu, A, FIFTH)
    (Path(share.shm_directory) / "segment").write_text("x")

    service.stop()
    service.start()
    await service.client.share(service.gpu, B, FIFTH)

    assert (Path(share.shm_directory) / "segment").exists()
    await service.client.stop(service.gpu)
    assert str(service.directory) not in Path("/proc/self/mountinfo").read_text()


async def test_a_daemon_sees_its_gpus_directory_at_dev_shm(service):
    share = await service.client.share(service.gpu, A, FIFTH)
    (Path(share.shm_directory) / "mark").touch()

    (pid,) = service.daemon_pids()

    assert Path(f"/proc/{pid}/root/dev/shm/mark").exists()
    assert not Path("/dev/shm/mark").exists()


async def test_a_gpu_whose_daemon_does_not_start_is_as_it_was(service):
    service.node.inject("nvidia-cuda-mps-control -d", code=999)

    with pytest.raises(MpsError, match=r"`nvidia-cuda-mps-control .*-d.*` ended with 1") as refused:
        await service.client.share(service.gpu, A, FIFTH)

    assert refused.value.kind is MpsErrorKind.TRANSIENT
    assert service.modes() == [DEFAULT, DEFAULT]
    assert await service.client.clients() == ()


async def test_a_gpu_in_mig_mode_is_refused_with_the_way_out(make_service):
    service = make_service(started=False)
    with service.node.state() as state:
        state.gpus[0].mig_current = state.gpus[0].mig_pending = 1
    service.start()

    with pytest.raises(MpsError, match="share its partitions") as refused:
        await service.client.ensure(service.gpu)

    assert refused.value.kind is MpsErrorKind.UNSUPPORTED


async def test_a_gpu_that_was_taken_out_of_use_is_refused(make_service):
    service = make_service()
    with service.node.state() as state:
        state.gpus[0].compute_mode = 2

    with pytest.raises(MpsError, match="PROHIBITED"):
        await service.client.ensure(service.gpu)

    assert service.modes() == [2, DEFAULT]


async def test_a_lost_gpu_keeps_no_other_one_from_being_shared(service):
    service.node.lose_gpu(0)

    await service.client.share(service.other, A, FIFTH)

    assert service.modes()[1] == EXCLUSIVE


async def test_a_service_that_is_not_there_is_said_to_be_absent(tmp_path):
    client = MpsClient(tmp_path / "mps.sock", absent_seconds=0.1)

    with pytest.raises(MpsError, match="is sharing turned on") as refused:
        await client.ensure("GPU-1")

    assert refused.value.kind is MpsErrorKind.UNAVAILABLE


async def test_what_a_caller_sends_is_checked_before_it_reaches_a_path(service):
    for name in ("../etc", "A", "", "a" * 65, "default"):
        with pytest.raises(MpsError, match="no name of a share"):
            await service.client.share(service.gpu, name, FIFTH)
    with pytest.raises(MpsError, match="no UUID of a GPU"):
        await service.client.ensure("GPU-../..")


async def test_a_client_of_any_user_gets_what_its_share_was_given_and_no_more(make_service):
    service = make_service()
    share = await service.client.share(service.gpu, A, FIFTH)

    client = service.attach_in_container(share, user=12345)

    (truth,) = service.node.clients()
    assert (truth.mps, truth.namespace, truth.sm_percent, truth.pinned_limit) == (True, f"gpu/{A}", 20, 10 << 30)
    assert client.command("alloc 11G") == "CUDA_ERROR_OUT_OF_MEMORY 2"


async def test_shares_of_one_gpu_have_limits_of_their_own(make_service):
    service = make_service()
    for name, limits in ((A, FIFTH), (B, HALF)):
        service.attach(await service.client.share(service.gpu, name, limits))

    assert sorted((client.sm_percent, client.pinned_limit) for client in service.node.clients()) == [
        (20, 10 << 30),
        (50, 20 << 30),
    ]


async def test_after_a_restart_the_daemons_shares_limit_as_before(make_service):
    service = make_service()
    share = await service.client.share(service.gpu, A, FIFTH)
    os.kill(service.daemon_pids()[0], signal.SIGKILL)

    async def again() -> bool:
        (found,) = await service.client.clients(service.gpu)
        return found.daemon.restarts == 1 and not found.problem

    await service.until(again)
    service.attach(share)

    (truth,) = service.node.clients()
    assert (truth.sm_percent, truth.pinned_limit) == (20, 10 << 30)


async def test_a_limit_can_be_lifted_to_the_whole_gpu(make_service):
    service = make_service()
    await service.client.share(service.gpu, A, FIFTH)

    service.attach(await service.client.limits(service.gpu, A, Limits()))

    (truth,) = service.node.clients()
    assert truth.sm_percent == 100
    assert truth.pinned_limit in {None, service.node.gpus[0].memory}


async def test_a_program_without_the_shares_directory_gets_no_gpu(service):
    service.attach(await service.client.share(service.gpu, A, FIFTH))

    with service.node.client(gpus=[0]) as outsider:
        assert outsider.attached == "CUDA_ERROR_DEVICE_UNAVAILABLE 46"


async def test_a_mode_that_somebody_changed_is_exclusive_again_with_the_next_look(service):
    await service.client.share(service.gpu, A, FIFTH)
    with service.node.state() as state:
        state.gpus[0].compute_mode = DEFAULT

    os.kill(service.server_pid, signal.SIGKILL)  # it looks when it starts, and every minute

    async def exclusive() -> bool:
        return service.modes() == [EXCLUSIVE, DEFAULT]

    await service.until(exclusive)
