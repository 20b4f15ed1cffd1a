"""What a share's limits are worth, on the hardware: the table of mechanisms, row by row, by the shipped processes."""

import asyncio

import pytest

from dra_gpu_sim.local import pods
from dra_gpu_sim.local.allocator import UnschedulableError
from tests.component.node.configs import mps_config, shared_config
from tests.component.node.node_under_fire import SOON_REFUSED
from tests.component.node.sharing import CLASSIC, GIB, whole_gpu

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY 2"
EXCLUSIVE_PROCESS = 3
SMS, OF_20_PERCENT = 132, 26
ALL_SMS = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
ACCOUNTED = {"clients": "accounting", "nvlinkBandwidth": "accounting"}


@pytest.mark.parametrize("systemd", [False, True], ids=["cgroupfs", "systemd"])
async def test_by_namespace_and_cgroup_no_container_lifts_a_limit(sharing, systemd):
    for qos in ("", "burstable", "besteffort"):
        pod = await sharing.pod(f"job{qos}", qos=qos, systemd=systemd)

        honest, rebel = sharing.client(pod), sharing.rebel(pod, **ALL_SMS)

        for client in (honest, rebel):
            truth = sharing.truth(client)
            assert (truth.mps, truth.sms, truth.cgroup_limit) == (True, OF_20_PERCENT, 10 * GIB)
        assert honest.command("alloc 6G").startswith("ok")
        assert rebel.command("alloc 6G") == OUT_OF_MEMORY, "the limit counts all processes of the pod"
        assert await sharing.capacities(pod) == {"computePercent": "namespace", "memory": "cgroup", **ACCOUNTED}


async def test_without_cgroup_v2_memory_is_limited_by_mps_for_each_process(make_sharing):
    sharing = await make_sharing(cgroup_v2=False)
    pod = await sharing.pod()

    first, second = sharing.client(pod), sharing.client(pod)

    truth = sharing.truth(first)
    assert (truth.sms, truth.pinned_limit, truth.cgroup_limit) == (OF_20_PERCENT, 10 * GIB, None)
    assert first.command("alloc 11G") == OUT_OF_MEMORY
    assert first.command("alloc 6G").startswith("ok")
    assert second.command("alloc 6G").startswith("ok"), "each process has the limit for itself"
    assert await sharing.capacities(pod) == {"computePercent": "namespace", "memory": "cooperative", **ACCOUNTED}


async def test_classic_mps_limits_those_who_keep_their_environment_and_nobody_else(make_sharing):
    sharing = await make_sharing(driver_version=CLASSIC)
    pod = await sharing.pod()

    honest, rebel = sharing.client(pod), sharing.rebel(pod)

    truth = sharing.truth(honest)
    assert (truth.mps, truth.sms, truth.pinned_limit) == (True, OF_20_PERCENT, 10 * GIB)
    assert honest.command("alloc 11G") == OUT_OF_MEMORY
    lifted = sharing.truth(rebel)
    assert (lifted.mps, lifted.sms, lifted.pinned_limit) == (True, SMS, None)
    assert await sharing.capacities(pod) == {"computePercent": "cooperative", "memory": "cooperative", **ACCOUNTED}
    [device] = pod.status()
    assert all(device["data"]["capacities"][name]["lifted"] for name in ("computePercent", "memory"))


async def test_time_slices_limit_nothing_where_a_claim_asks_for_them(make_sharing):
    sharing = await make_sharing(driver_version=CLASSIC)
    pod = await sharing.pod(config=[shared_config(strategy="TimeSlicing")])

    truth = sharing.truth(sharing.client(pod))

    assert (truth.mps, truth.sms, truth.memory_limit) == (False, SMS, None)
    assert sharing.modes == [0]
    assert await sharing.capacities(pod) == {"computePercent": "time-slice", "memory": "accounting", **ACCOUNTED}


async def test_a_gpu_before_volta_has_time_slices_and_the_claim_says_why(make_sharing):
    sharing = await make_sharing(driver_version=CLASSIC, settings=["gpu.0.cc_major=6"])
    pod = await sharing.pod()

    truth = sharing.truth(sharing.client(pod))

    assert (truth.mps, truth.sms) == (False, SMS)
    assert (await sharing.capacities(pod))["computePercent"] == "time-slice"
    [device] = pod.status()
    assert "of which MPS needs 7.0" in device["data"]["notes"][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"driver_version": CLASSIC}, ("computePercent by `cooperative`", "older than 615")),
        ({"cgroup_v2": False}, ("memory by `cooperative`", "cgroup v2")),
        ({"driver_version": CLASSIC, "settings": ["gpu.0.cc_major=6"]}, ("computePercent by `time-slice`", "7.0")),
    ],
    ids=["classic", "no-cgroup-v2", "before-volta"],
)
async def test_enforcement_required_refuses_what_a_container_could_lift(make_sharing, options, words):
    sharing = await make_sharing(**options)
    claim = sharing.claim(config=[shared_config(enforcement="Required")], pod_uid="p-1")
    sharing.cluster.paths.make_pod_cgroup("p-1")

    reason = await sharing.world.refused(claim)

    for word in ("default/job", "enforcement Required", *words, "BestEffort", "MIG"):
        assert word in reason
    assert sharing.left() == {}


async def test_enforcement_required_is_served_where_nothing_can_be_lifted_and_waits_for_a_pods_cgroup(sharing):
    required = [shared_config(enforcement="Required")]
    early = sharing.claim("early", config=required, pod_uid="p-1")

    reason = await sharing.world.refused(early)
    assert "the cgroup of its pod was not found" in reason
    sharing.cluster.paths.make_pod_cgroup("p-1")
    await sharing.world.prepared(early)

    [device] = (await sharing.pod("second", config=required)).devices
    assert device.share_id


async def test_two_shares_in_one_claim_are_refused_with_the_way_out(make_sharing):
    sharing = await make_sharing(gpus=2)
    [request] = pods.a_share(20, "10Gi")
    one_of_two = [{**request, "name": name} for name in ("a", "b")]

    reason = await sharing.world.refused(sharing.claim(requests=one_of_two))

    for word in ("a container follows one MPS daemon only", "a claim of its own for each"):
        assert word in reason
    assert sharing.left() == {}


async def test_pods_on_one_claim_are_limited_each_and_the_status_says_so(sharing):
    claim = sharing.claim(pod_uid="p-1")
    cgroups = [sharing.cluster.paths.make_pod_cgroup("p-1"), sharing.join(claim, "other")]
    answer = await sharing.world.prepared(claim)
    first, second = (sharing.of(f"pod-{cgroup[-4:]}", claim, answer, cgroup) for cgroup in cgroups)

    assert sharing.client(first).command("alloc 9G").startswith("ok")
    beside = sharing.client(second)
    assert beside.command("alloc 9G").startswith("ok")
    assert beside.command("alloc 1G") == OUT_OF_MEMORY
    [device] = await sharing.status_of(claim)
    assert "2 pods use this share: limits hold for each pod or process, not for their sum" in device["data"]["notes"]
    assert device["data"]["capacities"]["memory"]["scope"] == "pod"


async def test_a_pod_that_joins_a_claim_is_limited_by_the_next_reconciliation(make_sharing):
    sharing = await make_sharing("P-dc8", "--reconcile-period=0.3")
    first = await sharing.pod()
    cgroup = sharing.join(first.claim, "late")
    await sharing.world.until(lambda: len(sharing.node.snapshot().limits) == 2)

    late = sharing.client(sharing.of("late", first.claim, await sharing.world.prepared(first.claim), cgroup))

    assert sharing.truth(late).cgroup_limit == 10 * GIB
    assert late.command("alloc 11G") == OUT_OF_MEMORY


async def test_containers_of_a_pod_share_its_memory_and_have_the_percentage_each(sharing):
    pod = await sharing.pod()

    containers = [sharing.client(pod) for _ in range(3)]

    assert [sharing.truth(one).sms for one in containers] == [OF_20_PERCENT] * 3
    assert [one.command("alloc 4G").startswith("ok") for one in containers] == [True, True, False]


async def test_a_whole_gpu_waits_until_the_last_share_has_gone_and_a_share_until_the_whole_gpu_has(sharing):
    job = await sharing.pod()
    whole = sharing.world.claim("whole", "gpu-0")

    waiting = asyncio.create_task(sharing.world.prepare(whole))
    await sharing.until_read("whole")
    assert not waiting.done()
    await sharing.end(job)
    assert (await waiting)[whole.uid].error == ""

    share = sharing.claim("next", results=[sharing.result("next")])
    refused = (await sharing.world.prepare(share, within=SOON_REFUSED))[share.uid]
    assert "default/whole" in refused.error


@pytest.mark.case("C05")
async def test_a_share_whose_place_is_still_held_waits_for_it_and_is_refused_with_all_holders(sharing):
    running = [await sharing.pod(f"job-{number}", 40) for number in range(2)]
    newcomer = sharing.claim("newcomer", results=[sharing.result("n", percent=40)])

    refused = (await sharing.world.prepare(newcomer, within=SOON_REFUSED))[newcomer.uid]
    assert "ShareNotFree: device gpu-0-shared: 40 % of its SMs are wanted, 20 % are free" in refused.error
    for pod in running:
        assert f"default/{pod.claim.name} ({pod.claim.uid})" in refused.error

    waiting = asyncio.create_task(sharing.world.prepare(newcomer))
    await sharing.until_read("newcomer", times=2)
    assert not waiting.done()
    await sharing.end(running[0])
    assert (await waiting)[newcomer.uid].error == ""


async def test_memory_that_is_still_held_is_waited_for_too(sharing):
    job = await sharing.pod("job", 10, "60Gi")
    newcomer = sharing.claim("newcomer", results=[sharing.result("n", percent=10, memory="30Gi")])

    waiting = asyncio.create_task(sharing.world.prepare(newcomer))
    await sharing.until_read("newcomer")
    assert not waiting.done()
    await sharing.end(job)

    assert (await waiting)[newcomer.uid].error == ""


async def test_shares_of_one_gpu_never_mix_mps_and_time_slices(sharing):
    await sharing.pod()
    other = sharing.claim("other", config=[shared_config(strategy="TimeSlicing")])

    refused = (await sharing.world.prepare(other, within=SOON_REFUSED))[other.uid]

    assert "it is shared by MPS now, and TimeSlicing cannot be mixed with that" in refused.error


@pytest.mark.case("C88")
@pytest.mark.parametrize("driver", [CLASSIC, None], ids=["classic", "namespaces"])
async def test_a_whole_gpu_is_shared_within_its_claim_as_nvidias_config_says(make_sharing, driver):
    sharing = await make_sharing(driver_version=driver, gpus=2)
    limits = mps_config(
        defaultActiveThreadPercentage=50,
        defaultPinnedDeviceMemoryLimit="20Gi",
        defaultPerDevicePinnedMemoryLimit={"0": "1500M"},
    )
    pod = await sharing.pod(requests=whole_gpu(), config=[limits])

    clients = [sharing.client(pod) for _ in range(2)]

    for truth in map(sharing.truth, clients):
        assert (truth.mps, truth.sms, truth.pinned_limit) == (True, SMS // 2, 1430 * 2**20)
    assert sorted(sharing.modes) == [0, EXCLUSIVE_PROCESS]
    for client in clients:
        client.kill()
    await sharing.end(pod)
    assert sharing.left() == {}


@pytest.mark.case("C88")
async def test_a_pinned_limit_by_uuid_reaches_the_hardware(sharing):
    limit = mps_config(defaultPerDevicePinnedMemoryLimit={sharing.node.uuids[0]: "10G"})

    pod = await sharing.pod(requests=whole_gpu(), config=[limit])

    assert sharing.truth(sharing.client(pod)).pinned_limit == 9536 * 2**20


async def test_programs_of_several_users_share_a_gpu(sharing):
    pod = await sharing.pod(requests=whole_gpu(), config=[mps_config()])

    users = [sharing.client(pod, user=user) for user in (0, 1000, 65534)]

    assert [sharing.truth(one).uid for one in users] == [0, 1000, 65534]


@pytest.mark.case("C86")
async def test_a_shared_gpu_lets_nobody_past_mps_and_is_given_back_in_its_former_mode(make_sharing):
    sharing = await make_sharing(settings=["gpu.0.compute_mode=0"])
    pod = await sharing.pod()
    assert sharing.modes == [EXCLUSIVE_PROCESS]
    client = sharing.client(pod)

    with sharing.node.client(gpus=[0]) as intruder:
        assert not intruder.attached.startswith("attached")

    client.kill()
    await sharing.end(pod)
    assert sharing.left() == {}


async def test_without_the_mps_service_shares_are_time_slices_and_say_so_and_mps_is_refused(make_sharing):
    sharing = await make_sharing("P-dc8", "--mps-socket=none", mps=False, driver_version=CLASSIC)

    pod = await sharing.pod()
    assert (await sharing.capacities(pod))["computePercent"] == "time-slice"
    [device] = pod.status()
    assert "the MPS service (`dra-gpu mps`) is not enabled on this node" in device["data"]["notes"][0]

    reason = await sharing.world.refused(sharing.claim("strict", config=[shared_config(strategy="MPS")]))
    assert "`dra-gpu mps`" in reason
    assert "Auto" in reason


async def test_an_mps_service_that_comes_late_is_waited_for_inside_the_call(make_sharing):
    sharing = await make_sharing(mps=False)
    waiting = asyncio.create_task(sharing.world.prepare(claim := sharing.claim()))
    await sharing.until_read("job")

    await sharing.cluster.start_mps()

    assert (await waiting)[claim.uid].error == ""


async def test_a_share_is_watched_with_admin_access_and_counts_for_nothing(sharing):
    running = [await sharing.pod(f"job-{number}", 50, "30Gi") for number in range(2)]
    result = sharing.result("watch") | {"adminAccess": True}

    answer = await sharing.world.prepared(watch := sharing.claim("watch", results=[result]))

    assert [device.device for device in answer.devices] == ["gpu-0-shared"]
    [device] = await sharing.status_of(watch)
    assert device["data"]["admin"] is True
    assert (await sharing.world.unprepare(watch))[watch.uid] == ""
    assert sharing.truth(sharing.client(running[0])).sms == SMS // 2


async def test_first_available_takes_a_whole_gpu_while_there_is_one_and_a_share_afterwards(make_sharing):
    sharing = await make_sharing(gpus=2)
    [share] = pods.a_share(20, "10Gi")
    either = [
        {
            "name": "any",
            "firstAvailable": [
                {"name": "whole", "deviceClassName": "gpu.nvidia.com"},
                {"name": "part", **share["exactly"]},
            ],
        }
    ]
    busy = await sharing.pod("busy")

    taken = [await sharing.pod(f"job-{number}", requests=either) for number in range(2)]

    assert [device.device for pod in (busy, *taken) for device in pod.devices] == [
        "gpu-0-shared",
        "gpu-1",
        "gpu-0-shared",
    ]
    assert sharing.truth(sharing.client(taken[0])).sms == SMS
    assert sharing.truth(sharing.client(taken[1])).sms == OF_20_PERCENT


@pytest.mark.case("C94")
async def test_of_13_shares_of_1900_mebibytes_exactly_12_fit_on_24564(make_sharing):
    sharing = await make_sharing("P-plain2")
    running = [await sharing.pod(f"job-{number}", 1, "1900Mi") for number in range(12)]

    with pytest.raises(UnschedulableError):
        await sharing.pod("too-many", 1, "1900Mi")

    assert sum(limit.hard for limit in sharing.node.snapshot().limits) == 12 * 1900 * 2**20
    await sharing.end(running[0])
    await sharing.pod("now-it-fits", 1, "1900Mi")


@pytest.mark.case("C94")
async def test_a_hundred_shares_one_after_another_leave_no_trace(make_sharing):
    sharing = await make_sharing("P-plain2")
    stays = await sharing.pod("stays", 1, "1900Mi")
    [before] = sharing.node.snapshot().limits
    files = sharing.service_files()

    sharing.cluster.paths.make_pod_cgroup("p-1")

    for number in range(100):
        share = sharing.result(f"share-{number}", 99, "22664Mi")
        await sharing.world.prepared(job := sharing.claim(f"job-{number}", results=[share], pod_uid="p-1"))
        assert (await sharing.world.unprepare(job))[job.uid] == ""
        sharing.cluster.remove_claim(job)

    assert sharing.node.snapshot().limits == (before,)
    assert sharing.service_files() == files
    await sharing.end(await sharing.pod("all-that-is-free", 99, "22664Mi"), stays)
    assert sharing.left() == {}


@pytest.mark.case("C97")
async def test_one_daemon_serves_all_shares_of_a_gpu_and_goes_with_the_last(sharing):
    pods_of_gpu = [await sharing.pod(f"job-{number}") for number in range(2)]
    [daemon] = sharing.daemon_pids()
    client = sharing.client(pods_of_gpu[1])

    await sharing.end(pods_of_gpu[0])

    assert sharing.daemon_pids() == [daemon]
    assert client.command("alloc 1G").startswith("ok")
    await sharing.end(pods_of_gpu[1])
    assert sharing.daemon_pids() == []
