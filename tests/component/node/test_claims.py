"""What the kubelet's calls do to a node, through the shipped process."""

import asyncio
import json
import signal

import pytest

from dra_gpu_sim.local import containers
from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.kubelet import Claim
from tests.component.node.conftest import opaque
from tests.component.node.node_under_fire import PATIENCE, SOON_REFUSED

LONG = 3
NVML_UNKNOWN = 999
SET_TIME_SLICE = "nvidia-smi compute-policy"


def visible_gpus(world, answer):
    """The GPUs whose nodes a container with this answer gets."""
    ids = [one for device in answer.devices for one in device.cdi_ids]
    container = containers.with_devices(world.cluster.paths.cdi, ids)
    return sorted(path for path in container.nodes.values() if path[len("/dev/nvidia") :].isdigit())


async def test_a_claim_gets_the_node_of_its_gpu_and_of_no_other(world):
    answer = await world.prepared(world.claim("job", "gpu-3"))

    assert visible_gpus(world, answer) == ["/dev/nvidia3"]


async def test_an_answer_names_the_request_the_pool_and_the_device(world):
    [device] = (await world.prepared(world.claim("job", "gpu-3"))).devices

    assert (device.request_names, device.pool, device.device) == (("r0",), "node-0", "gpu-3")


@pytest.mark.case("C16")
async def test_each_request_of_a_claim_has_its_own_device(world):
    answer = await world.prepared(world.claim("job", "gpu-0", "gpu-1"))

    by_request = {device.request_names: device.device for device in answer.devices}
    assert by_request == {("r0",): "gpu-0", ("r1",): "gpu-1"}


@pytest.mark.case("C07")
async def test_devices_of_other_drivers_are_none_of_our_business(world):
    ours = {"request": "gpu", "driver": DRIVER, "pool": "node-0", "device": "gpu-1"}
    others = [
        {"request": "cpu", "driver": "cpu.other.test", "pool": "node-0", "device": "gpu-0"},
        {"request": "nic", "driver": "nic.other.test", "pool": "node-0", "device": "eth3"},
    ]
    claim = world.cluster.add_claim("job", results=[*others, ours])

    answer = await world.prepared(claim)

    assert [device.device for device in answer.devices] == ["gpu-1"]
    assert (await world.unprepare(claim))[claim.uid] == ""


@pytest.mark.case("C08")
async def test_one_bad_claim_of_a_batch_costs_only_itself(world):
    good = world.claim("good", "gpu-0")
    unknown = world.claim("unknown", "gpu-99")
    again = world.claim("again", "gpu-1")
    bad = world.claim("bad", "gpu-2", config=[opaque({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "Foo"})])
    await world.prepared(again)

    answers = await world.prepare(good, unknown, again, bad)

    assert {uid: bool(answer.devices) for uid, answer in answers.items()} == {
        good.uid: True,
        unknown.uid: False,
        again.uid: True,
        bad.uid: False,
    }
    assert "gpu-99" in answers[unknown.uid].error
    assert "default/bad" in answers[bad.uid].error
    assert "Foo" in answers[bad.uid].error


async def test_a_claim_that_does_not_exist_is_refused_by_name(world):
    reason = await world.refused(Claim("default", "absent", "11111111-1111-1111-1111-111111111111"))

    assert "default/absent" in reason


@pytest.mark.case("C04")
async def test_a_claim_of_the_same_name_and_another_uid_is_another_claim(world):
    old = world.claim("shared", "gpu-0")
    await world.prepared(old)
    world.cluster.remove_claim(old)
    new = world.claim("shared", "gpu-1")

    await world.prepared(new)
    assert (await world.unprepare(old))[old.uid] == ""

    assert [new.uid in name for name in world.cdi_files] == [True]


@pytest.mark.case("C05")
async def test_a_gpu_that_another_claim_still_holds_is_waited_for_inside_the_call(world):
    first, second = world.claim("first", "gpu-0"), world.claim("second", "gpu-0")
    await world.prepared(first)

    waiting = asyncio.create_task(world.prepare(second))
    await world.api.log.wait_for(lambda log: any(read.name == "second" for read in log.since(verb="get")))
    assert not waiting.done()
    await world.unprepare(first)

    answer = (await waiting)[second.uid]
    assert [device.device for device in answer.devices] == ["gpu-0"]


@pytest.mark.case("C05")
async def test_a_gpu_that_stays_held_is_refused_with_the_name_of_its_holder(world):
    first, second = world.claim("first", "gpu-0"), world.claim("second", "gpu-0")
    await world.prepared(first)

    answer = (await world.prepare(second, within=SOON_REFUSED))[second.uid]

    assert "gpu-0" in answer.error
    assert f"default/first ({first.uid})" in answer.error


async def test_a_time_slice_is_set_on_the_gpu_of_the_claim_alone_and_taken_back(world):
    claim = world.claim("job", "gpu-2", interval="Long")

    await world.prepared(claim)
    assert world.time_slices() == [0, 0, LONG, 0, 0, 0, 0, 0]
    await world.unprepare(claim)

    assert world.time_slices() == [0] * 8


async def test_a_claim_without_sharing_makes_no_call_that_changes_the_gpu(world):
    await world.prepared(world.claim("job", "gpu-2"))

    assert [call.name for call in world.node.calls("*smi*")] == []
    assert [call.name for call in world.node.calls("nvml*Set*") if "EventSet" not in call.name] == []


@pytest.mark.case("C14")
async def test_when_the_third_gpu_fails_the_first_two_are_as_before_and_free(world):
    world.node.inject(f"{SET_TIME_SLICE}*", gpu=2, code=NVML_UNKNOWN)
    claim = world.claim("job", "gpu-0", "gpu-1", "gpu-2", interval="Long")
    other = world.claim("other", "gpu-0")

    failed = (await world.prepare(claim, within=SOON_REFUSED))[claim.uid]
    assert world.node.uuids[2] in failed.error
    assert world.time_slices() == [0] * 8
    assert world.cdi_files == []
    await world.prepared(other)

    await world.unprepare(other)
    world.node.clear()
    await world.prepared(claim)


@pytest.mark.case("C13")
async def test_a_slow_claim_delays_no_other(world):
    await world.prepared(ready := world.claim("ready", "gpu-5"))
    world.node.inject(f"{SET_TIME_SLICE}*", gpu=0, block=True)
    slow = asyncio.create_task(world.prepare(world.claim("slow", "gpu-0", interval="Short")))
    await world.until_hardware_is_called()

    assert (await world.unprepare(ready))[ready.uid] == ""
    await world.prepared(world.claim("quick", "gpu-6"))

    assert not slow.done()
    world.node.clear()
    await slow


@pytest.mark.case("C10")
async def test_a_claim_is_given_back_while_the_api_server_is_away(world):
    claim = world.claim("job", "gpu-0", interval="Long")
    await world.prepared(claim)
    world.api.refuse()
    world.api.cut_connections()

    assert (await world.unprepare(claim))[claim.uid] == ""

    assert world.time_slices() == [0] * 8
    assert world.cdi_files == []


@pytest.mark.case("C11")
async def test_giving_back_what_was_never_had_is_a_success_and_writes_nothing(world):
    unknown = [Claim("default", f"c{number}", f"{number:08d}-0000-0000-0000-000000000000") for number in range(1000)]
    journal = world.cluster.paths.state / "journal.db-wal"
    before = journal.stat().st_size if journal.exists() else 0

    errors = await world.unprepare(*unknown)

    assert set(errors.values()) == {""}
    assert await world.unprepare() == {}
    assert (journal.stat().st_size if journal.exists() else 0) == before


async def test_preparing_again_answers_the_same_without_asking_the_api_server(world):
    claim = world.claim("job", "gpu-0")
    first = await world.prepared(claim)
    mark = world.api.log.count

    again = await world.prepared(claim)

    assert again == first
    assert world.api.log.since(mark, resource="resourceclaims") == []


@pytest.mark.case("C23")
async def test_preparing_again_writes_a_lost_cdi_file_anew(world):
    claim = world.claim("job", "gpu-0")
    first = await world.prepared(claim)
    for name in world.cdi_files:
        (world.cluster.paths.cdi / name).unlink()

    await world.prepared(claim)

    assert visible_gpus(world, first) == ["/dev/nvidia0"]


@pytest.mark.case("C01")
async def test_a_claim_that_could_not_be_finished_leaves_nothing_behind(world):
    # Its start looks into the directory too; a plugin that finds it broken there ends.
    await world.until(lambda: '"event": "reconciled"' in world.plugin.read_log())
    world.cluster.paths.cdi.rmdir()
    world.cluster.paths.cdi.write_text("a file stands where the directory should be")
    claim = world.claim("job", "gpu-0", interval="Long")

    failed = (await world.prepare(claim, within=SOON_REFUSED))[claim.uid]
    assert str(world.cluster.paths.cdi) in failed.error
    assert (await world.unprepare(claim))[claim.uid] == ""
    assert world.time_slices() == [0] * 8

    world.cluster.paths.cdi.unlink()
    world.cluster.paths.cdi.mkdir()
    await world.prepared(world.claim("next", "gpu-0"))


@pytest.mark.case("C37")
async def test_a_missing_device_node_is_named_and_nothing_incomplete_is_kept(make_world):
    world = await make_world(gpus=2)
    await world.start("--rescan-period=0.5", devices=4)
    node = world.node.dev_root / "nvidia0"
    node.rename(hidden := world.node.dev_root / "hidden")
    claim = world.claim("job", "gpu-0")

    failed = (await world.prepare(claim, within=SOON_REFUSED))[claim.uid]
    # Before the next look at the GPUs the node is missing, afterwards the GPU: NVML does not list one without it.
    assert "nvidia0" in failed.error or "the GPU of device gpu-0 of request 'r0' cannot be used" in failed.error
    assert world.cdi_files == []

    hidden.rename(node)
    async with asyncio.timeout(PATIENCE):
        while (await world.prepare(claim))[claim.uid].error:
            await asyncio.sleep(0.1)  # until a look has found it again
    assert world.cdi_files != []


async def test_a_monitor_is_for_admin_access_and_does_not_stand_in_the_way(world):
    await world.prepared(world.claim("job", "gpu-0"))
    result = {"request": "m", "driver": DRIVER, "pool": "node-0", "device": "gpu-0-monitor"}

    watching = await world.prepared(world.cluster.add_claim("watch", results=[{**result, "adminAccess": True}]))
    reason = await world.refused(world.cluster.add_claim("sneak", results=[result]))

    assert visible_gpus(world, watching) == ["/dev/nvidia0"]
    assert "adminAccess" in reason


async def test_two_calls_for_one_claim_at_once_get_the_same_answer(world):
    claim = world.claim("job", "gpu-0", interval="Short")

    first, second = await asyncio.gather(world.prepare(claim), world.prepare(claim))

    assert first == second
    assert first[claim.uid].devices


@pytest.mark.parametrize(
    "parameters",
    [
        {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "Magic"}},
        {"apiVersion": "v9", "kind": "GpuConfig"},
        {"kind": "../../etc/passwd"},
        "not an object",
        {"a": "x" * 9000},
    ],
)
async def test_a_wrong_config_is_refused_and_the_process_goes_on(world, parameters):
    reason = await world.refused(world.claim("bad", "gpu-0", config=[opaque(parameters)]))

    assert "default/bad" in reason
    await world.prepared(world.claim("good", "gpu-0"))


@pytest.mark.case("C31")
async def test_a_process_asked_to_stop_finishes_the_running_call_first(world):
    world.node.inject(f"{SET_TIME_SLICE}*", gpu=0, delay_ms=1_500)
    claim = world.claim("job", "gpu-0", interval="Long")
    running = asyncio.create_task(world.prepare(claim))
    await world.until_hardware_is_called()

    world.plugin.process.send_signal(signal.SIGTERM)
    answer = (await running)[claim.uid]

    assert answer.error == ""
    assert await world.plugin.stop() == 0
    assert world.time_slices()[0] == LONG


async def test_what_stands_in_the_log_is_one_json_object_a_line(world):
    await world.plugin.stop()

    lines = world.plugin.read_log().splitlines()

    assert lines
    assert all("event" in json.loads(line) for line in lines)
