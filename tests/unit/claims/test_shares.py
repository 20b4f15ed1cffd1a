"""Claims that share a GPU, from the call to MPS, the pod's memory limit and the CDI file, and back."""

import asyncio

import pytest

from dra_gpu.claims.outcome import Prepared, Refusal
from dra_gpu.claims.record import State
from dra_gpu.claims.shares import claim_share_name, share_name
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol, SharingAbility
from dra_gpu.mps.service import Limits, MpsError, MpsErrorKind
from dra_gpu.vendors.base import CgroupUnlimitedError, FailureKind
from tests.unit.claims.world import PATIENCE, Node, config, fault, ref, share, share_id, shared_config
from tests.unit.inventory.builders import GIB

SHARE = "gpu-0-shared"
MPS = config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}})


@pytest.fixture
async def node(tmp_path):
    async with Node(tmp_path).running() as node:
        yield node


def claim(node: Node, number: int, *, percent: int = 20, memory: str = "10Gi", pods=None, configs=()):
    """Add claim `number` with a share of GPU 0 for a pod whose cgroup exists."""
    pods = [f"pod{number}"] if pods is None else pods
    for pod in pods:
        node.vendor.cgroups[pod] = f"/kubepods/{pod}"
    allocated = share(SHARE, number, percent=percent, memory=memory)
    return node.api.add(ref(f"u{number}", f"job-{number}"), allocated, pods=pods, configs=configs)


def limit(node: Node, pod: str) -> int | None:
    return node.vendor.limits.get((node.uuid(SHARE), f"/kubepods/{pod}"))


def env(node: Node, uid: str) -> tuple[str, ...]:
    [device] = node.specs.read(uid).devices
    return device.container_edits.env


def assert_nothing_left(node: Node) -> None:
    assert node.mps.held == {}
    assert node.vendor.limits == {}
    assert node.specs.claim_uids() == frozenset()


async def test_a_share_is_on_mps_with_its_limits_and_the_pods_memory_is_limited(node):
    one = claim(node, 1)
    answer = await node.prepare(one)
    assert [device.share_id for device in answer.devices] == [share_id(1)]
    assert node.mps.held == {(node.uuid(SHARE), share_name(share_id(1))): Limits(20, 10 * GIB)}
    assert limit(node, "pod1") == 10 * GIB
    assert await node.unprepare(one) is None
    assert_nothing_left(node)


async def test_its_container_gets_the_shares_own_pipe_directory_and_the_gpu(node):
    await node.prepare(claim(node, 1))
    [device] = node.specs.read("u1").devices
    assert [node.path for node in device.container_edits.device_nodes] == ["/dev/nvidia0"]
    assert [mount.host_path for mount in device.container_edits.mounts] == [
        f"/run/dra-gpu/mps/{node.uuid(SHARE)}/pipe/{share_name(share_id(1))}"
    ]


@pytest.mark.parametrize("protocol", list(MpsProtocol))
async def test_limits_stand_in_the_environment_only_where_mps_takes_them_from_there(node, protocol):
    node.vendor.ability = SharingAbility(protocol)
    node.mps.protocol = protocol
    await node.prepare(claim(node, 1))
    assert ("PERCENT=20" in env(node, "u1")) is (protocol is MpsProtocol.CLASSIC)


async def test_a_daemon_that_limits_in_another_way_than_planned_is_refused(node):
    node.mps.protocol = MpsProtocol.CLASSIC
    answer = await node.prepare(claim(node, 1))
    assert "protocol `classic`" in answer.message
    assert_nothing_left(node)


@pytest.mark.case("C97")
async def test_five_claims_share_a_gpu_and_the_end_of_one_leaves_the_others(node):
    claims = [claim(node, number) for number in range(1, 6)]
    answers = await node.prepare(*claims)
    assert all(isinstance(answer, Prepared) for answer in answers.values())
    assert await node.unprepare(claims[0]) is None
    assert node.mps.names() == {share_name(share_id(number)) for number in range(2, 6)}


@pytest.mark.case("C94")
@pytest.mark.parametrize(
    ("size", "fit", "words"),
    [
        ({"percent": 20, "memory": "1Gi"}, 5, "20 % of its SMs are wanted, 0 % are free"),
        ({"percent": 1, "memory": "1900Mi"}, 43, "1900Mi of its memory are wanted, 220Mi are free"),
        ({"percent": 30, "memory": "1Gi"}, 3, "30 % of its SMs are wanted, 10 % are free"),
    ],
)
async def test_what_is_promised_of_a_gpu_never_exceeds_it(node, size, fit, words):
    answers = await node.prepare(*(claim(node, number, **size) for number in range(1, fit + 2)))
    refused = [answer for answer in answers.values() if isinstance(answer, Refusal)]
    [refusal] = refused
    assert refusal.retryable
    for word in ("ShareNotFree", SHARE, words, "the rest has claim team-a/job-"):
        assert word in refusal.message
    assert len(node.mps.held) == fit


@pytest.mark.case("C94")
async def test_what_was_given_back_is_free_to_the_last_byte_a_hundred_times(node):
    whole = claim(node, 1, percent=100, memory="80Gi")
    for _ in range(100):
        assert isinstance(await node.prepare(whole), Prepared)
        assert await node.unprepare(whole) is None


async def test_a_share_that_does_not_fit_is_waited_for_inside_the_call(tmp_path):
    async with Node(tmp_path, held_wait=PATIENCE).running() as node:
        first = claim(node, 1, percent=90)
        await node.prepare(first)
        waiting = asyncio.ensure_future(node.prepare(claim(node, 2, percent=20)))
        await asyncio.sleep(0)
        assert await node.unprepare(first) is None
        assert isinstance(await waiting, Prepared)


async def test_a_share_and_the_whole_gpu_exclude_each_other(node):
    await node.prepare(claim(node, 1))
    whole = node.api.add(ref("whole", "whole"), "gpu-0")
    assert "still held by claim team-a/job-1" in (await node.prepare(whole)).message
    await node.unprepare(ref("u1"))
    assert isinstance(await node.prepare(whole), Prepared)
    assert "still held by claim team-a/whole" in (await node.prepare(claim(node, 2))).message


async def test_mps_and_time_slices_are_not_mixed_on_one_gpu(node):
    await node.prepare(claim(node, 1))
    answer = await node.prepare(claim(node, 2, configs=[shared_config(strategy="TimeSlicing")]))
    assert "shared by MPS now, and TimeSlicing cannot be mixed" in answer.message


async def test_a_share_by_time_slices_needs_no_mps_service(node):
    node.mps.faults = [MpsError(MpsErrorKind.UNAVAILABLE, "nobody there")]
    node.vendor.ability = SharingAbility(None)
    assert isinstance(await node.prepare(claim(node, 1)), Prepared)
    assert node.mps.calls == []
    assert env(node, "u1") == ()


async def test_preparing_again_asks_no_api_server_and_gives_the_same_answer(node):
    one = claim(node, 1)
    first = await node.prepare(one)
    reads = node.api.reads
    assert await node.prepare(one) == first
    assert node.api.reads == reads


async def test_preparing_again_restores_a_lost_share_limit_and_file(node):
    one = claim(node, 1)
    await node.prepare(one)
    before = dict(node.mps.held), dict(node.vendor.limits), node.specs.read("u1")
    node.mps.held.clear()
    node.vendor.limits.clear()
    node.specs.remove("u1")
    await node.prepare(one)
    assert (dict(node.mps.held), dict(node.vendor.limits), node.specs.read("u1")) == before


async def test_a_service_with_another_directory_is_followed_by_the_file(node):
    one = claim(node, 1)
    await node.prepare(one)
    node.mps.directory = "/elsewhere"
    await node.prepare(one)
    [device] = node.specs.read("u1").devices
    assert device.container_edits.mounts[0].host_path.startswith("/elsewhere/")


async def test_the_next_instance_finds_the_shares_of_the_one_before(tmp_path):
    node = Node(tmp_path)
    async with node.running():
        await node.prepare(claim(node, 1))
        before = node.specs.read("u1")
    node.mps.calls.clear()
    async with node.running():
        await node.reconciler.recover()
        assert node.specs.read("u1") == before
    assert not [call for call in node.mps.calls if call.startswith(("share", "stop"))]


async def test_a_service_that_is_away_for_a_moment_is_waited_for(node):
    node.mps.faults = [MpsError(MpsErrorKind.UNAVAILABLE, "starting"), MpsError(MpsErrorKind.TRANSIENT, "busy")]
    assert isinstance(await node.prepare(claim(node, 1)), Prepared)


async def test_a_service_that_never_answers_is_named_and_nothing_stays(node):
    node.mps.faults = [MpsError(MpsErrorKind.UNAVAILABLE, "no answer from /run/mps.sock")] * 50
    answer = await node.prepare(claim(node, 1), within=0.3)
    assert answer.retryable
    assert "no answer from /run/mps.sock" in answer.message
    node.mps.faults.clear()
    assert await node.unprepare(ref("u1")) is None
    assert_nothing_left(node)


async def test_a_share_that_cannot_be_given_up_keeps_its_part_of_the_gpu(node):
    one = claim(node, 1, percent=60)
    await node.prepare(one)
    node.mps.faults = [MpsError(MpsErrorKind.BUSY, "a client hangs")] * 50
    assert "a client hangs" in (await node.unprepare(one, within=0.3)).message
    assert "still held" in (await node.prepare(node.api.add(ref("w", "w"), "gpu-0"), within=0.3)).message
    node.mps.faults.clear()
    assert await node.unprepare(one) is None
    assert_nothing_left(node)


async def test_when_the_memory_limit_fails_the_share_is_given_up(node, monkeypatch):
    async def refuse(_gpu, _cgroup, limit):
        if limit is not None:
            raise fault(text="NVML refuses the limit")

    monkeypatch.setattr(node.vendor, "set_memory_limit", refuse)
    answer = await node.prepare(claim(node, 1), within=0.3)
    assert "NVML refuses the limit" in answer.message
    assert node.mps.held == {}
    assert await node.journal.records() == []


async def limits_nothing(_gpu, cgroup, _limit):
    raise CgroupUnlimitedError(f"no dmem controller in {cgroup}")


async def test_where_the_driver_limits_no_cgroup_mps_limits_the_memory_and_the_claim_says_why(node, monkeypatch):
    monkeypatch.setattr(node.vendor, "set_memory_limit", limits_nothing)
    answers = await node.prepare(claim(node, 1), claim(node, 2))
    assert all(isinstance(answer, Prepared) for answer in answers.values())
    for record in await node.journal.records():
        [held] = record.shares
        assert held.memory is Mechanism.COOPERATIVE
        assert any("no dmem controller" in note for note in held.notes)
    assert await node.unprepare(ref("u1"), ref("u2")) == {"u1": None, "u2": None}
    assert_nothing_left(node)


async def test_where_the_driver_limits_no_cgroup_required_is_refused_and_nothing_stays(node, monkeypatch):
    monkeypatch.setattr(node.vendor, "set_memory_limit", limits_nothing)
    answer = await node.prepare(claim(node, 1, configs=[shared_config(enforcement="Required")]))
    assert "no dmem controller" in answer.message
    assert_nothing_left(node)


async def test_a_pod_with_shares_of_two_claims_may_use_the_sum(node):
    first, second = claim(node, 1, pods=["pod"]), claim(node, 2, memory="5Gi", pods=["pod"])
    await node.prepare(first, second)
    assert limit(node, "pod") == 15 * GIB
    await node.unprepare(first)
    assert limit(node, "pod") == 5 * GIB
    await node.unprepare(second)
    assert limit(node, "pod") is None


async def test_each_pod_of_a_claim_is_limited_and_one_that_joins_later_at_the_next_reconciliation(node):
    one = claim(node, 1, pods=["a", "b"])
    await node.prepare(one)
    assert (limit(node, "a"), limit(node, "b")) == (10 * GIB, 10 * GIB)
    claim(node, 1, pods=["a", "b", "c"])
    report = await node.reconciler.reconcile()
    assert report.failures == []
    assert limit(node, "c") == 10 * GIB
    await node.unprepare(one)
    assert_nothing_left(node)


async def test_a_pod_that_has_ended_keeps_no_claim_from_being_verified_or_given_back(node):
    one = claim(node, 1, pods=["a", "b"])
    await node.prepare(one)
    del node.vendor.cgroups["a"]
    assert isinstance(await node.prepare(one), Prepared)
    assert await node.unprepare(one) is None
    assert limit(node, "b") is None


async def test_a_whole_gpu_is_shared_by_mps_within_its_claim(node):
    one = node.api.add(ref(), "gpu-0", configs=[MPS])
    await node.prepare(one)
    assert node.mps.held == {(node.uuid("gpu-0"), claim_share_name("aaaa")): Limits(50)}
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/dra-gpu/mps" in env(node, "aaaa")
    assert await node.unprepare(one) is None
    assert_nothing_left(node)


async def test_a_watcher_of_a_share_neither_counts_nor_changes_anything(node):
    await node.prepare(claim(node, 1, percent=100))
    watcher = node.api.add(ref("w", "watch"), share(SHARE, 9, percent=100, admin=True))
    assert isinstance(await node.prepare(watcher), Prepared)
    assert env(node, "w") == ()
    assert len(node.mps.held) == 1


async def test_orphaned_shares_of_ours_are_given_up_and_everything_else_stays(node):
    await node.prepare(claim(node, 1), node.api.add(ref("whole", "whole"), "gpu-1", configs=[MPS]))
    ours = set(node.mps.held)
    gpu = node.uuid(SHARE)
    for name in (share_name(share_id(99)), claim_share_name("gone"), "default", "s_of_somebody"):
        node.mps.held[gpu, name] = Limits()
    report = await node.reconciler.reconcile()
    assert set(node.mps.held) == ours | {(gpu, "default"), (gpu, "s_of_somebody")}
    assert report.orphaned_shares == 2


async def test_an_mps_service_that_is_away_costs_reconciliation_its_look_at_orphans_alone(node):
    node.mps.faults = [MpsError(MpsErrorKind.UNAVAILABLE, "nobody there")]
    assert (await node.reconciler.reconcile()).failures == []


async def test_a_lost_journal_gives_up_no_share_that_a_container_uses(tmp_path):
    node = Node(tmp_path)
    async with node.running():
        await node.prepare(claim(node, 1), node.api.add(ref("whole", "whole"), "gpu-1", configs=[MPS]))
        held = dict(node.mps.held)
    for path in (tmp_path / "state").glob("journal.db*"):
        path.unlink()
    node.mps.attached = dict.fromkeys(held, (4711,))
    async with node.running():
        report = await node.reconciler.recover()
        assert (report.adopted, report.failures, node.mps.held) == (2, [], held)
        [record] = [found for found in await node.journal.records() if found.ref.uid == "u1"]
        assert (record.shares[0].percent, record.adopted) == (20, False)
        assert await node.unprepare(ref("u1"), ref("whole")) == {"u1": None, "whole": None}
        assert_nothing_left(node)


async def test_an_adopted_share_that_cannot_be_made_anew_goes_on_and_is_repaired(tmp_path, monkeypatch):
    node = Node(tmp_path)
    async with node.running():
        await node.prepare(one := claim(node, 1))
        held = dict(node.mps.held)
    for path in (tmp_path / "state").glob("journal.db*"):
        path.unlink()
    async with node.running():
        with monkeypatch.context() as broken:

            async def refuse(_gpu, _cgroup, _limit):
                raise fault(FailureKind.REFUSED, "NVML refuses the limit")

            broken.setattr(node.vendor, "set_memory_limit", refuse)
            report = await node.reconciler.recover()
            assert len(report.failures) == 1
        assert (node.mps.held, node.specs.claim_uids()) == (held, {"u1"})
        [record] = await node.journal.records()
        assert (record.state, record.shares[0].percent) == (State.PREPARED, 20)
        node.vendor.limits.clear()
        assert isinstance(await node.prepare(one), Prepared)
        assert limit(node, "pod1") == 10 * GIB


async def test_an_adopted_share_is_given_up_without_the_api_server(tmp_path):
    node = Node(tmp_path)
    async with node.running():
        await node.prepare(claim(node, 1))
    for path in (tmp_path / "state").glob("journal.db*"):
        path.unlink()
    async with node.running():
        await node.reconciler.adopt()
        assert await node.unprepare(ref("u1")) is None
        assert node.mps.held == {}


async def test_after_a_reboot_a_share_is_made_anew(tmp_path):
    node = Node(tmp_path)
    async with node.running():
        await node.prepare(claim(node, 1, percent=60))
    node.mps.held.clear()
    node.vendor.limits.clear()
    node.specs.remove("u1")
    node.boot = "boot-2"
    async with node.running():
        assert isinstance(await node.prepare(claim(node, 2, percent=40)), Prepared)
        assert (await node.reconciler.recover()).failures == []
        assert node.mps.names() == {share_name(share_id(1)), share_name(share_id(2))}


async def test_what_is_prepared_is_told_after_the_answer_and_again_by_reconciliation(node):
    await node.prepare(claim(node, 1))
    await asyncio.sleep(0)
    [told] = node.told
    assert (told.ref.uid, told.state) == ("u1", State.PREPARED)
    await node.reconciler.reconcile()
    await asyncio.sleep(0)
    assert [found.ref.uid for found in node.told] == ["u1", "u1"]


async def test_a_node_without_the_mps_service_says_so(tmp_path):
    node = Node(tmp_path)
    node.mps = None
    async with node.running():
        answer = await node.prepare(claim(node, 1, configs=[shared_config(strategy="MPS")]))
        assert "`dra-gpu mps`" in answer.message
        assert isinstance(await node.prepare(claim(node, 2)), Prepared)
