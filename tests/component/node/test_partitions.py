"""Partitions through the shipped process: what a claim makes of a GPU, what its container sees, and what stays."""

import asyncio

import pytest

from tests.component.node.node_under_fire import SOON_REFUSED, records, until
from tests.component.node.partitions import (
    DESTROY,
    DESTROY_COMPUTE,
    DEVICES,
    MAKE,
    MAKE_COMPUTE,
    SET_MODE,
    VIEWS,
    Partitions,
    half,
    small,
)

IN_USE, INSUFFICIENT = 19, 23


@pytest.fixture
async def partitions(make_world, tmp_path) -> Partitions:
    """One H100, of which every view but the shared ones is published.

    Of the machine's processes those alone are seen that a test shows: others hold nodes of the same number open.
    """
    world = await make_world(gpus=1)
    await world.start(VIEWS, f"--proc-root={tmp_path}", devices=DEVICES)
    return Partitions(world, tmp_path)


async def test_a_claim_gets_its_partition_at_exactly_its_place_and_leaves_the_gpu_as_it_was(partitions):
    pod = await partitions.pod("job", half(4))
    assert partitions.lying() == [("3g.40gb", 4, 1)]
    assert partitions.mode()

    await partitions.end(pod)

    assert partitions.left() == {}


@pytest.mark.case("C44")
async def test_a_container_sees_its_partition_and_no_other(partitions):
    pods = [await partitions.pod(f"job-{start}", small(start)) for start in (1, 5)]

    for pod, start in zip(pods, (1, 5), strict=True):
        listed = await pod.nvidia_smi()
        assert listed.count("MIG 1g.10gb") == 1
        assert partitions.uuid(start) in listed
        capabilities = {path for path in pod.container.nodes.values() if "nvidia-cap" in path}
        assert len(capabilities) == 2
        assert not capabilities & {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"}
        with pod.client() as program:
            assert program.attached.startswith(f"attached gpu={partitions.uuid(start)}")
            assert program.command("alloc 9G").startswith("ok")
            assert "OUT_OF_MEMORY" in program.command("alloc 2G")


@pytest.mark.case("C46")
async def test_two_partitions_in_one_container_are_both_seen(partitions):
    pod = await partitions.pod("job", small(0), half(4))

    listed = await pod.nvidia_smi()

    assert pod.container.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {partitions.uuid(0) in listed, partitions.uuid(4) in listed} == {True}


async def test_the_mode_stays_until_the_last_partition_of_a_gpu_is_given_back(partitions):
    first, last = await partitions.pod("first", small(0)), await partitions.pod("last", small(1))
    assert partitions.calls(SET_MODE) == [SET_MODE]

    await partitions.end(first)
    assert partitions.mode()
    assert partitions.lying() == [("1g.10gb", 1, 1)]

    await partitions.end(last)
    assert partitions.left() == {}


async def test_preparing_a_claim_again_asks_the_gpu_for_nothing(partitions):
    pod = await partitions.pod("job", small(0))
    partitions.node.forget_calls()

    await partitions.world.prepared(pod.claim)

    assert [call.name for call in partitions.node.calls() if "Mig" in call.name or "Instance" in call.name] == []


async def test_claims_on_all_places_at_once_each_get_their_own(partitions):
    claims = [partitions.world.claim(f"job-{start}", small(start)) for start in range(7)]

    answers = await asyncio.gather(*(partitions.world.prepare(claim) for claim in claims))

    assert [answer[claim.uid].error for answer, claim in zip(answers, claims, strict=True)] == [""] * 7
    assert partitions.lying() == [("1g.10gb", start, 1) for start in range(7)]
    assert len(partitions.calls(SET_MODE)) == 1
    errors = await asyncio.gather(*(partitions.world.unprepare(claim) for claim in claims))
    assert [list(error.values()) for error in errors] == [[""]] * 7
    assert partitions.left() == {}


async def test_a_claim_on_a_place_that_another_has_waits_for_it(partitions):
    first = await partitions.pod("first", small(2))
    second = asyncio.create_task(partitions.world.prepare(claim := partitions.world.claim("second", half(0))))
    await partitions.cluster.api.log.wait_for(lambda log: any(read.name == "second" for read in log.since(verb="get")))

    await partitions.end(first)

    assert (await second)[claim.uid].error == ""
    assert partitions.lying() == [("3g.40gb", 0, 1)]


async def test_a_claim_on_a_place_that_another_keeps_is_refused_with_its_name(partitions):
    await partitions.pod("keeper", small(2))
    for device in (half(0), "gpu-0"):
        claim = partitions.world.claim(f"second-{device}", device)

        answer = (await partitions.world.prepare(claim, within=SOON_REFUSED))[claim.uid]

        assert "default/keeper" in answer.error

    assert partitions.lying() == [("1g.10gb", 2, 1)]


async def test_a_claim_is_given_its_partition_while_another_gpu_hangs(make_world):
    world = await make_world(gpus=2)
    await world.start(VIEWS, devices=2 * DEVICES)
    partitions = Partitions(world)
    await world.prepared(gone := world.claim("gone", small(3, gpu=1)))
    stuck = world.node.inject(MAKE, gpu=0, block=True)
    slow = asyncio.create_task(world.prepare(claim := world.claim("slow", small(0))))
    await world.until_hardware_is_called()

    assert (await world.unprepare(gone))[gone.uid] == ""
    await partitions.pod("quick", small(0, gpu=1))

    assert not slow.done()
    world.node.clear(serial=stuck)
    assert (await slow)[claim.uid].error == ""


async def test_a_whole_gpu_that_was_left_in_mig_mode_is_taken_out_of_it_first(partitions):
    pod = await partitions.pod("job", small(0))
    with partitions.monitor():
        await partitions.end(pod)
        assert partitions.mode()
        claim = partitions.world.claim("whole", "gpu-0")

        refusal = (await partitions.world.prepare(claim, within=SOON_REFUSED))[claim.uid].error

        assert f"pid {partitions.monitor_pid} (" in refusal
        partitions.node.forget_calls()
        waiting = asyncio.create_task(partitions.world.prepare(claim))
        await partitions.world.until(lambda: len(partitions.calls(SET_MODE)) > 3)
        assert not waiting.done()

    assert (await waiting)[claim.uid].error == ""
    assert not partitions.mode()
    assert (await partitions.world.unprepare(claim))[claim.uid] == ""
    assert partitions.left() == {}


@pytest.mark.case("C74")
async def test_a_compute_instance_that_fails_once_costs_the_claim_nothing(partitions):
    partitions.node.inject(MAKE_COMPUTE, code=INSUFFICIENT, count=1)

    await partitions.pod("job", small(0))

    assert partitions.lying() == [("1g.10gb", 0, 1)]


@pytest.mark.case("C74")
async def test_a_compute_instance_that_keeps_failing_leaves_nothing_and_a_later_prepare_is_right(partitions):
    partitions.node.inject(MAKE_COMPUTE, code=INSUFFICIENT)
    claim = partitions.world.claim("job", small(0))

    refusal = (await partitions.world.prepare(claim, within=SOON_REFUSED))[claim.uid].error

    assert "1g.10gb at 0" in refusal
    assert partitions.lying() == []
    partitions.node.clear()
    await partitions.world.prepared(claim)
    assert partitions.lying() == [("1g.10gb", 0, 1)]
    assert (await partitions.world.unprepare(claim))[claim.uid] == ""
    assert partitions.left() == {}


@pytest.mark.case("C79")
async def test_a_partition_in_use_is_kept_with_its_claim_until_it_is_let_go(partitions):
    pod = await partitions.pod("job", small(2))
    with pod.client() as program:
        assert program.attached.startswith("attached")
        partitions.show(program.pid)
        for _ in range(2):
            refusal = (await partitions.world.unprepare(pod.claim, within=SOON_REFUSED))[pod.claim.uid]
            assert f"pid {program.pid} (" in refusal
        next_one = partitions.world.claim("next", half(0))
        answer = (await partitions.world.prepare(next_one, within=SOON_REFUSED))[next_one.uid]
        assert "default/job" in answer.error
        assert list(records(partitions.world)) == [pod.claim.uid]

    assert (await partitions.world.unprepare(pod.claim))[pod.claim.uid] == ""
    assert partitions.left() == {}


@pytest.mark.case("C79")
async def test_a_partition_that_is_let_go_within_the_call_is_given_back_by_it(partitions):
    pod = await partitions.pod("job", small(0))
    partitions.node.inject(DESTROY, code=IN_USE)
    giving_back = asyncio.create_task(partitions.world.unprepare(pod.claim))
    await partitions.world.until_hardware_is_called()
    assert not giving_back.done()

    partitions.node.clear()

    assert (await giving_back)[pod.claim.uid] == ""
    assert partitions.left() == {}


@pytest.mark.case("C77")
async def test_a_claim_on_an_administrators_partition_that_is_half_prepared_ends_without_a_call_that_changes_mig(
    make_world,
):
    world = await make_world(gpus=1)
    partitions = Partitions(world)
    await partitions.made_by_hand()
    partitions.before = world.node.snapshot()
    await world.start(VIEWS)
    claim = world.claim("job", small(0))
    (world.cluster.paths.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json").mkdir()
    await world.refused(claim)
    await world.restart("--views=gpu,monitor")

    (world.cluster.paths.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json").rmdir()
    assert (await world.unprepare(claim))[claim.uid] == ""

    assert partitions.calls(SET_MODE, MAKE, MAKE_COMPUTE, DESTROY, DESTROY_COMPUTE) == []
    assert records(world) == {}
    assert partitions.lying() == [("1g.10gb", 0, 1)]


@pytest.mark.case("C73")
async def test_an_administrators_partition_is_used_and_stays(make_world):
    world = await make_world(gpus=1)
    partitions = Partitions(world)
    await partitions.made_by_hand(start=3)
    partitions.before = world.node.snapshot()
    await world.start(VIEWS)

    pod = await partitions.pod("job", small(3))
    with pod.client() as program:
        assert program.attached.startswith(f"attached gpu={partitions.uuid(3)}")
    other = await partitions.pod("other", small(5))
    await partitions.end(pod)
    await partitions.end(other)

    assert partitions.calls(SET_MODE) == []
    assert partitions.lying() == [("1g.10gb", 3, 1)]
    assert world.node.snapshot() == partitions.before


async def test_a_partition_that_somebody_destroyed_is_made_again_for_its_claim(partitions):
    pod = await partitions.pod("job", small(0))
    partitions.node.reboot()
    await partitions.world.restart(VIEWS)

    await until(lambda: partitions.lying() == [("1g.10gb", 0, 1)])

    await partitions.world.prepared(pod.claim)
    await partitions.end(pod)
    assert partitions.left() == {}


async def test_a_claim_writes_no_slice(make_world):
    """However often the GPUs are looked at meanwhile."""
    world = await make_world(gpus=1)
    await world.start(VIEWS, "--rescan-period=0.05", devices=DEVICES)
    partitions = Partitions(world)
    mark = world.api.log.count

    for start in range(3):
        pods = [await partitions.pod(f"job-{start}-{place}", small(place)) for place in (0, 4)]
        await looked(partitions)
        for pod in pods:
            await partitions.end(pod)
            await looked(partitions)

    assert world.api.log.writes_since(mark, resource="resourceslices") == []


async def looked(partitions) -> None:
    """Wait until the GPUs have been looked at twice, so that the second look has begun and ended after now."""
    seen = len(partitions.calls("nvmlDeviceGetCount_v2"))
    await partitions.world.until(lambda: len(partitions.calls("nvmlDeviceGetCount_v2")) > seen + 2)


async def test_fifty_rounds_of_churn_leave_the_node_as_it_was(make_world):
    world = await make_world(gpus=2)
    await world.start(VIEWS, devices=2 * DEVICES)
    partitions = Partitions(world)
    layouts = [
        [small(start) for start in range(7)],
        [half(0), half(4)],
        ["gpu-0"],
        [half(0), *(small(start) for start in range(4, 7))],
        [small(0), half(4), "gpu-1"],
    ]
    for number in range(50):
        claims = [world.claim(f"job-{number}-{place}", device) for place, device in enumerate(layouts[number % 5])]
        answers = await world.prepare(*claims)
        assert [answer.error for answer in answers.values()] == [""] * len(claims)
        errors = await world.unprepare(*claims)
        assert set(errors.values()) == {""}
        for claim in claims:
            world.cluster.remove_claim(claim)

    assert partitions.left() == {}
