"""What becomes of shares, and of the programs in them, when a part of the driver ends, is upgraded or killed."""

import asyncio
import os
import signal

import pytest

from dra_gpu.mps.service import Limits
from tests.component.node.node_under_fire import PATIENCE, SOON_REFUSED, records, rows
from tests.component.node.sharing import CLASSIC, GIB, VIEWS

SOON = "--reconcile-period=0.3"
NOT_SUPPORTED, NOT_FOUND = 3, 6  # of NVML
OF_20_PERCENT = 26
LIMITS = (OF_20_PERCENT, 10 * GIB)


def bound(sharing, client) -> tuple[int, int | None]:
    truth = sharing.truth(client)
    return truth.sms, truth.memory_limit


async def five_jobs(sharing):
    jobs = [await sharing.pod(f"job-{number}") for number in range(5)]
    return jobs, [sharing.client(pod) for pod in jobs]


async def test_a_killed_mps_service_takes_no_program_with_it_and_the_next_calls_are_right(sharing):
    jobs, clients = await five_jobs(sharing)
    os.kill(sharing.server_pid, signal.SIGKILL)

    await sharing.end(jobs[0])
    await sharing.pod("next")

    assert all(client.command("alloc 1G").startswith("ok") for client in clients[1:])
    assert [bound(sharing, client) for client in clients[1:]] == [LIMITS] * 4


async def test_a_killed_control_daemon_is_started_again_with_its_shares_and_its_claims_are_told(make_sharing):
    sharing = await make_sharing("P-dc8", SOON, gpus=2)
    jobs, clients = await five_jobs(sharing)
    other_gpu = await sharing.pod("other", 100, "70Gi")
    survivor = sharing.client(other_gpu)
    victim, bystander = [await sharing.daemon_of(uuid) for uuid in sharing.node.uuids]

    os.kill(victim, signal.SIGKILL)
    for client in clients:
        assert client.wait() != 0
    await sharing.cluster.api.log.wait_for(lambda _: len(sharing.events("MpsDaemonEnded")) == 5)

    assert bystander in sharing.daemon_pids()
    assert survivor.command("alloc 1G").startswith("ok")
    assert bound(sharing, sharing.client(jobs[0])) == LIMITS
    told = {event["involvedObject"]["name"] for event in sharing.events("MpsDaemonEnded")}
    assert told == {pod.claim.name for pod in jobs}


async def test_an_upgrade_of_the_node_plugin_ends_no_program_and_changes_no_limit(sharing):
    jobs, clients = await five_jobs(sharing)
    old = sharing.world.plugin

    await sharing.world.start(VIEWS, "--pod-uid=new")
    assert await old.stop() == 0
    await sharing.end(jobs[0])
    await sharing.pod("next")

    assert all(client.command("alloc 1G").startswith("ok") for client in clients[1:])
    assert [bound(sharing, client) for client in clients[1:]] == [LIMITS] * 4


async def test_a_share_that_belongs_to_no_claim_is_given_up_by_reconciliation(make_sharing):
    sharing = await make_sharing("P-dc8", SOON)
    job = await sharing.pod()
    gpu, orphan = sharing.node.uuids[0], f"s_{'0' * 32}"
    foreign = "somebody_elses"
    await sharing.mps.share(gpu, orphan, Limits(10))
    await sharing.mps.share(gpu, foreign, Limits(10))

    async with asyncio.timeout(PATIENCE):
        while orphan in (names := await sharing.share_names()):
            await asyncio.sleep(0.02)

    assert names == {foreign, f"s_{job.devices[0].share_id.replace('-', '')}"}


async def test_a_claim_that_vanished_gives_its_share_back(make_sharing):
    sharing = await make_sharing("P-dc8", SOON)
    job = await sharing.pod()
    sharing.cluster.remove_claim(job.claim)

    await sharing.world.until(lambda: sharing.left() == {})


async def test_after_a_reboot_shares_are_there_again_before_their_programs(sharing):
    job = await sharing.pod()
    gone = await sharing.pod("gone")
    sharing.client(job).kill()
    await sharing.reboot()
    sharing.cluster.remove_claim(gone.claim)

    await sharing.start()
    settled = [(job.claim.uid, "prepared", sharing.world.node.boot_id)]
    await sharing.world.until(lambda: rows(sharing.world, "SELECT uid, state, boot_id FROM claims") == settled)

    assert bound(sharing, sharing.client(job)) == LIMITS
    assert await sharing.share_names() == {f"s_{job.devices[0].share_id.replace('-', '')}"}
    await sharing.end(job)
    assert sharing.left() == {}


async def test_a_limit_that_somebody_took_away_is_put_back_by_reconciliation(make_sharing):
    sharing = await make_sharing("P-dc8", SOON)
    job = await sharing.pod()
    with sharing.node.state() as state:
        for limit in state.limits:
            limit.used = 0

    await sharing.world.until(lambda: len(sharing.node.snapshot().limits) == 1)

    assert bound(sharing, sharing.client(job)) == LIMITS


async def test_a_fault_of_one_program_ends_those_of_all_shares_of_its_gpu_as_the_status_says(make_sharing):
    sharing = await make_sharing(driver_version=CLASSIC, gpus=2)
    first, second = await sharing.pod("first"), await sharing.pod("second")
    elsewhere = await sharing.pod("elsewhere", 100, "70Gi")
    guilty, beside, apart = (sharing.client(pod) for pod in (first, second, elsewhere))

    assert beside.command("hold") == "holding"

    assert guilty.command("fault").startswith("CUDA_ERROR")

    assert beside.line().startswith("CUDA_ERROR")
    assert apart.command("alloc 1G").startswith("ok")
    [device] = await first.wait_status()
    assert "a fatal GPU fault of one process ends the processes of all shares of this GPU" in device["data"]["notes"]


async def test_two_plugins_side_by_side_never_promise_more_than_the_gpu(sharing):
    old = sharing.kubelet.plugins[0]
    await sharing.world.start(VIEWS, "--pod-uid=new")
    first = sharing.claim("first", results=[sharing.result("first", percent=60)])
    second = sharing.claim("second", results=[sharing.result("second", percent=60)])

    by_old = asyncio.create_task(sharing.prepare_by(old, first))
    by_new = asyncio.create_task(sharing.world.prepare(second, within=SOON_REFUSED))
    answers = [(await by_old)[first.uid], (await by_new)[second.uid]]

    assert sorted(bool(answer.error) for answer in answers) == [False, True]
    assert "ShareNotFree" in next(answer.error for answer in answers if answer.error)


async def test_pods_on_a_lost_gpu_are_taken_back(sharing):
    jobs = [await sharing.pod("first"), await sharing.pod("second")]
    sharing.node.lose_gpu(0)

    for job in jobs:
        assert (await sharing.world.unprepare(job.claim))[job.claim.uid] == ""

    assert records(sharing.world) == {}
    assert sharing.world.cdi_files == []


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NOT_FOUND])
async def test_where_the_driver_limits_no_cgroup_a_share_is_limited_by_mps_and_says_why(sharing, code):
    sharing.node.inject("nvmlDeviceSetMemoryLimits*", code=code)

    job = await sharing.pod()

    truth = sharing.truth(sharing.client(job))
    assert (truth.pinned_limit, truth.cgroup_limit) == (10 * GIB, None)
    assert (await sharing.capacities(job))["memory"] == "cooperative"
    [device] = job.status()
    assert any("dmem controller" in note for note in device["data"]["notes"])
