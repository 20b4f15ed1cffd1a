"""Sick GPUs through the shipped process: who hears of them, and when they are offered again."""

import asyncio
import re

import pytest

from dra_gpu_sim.local import plugin
from tests.component.node.partitions import DEVICES as OF_PARTITIONED
from tests.component.node.partitions import VIEWS as PARTITIONED
from tests.component.node.partitions import Partitions, half, small
from tests.component.node.sickness import DEVICES, VIEWS, Sickness


def generation(world):
    (found,) = {item["spec"]["pool"]["generation"] for item in world.cluster.slices()}
    return found


def order(world):
    return [device["name"] for item in world.cluster.slices() for device in item["spec"].get("devices", ())]


@pytest.fixture
async def make_sick(make_world, tmp_path):
    """Make nodes whose plugin watches; of the machine's processes nobody is seen: other tests hold their nodes open."""

    async def make(*more, gpus=2, devices=None, views=None):
        sickness = Sickness(await make_world(gpus=gpus))
        chosen = {} if views is None else {"views": views}
        return await sickness.start(f"--proc-root={tmp_path}", *more, devices=devices or DEVICES * gpus, **chosen)

    return make


@pytest.mark.case("C101")
async def test_a_fatal_xid_is_told_everywhere_stays_over_harmless_ones_and_over_a_restart_and_ends_with_a_reset(
    make_sick, tmp_path
):
    sick = await make_sick()
    world = sick.world
    ours, other = world.claim("ours", "gpu-0"), world.claim("other", "gpu-1")
    await world.prepare(ours, other)
    await sick.until_healthy(ours, gpu_0="True")
    devices, before = order(world), generation(world)

    # It is told: on every view but the one for watching, and to those who hold it.
    sick.node.xid(0, 95, recovery_action=0)
    await sick.until_tainted("gpu-0", "gpu-0-shared", by=["xid"])
    assert sick.taints()["gpu-0"] == {"xid": ("95", "NoSchedule")}
    await sick.until_told("GpuUnhealthy", ("Node", world.cluster.node_name))
    await sick.until_told("DeviceUnhealthy", ("ResourceClaim", "ours"))
    assert "XID 95 (Uncontained memory error): reset the GPU" in sick.told("DeviceUnhealthy")[0][2]
    await sick.until_healthy(ours, gpu_0="False")
    await sick.until_healthy(other, gpu_1="True")
    assert (order(world), generation(world)) == (devices, before), "in place: no running allocation is touched"

    # Harmless ones have a key of their own; the fatal one again changes nothing.
    since = sick.times()
    for number in (43, 95, 31):
        sick.node.xid(0, number, recovery_action=0)
    await sick.until_tainted("gpu-0", "gpu-0-shared", by=["xid", "xid-notice"])
    assert sick.taints()["gpu-0"] == {"xid": ("95", "NoSchedule"), "xid-notice": ("31", "None")}
    assert since <= sick.times()

    # A power cut of the plugin forgets nothing.
    taints, since, mark = sick.taints(), sick.times(), world.api.log.count
    await sick.restart(f"--proc-root={tmp_path}")
    await world.api.log.wait_for(lambda log: log.since(mark, verb="watch", resource="resourceslices"))
    await world.until(lambda: "this instance publishes" in world.plugin.read_log())
    sick.node.xid(1, 95, recovery_action=0)
    await sick.until_taints(lambda found: "gpu-1" in found)
    assert {name: of for name, of in sick.taints().items() if not name.startswith("gpu-1")} == taints
    assert since <= sick.times()

    # After a reset it is offered again, at once and alone.
    await world.unprepare(ours)
    await sick.reset(0)
    await sick.until_taints(lambda found: {"gpu-1", "gpu-1-shared"} == set(found))
    assert order(world) == devices


@pytest.mark.case("C103")
async def test_an_xid_of_a_mig_instance_taints_that_partition_one_of_the_gpu_all_and_one_of_nobody_nothing(make_sick):
    sick = await make_sick(gpus=1, devices=OF_PARTITIONED, views=PARTITIONED)
    partitions = Partitions(sick.world)
    first, second = await partitions.pod("first", small(0)), await partitions.pod("second", half(4))
    instances = {one.start: one.id for one in sick.node.gpus[0].instances}
    gone = max(instances.values()) + 5

    sick.node.xid(0, 95, gi=gone, ci=0, recovery_action=0)
    sick.node.xid(0, 95, gi=instances[0], ci=0, recovery_action=0)

    await sick.until_tainted(small(0), by=["xid"])
    await sick.until_told("DeviceUnhealthy", ("ResourceClaim", "first"))
    await sick.until_healthy(first.claim, **{small(0): "False"})
    assert sick.healthy(second.claim) == {half(4): "True"}
    assert "errors of MIG instances that are gone" in sick.world.plugin.read_log()

    # The next instance at that place is another one.
    await partitions.end(first)
    await sick.until_tainted(by=[])
    await partitions.pod("third", small(0))
    assert sick.taints() == {}

    sick.node.xid(0, 95, recovery_action=0)
    everything = [name for name in order(sick.world) if not name.endswith("-monitor")]
    await sick.until_tainted(*everything, by=["xid"])


@pytest.mark.case("C100")
async def test_a_lost_gpu_is_tainted_and_evicts_as_the_operator_chose_and_what_happens_to_others_is_still_heard(
    make_sick,
):
    sick = await make_sick("--health-evict=lost")
    held = sick.world.claim("held", "gpu-0")
    await sick.world.prepared(held)

    sick.node.forget_calls()
    sick.node.lose_gpu(0, xid=79)

    await sick.until_taints(lambda found: found.get("gpu-0", {}).keys() >= {"xid", "gpu-lost"})
    assert set(sick.taints()["gpu-0"].values()) >= {("79", "NoExecute"), ("", "NoExecute")}
    assert "gpu-0-monitor" not in sick.taints()
    await sick.world.until(lambda: sick.node.calls("nvmlDeviceRegisterEvents", gpu=1))
    sick.node.xid(1, 94, recovery_action=0)
    await sick.until_taints(lambda found: "gpu-1" in found)
    assert sick.taints()["gpu-1"] == {"xid-notice": ("94", "None")}
    await sick.until_healthy(held, gpu_0="False")

    sick.node.return_gpu(0)
    await sick.until_taints(lambda found: "gpu-0" not in found)
    await sick.until_healthy(held, gpu_0="True")
    lines = [line for line in sick.world.plugin.read_log().splitlines() if re.search("warning|error", line)]
    assert len(lines) < 20, "however often every wait said so"


async def test_what_happens_while_the_api_server_is_away_is_told_when_it_is_back_although_the_plugin_was_killed(
    make_sick, tmp_path
):
    sick = await make_sick(gpus=1)
    world = sick.world
    kept = world.cluster.paths.state / "health.json"
    world.api.refuse()

    sick.node.xid(0, 95, recovery_action=0)
    await world.until(lambda: kept.exists() and b"XID 95" in kept.read_bytes())
    await world.restart(VIEWS, f"--proc-root={tmp_path}")
    assert sick.taints() == {}
    await world.api.reopen()

    await sick.until_tainted("gpu-0", "gpu-0-shared", by=["xid"])


@pytest.mark.case("C104")
async def test_xids_that_the_operator_ignores_never_taint_and_one_that_he_calls_fatal_does(make_sick):
    sick = await make_sick("--ignore-xids= 13, 31 ,,", "--xid-policy=94=fatal", gpus=1)

    for number in (13, 31, 94):
        sick.node.xid(0, number, recovery_action=0)

    await sick.until_tainted("gpu-0", "gpu-0-shared", by=["xid"])
    assert sick.taints()["gpu-0"] == {"xid": ("94", "NoSchedule")}
    # Whoever tolerates the taint gets the GPU all the same: that is the scheduler's affair.
    await sick.world.prepared(sick.world.claim("tolerant", "gpu-0"))


@pytest.mark.case("C104")
async def test_a_list_of_xids_that_means_nothing_is_an_error_at_start_that_names_the_item(make_world):
    cluster = (await make_world(gpus=1)).cluster
    arguments = plugin.arguments(
        cluster.node, cluster.paths, node_name=cluster.node_name, kubeconfig=cluster.kubeconfig
    )
    process = plugin.PluginProcess(cluster.root / "refused.log")

    await process.start([*arguments, "--ignore-xids", " 13, 31 ,,abc,99999999999 "])

    async with asyncio.timeout(60):
        assert await process.process.wait() == 2
    assert "'abc'" in process.read_log()


async def test_without_a_reset_a_gpu_is_offered_again_after_the_hold_off_and_at_once_when_a_person_says_so(make_sick):
    sick = await make_sick("--health-hold-off=3600")
    sick.node.xid(0, 95, recovery_action=0)
    await sick.until_tainted("gpu-0", "gpu-0-shared", by=["xid"])

    sick.clear(sick.node.uuids[0], "GPU-that-is-not-there")
    await sick.until_tainted(by=[])
    await sick.until_told("GpuHealthy", ("Node", sick.world.cluster.node_name))
    # The request has been carried out: what happens now is none of it.
    sick.node.xid(0, 95, recovery_action=0)
    await sick.until_tainted("gpu-0", "gpu-0-shared", by=["xid"])
