"""The engine serves each claim of a call on its own, keyed by UID, and undoes what it cannot finish."""

import asyncio

import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.engine import Limits
from dra_gpu.claims.journal_errors import JournalFullError
from dra_gpu.claims.outcome import ClaimRef, Prepared, PreparedDevice, Refusal, RefusalKind
from dra_gpu.claims.ports import ClaimReadError
from dra_gpu.claims.record import State
from dra_gpu.vendors.base import FailureKind, NotReadyError
from tests.unit.claims.world import LONG, PATIENCE, Node, config, fault, ref, result

#: Calls are answered after what they are given, and their work may go on for long.
AT_ONCE = Limits(answer_margin=PATIENCE, work_margin=0.0)


@pytest.fixture
async def node(tmp_path):
    async with Node(tmp_path).running() as node:
        yield node


async def test_a_prepared_claim_is_answered_with_its_request_device_and_cdi_id(node):
    claim = node.api.add(ref(), result("gpu-1", "left/large"))
    answer = await node.prepare(claim)
    assert answer == Prepared((PreparedDevice(("left",), "node-a", "gpu-1", ("k8s.gpu.nvidia.com/claim=aaaa-gpu-1",)),))


async def test_a_prepared_claim_has_a_cdi_file_with_its_node_and_no_other(node):
    claim = node.api.add(ref(), "gpu-1")
    await node.prepare(claim)
    spec = node.specs.read("aaaa")
    assert [(device.name, [node.path for node in device.container_edits.device_nodes]) for device in spec.devices] == [
        ("aaaa-gpu-1", ["/dev/nvidia1"])
    ]
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec.container_edits.env


async def test_without_sharing_in_the_config_no_gpu_is_called(node):
    claim = node.api.add(ref(), "gpu-0", configs=[config()])
    await node.prepare(claim)
    await node.unprepare(claim)
    assert node.vendor.calls == []


async def test_preparing_again_gives_the_same_answer_without_asking_the_api_server(node):
    claim = node.api.add(ref(), "gpu-0")
    first = await node.prepare(claim)
    reads = node.api.reads
    assert await node.prepare(claim) == first
    assert node.api.reads == reads


@pytest.mark.case("C23")
async def test_preparing_again_writes_a_lost_cdi_file_anew(node):
    claim = node.api.add(ref(), "gpu-0")
    await node.prepare(claim)
    before = node.specs.read("aaaa")
    node.specs.remove("aaaa")
    assert isinstance(await node.prepare(claim), Prepared)
    assert node.specs.read("aaaa") == before


@pytest.mark.case("C23")
async def test_a_cdi_file_that_cannot_be_rewritten_is_not_called_prepared(node):
    claim = node.api.add(ref(), "gpu-0")
    await node.prepare(claim)
    node.specs.remove("aaaa")
    node.vendor.edit_fault = fault(FailureKind.REFUSED, "driver root /driver has no libcuda.so")
    answer = await node.prepare(claim)
    assert isinstance(answer, Refusal)
    assert "libcuda" in answer.message


async def test_preparing_again_restores_a_setting_that_was_changed_behind_our_back(node):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    await node.prepare(claim)
    node.vendor.slices[node.uuid("gpu-0")] = TimeSliceInterval.SHORT
    await node.prepare(claim)
    assert node.slice_of("gpu-0") is TimeSliceInterval.LONG


async def test_unprepare_restores_the_former_time_slice(node):
    node.vendor.slices[node.uuid("gpu-0")] = TimeSliceInterval.MEDIUM
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    await node.prepare(claim)
    assert await node.unprepare(claim) is None
    assert node.slice_of("gpu-0") is TimeSliceInterval.MEDIUM


@pytest.mark.case("C01")
async def test_a_failed_prepare_leaves_nothing_that_unprepare_does_not_erase(node, monkeypatch):
    claim = node.api.add(ref("u1"), "gpu-0")
    write = node.specs.write
    broken = OSError(5, "Input/output error")
    monkeypatch.setattr(node.specs, "write", lambda *_: (_ for _ in ()).throw(broken))
    for _ in range(20):
        answer = await node.prepare(claim)
        assert isinstance(answer, Refusal)
        assert "Input/output error" in answer.message
        assert await node.unprepare(claim) is None
    monkeypatch.setattr(node.specs, "write", write)
    assert await node.journal.records() == []
    other = node.api.add(ref("u2", "other"), "gpu-0")
    assert isinstance(await node.prepare(other), Prepared)


@pytest.mark.case("C01")
async def test_a_record_left_half_way_is_erased_by_unprepare(node):
    claim = node.api.add(ref("u1"), "gpu-0", configs=[config(**LONG)])
    await node.prepare(claim)
    await node.journal.mark("u1", State.PREPARING)
    assert await node.unprepare(claim) is None
    assert await node.journal.records() == []
    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    assert node.specs.claim_uids() == frozenset()


@pytest.mark.case("C04")
async def test_claims_of_one_name_are_told_apart_by_their_uid(node):
    old, new = ref("aaaa"), ref("bbbb")
    node.api.add(old, "gpu-0")
    await node.prepare(old)
    node.api.add(new, "gpu-1", configs=[config(**LONG)])
    assert isinstance(await node.prepare(new), Prepared)
    assert await node.unprepare(old) is None
    assert node.specs.claim_uids() == {"bbbb"}
    assert node.slice_of("gpu-1") is TimeSliceInterval.LONG
    assert [record.ref for record in await node.journal.records()] == [new]


@pytest.mark.case("C04")
@pytest.mark.case("C05")
async def test_a_device_held_by_another_claim_is_refused_with_the_holders_name_until_it_is_free(node):
    old, new = ref("aaaa"), ref("bbbb")
    node.api.add(old, "gpu-0")
    await node.prepare(old)
    node.api.add(new, "gpu-0")
    answer = await node.prepare(new)
    assert isinstance(answer, Refusal)
    assert answer.retryable
    assert "device gpu-0 still held by claim team-a/shared (aaaa)" in answer.message
    await node.unprepare(old)
    assert isinstance(await node.prepare(new), Prepared)


@pytest.mark.case("C05")
async def test_a_prepare_waits_inside_the_call_until_the_holder_is_unprepared(tmp_path):
    async with Node(tmp_path, held_wait=30).running() as node:
        old, new = ref("aaaa"), ref("bbbb")
        node.api.add(old, "gpu-0")
        await node.prepare(old)
        node.api.add(new, "gpu-0")
        waiting = asyncio.create_task(node.prepare(new, within=30))
        while not node.preparation._claim_locks.is_wanted("bbbb"):
            await asyncio.sleep(0)
        assert await node.unprepare(old) is None
        async with asyncio.timeout(PATIENCE / 2):
            assert isinstance(await waiting, Prepared)


async def test_unprepare_ends_a_prepare_that_waits_for_a_device(tmp_path):
    async with Node(tmp_path, held_wait=30).running() as node:
        old, new = ref("aaaa"), ref("bbbb")
        node.api.add(old, "gpu-0")
        await node.prepare(old)
        node.api.add(new, "gpu-0")
        waiting = asyncio.create_task(node.prepare(new, within=30))
        while not node.preparation._claim_locks.is_wanted("bbbb"):
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE / 2):
            assert await node.unprepare(new) is None
            assert "being unprepared" in (await waiting).message


@pytest.mark.case("C07")
async def test_devices_of_other_drivers_and_pools_are_not_ours(node):
    claim = node.api.add(
        ref(),
        "gpu-1",
        result("numa0", "cpu", driver="cpu.other.test"),
        result("eth3", "nic", driver="nic.other.test"),
        result("gpu-0", "far", pool="node-b"),
    )
    answer = await node.prepare(claim)
    assert [device.device for device in answer.devices] == ["gpu-1"]
    [record] = await node.journal.records()
    assert [hold.device for hold in record.holds] == ["gpu-1"]
    assert await node.unprepare(claim) is None


async def test_a_claim_without_devices_of_ours_is_prepared_without_a_trace(node):
    claim = node.api.add(ref(), result("numa0", driver="cpu.other.test"))
    assert await node.prepare(claim) == Prepared(())
    assert await node.journal.records() == []


@pytest.mark.case("C08")
async def test_a_bad_claim_of_a_batch_costs_itself_alone(node):
    held = node.api.add(ref("u3", "three"), "gpu-1")
    await node.prepare(held)
    good = node.api.add(ref("u1", "one"), "gpu-0")
    unknown = node.api.add(ref("u2", "two"), "gpu-99")
    invalid = node.api.add(ref("u4", "four"), result("gpu-0", "main"), configs=[config(shering={})])
    absent = ref("u5", "five")
    answers = await node.prepare(good, unknown, held, invalid, absent)
    assert {uid: type(answer) for uid, answer in answers.items()} == {
        "u1": Prepared,
        "u2": Refusal,
        "u3": Prepared,
        "u4": Refusal,
        "u5": Refusal,
    }
    assert "team-a/two (u2)" in answers["u2"].message
    assert "gpu-99" in answers["u2"].message
    assert "team-a/four (u4)" in answers["u4"].message
    assert "shering" in answers["u4"].message
    assert await node.unprepare(good, unknown, held, invalid, absent) == dict.fromkeys(answers)


async def test_an_error_nobody_foresaw_is_an_answer_too(node, monkeypatch):
    claim = node.api.add(ref(), "gpu-0")
    monkeypatch.setattr(node.specs, "write", lambda *_: (_ for _ in ()).throw(ZeroDivisionError("surprise")))
    answer = await node.prepare(claim)
    assert isinstance(answer, Refusal)
    assert "surprise" in answer.message
    assert await node.journal.records() == []


@pytest.mark.case("C10")
async def test_unprepare_needs_no_api_server(node):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    await node.prepare(claim)
    node.api.delete(claim)
    node.api.fault = ClaimReadError("API server away", retryable=True)
    reads = node.api.reads
    assert await node.unprepare(ClaimRef("", "", claim.uid)) is None
    assert node.api.reads == reads
    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    assert node.specs.claim_uids() == frozenset()


@pytest.mark.case("C11")
async def test_unprepare_of_unknown_claims_succeeds_again_and_again_and_writes_nothing(node):
    unknown = [ref(f"unknown-{number}") for number in range(1000)]
    await node.journal.records()  # opens the file
    files = sorted((path, path.stat().st_mtime_ns) for path in node.directory.rglob("*"))
    assert await node.unprepare(unknown[0]) is None
    assert await node.unprepare(unknown[0]) is None
    assert await node.engine.unprepare([], asyncio.get_running_loop().time() + 1) == {}
    assert set((await node.unprepare(*unknown)).values()) == {None}
    assert sorted((path, path.stat().st_mtime_ns) for path in node.directory.rglob("*")) == files


@pytest.mark.case("C13")
async def test_a_slow_gpu_delays_no_other_claim(tmp_path):
    async with Node(tmp_path, gpus=3).running() as node:
        slow = node.api.add(ref("slow", "a"), "gpu-0", configs=[config(**LONG)])
        held = node.api.add(ref("held", "b"), "gpu-1")
        fresh = node.api.add(ref("fresh", "c"), "gpu-2", configs=[config(**LONG)])
        await node.prepare(held)
        gate = node.vendor.gates[node.uuid("gpu-0")] = asyncio.Event()
        preparing = asyncio.create_task(node.prepare(slow, within=30))
        node.vendor.entered[node.uuid("gpu-0")] = entered = asyncio.Event()
        await entered.wait()
        async with asyncio.timeout(PATIENCE / 2):
            assert await node.unprepare(held) is None
            assert isinstance(await node.prepare(fresh), Prepared)
        gate.set()
        assert isinstance(await preparing, Prepared)


@pytest.mark.case("C14")
async def test_when_the_third_gpu_fails_the_first_two_are_put_back(tmp_path):
    async with Node(tmp_path, gpus=3).running() as node:
        claim = node.api.add(
            ref("u1", "three"), *(result(f"gpu-{n}", f"r{n}") for n in range(3)), configs=[config(**LONG)]
        )
        other = node.api.add(ref("u2", "other"), "gpu-0")
        node.vendor.faults[node.uuid("gpu-2")] = [fault(FailureKind.REFUSED, "gpu-2: unknown error")]
        answer = await node.prepare(claim)
        assert "gpu-2: unknown error" in answer.message
        assert {node.slice_of(f"gpu-{n}") for n in range(3)} == {TimeSliceInterval.DEFAULT}
        assert node.specs.claim_uids() == frozenset()
        assert isinstance(await node.prepare(other), Prepared)
        await node.unprepare(other)
        assert isinstance(await node.prepare(claim), Prepared)


@pytest.mark.case("C14")
async def test_a_record_whose_effects_could_not_be_undone_is_reclaimed_by_the_next_claim(node):
    claim = node.api.add(ref("u1"), "gpu-0", configs=[config(**LONG)])
    other = node.api.add(ref("u2", "other"), "gpu-0")
    await node.prepare(claim)
    await node.journal.mark("u1", State.UNPREPARING)
    assert isinstance(await node.prepare(other), Prepared)
    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    assert [record.ref.uid for record in await node.journal.records()] == ["u2"]


async def test_a_transient_fault_is_tried_again_inside_the_call(node):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    node.vendor.faults[node.uuid("gpu-0")] = [fault(), fault()]
    assert isinstance(await node.prepare(claim), Prepared)
    assert node.slice_of("gpu-0") is TimeSliceInterval.LONG


async def test_a_transient_api_fault_is_tried_again_inside_the_call(node):
    claim = node.api.add(ref(), "gpu-0")
    node.api.fault = ClaimReadError("429", retryable=True)
    preparing = asyncio.create_task(node.prepare(claim))
    while node.api.reads < 1:
        await asyncio.sleep(0)
    node.api.fault = None
    assert isinstance(await preparing, Prepared)


async def test_a_read_that_is_not_allowed_is_refused_at_once(node):
    claim = node.api.add(ref(), "gpu-0")
    node.api.fault = ClaimReadError("forbidden: grant get on resourceclaims", retryable=False)
    assert await node.prepare(claim) == Refusal(
        "claim team-a/shared (aaaa): forbidden: grant get on resourceclaims",
        retryable=False,
        kind=RefusalKind.API_SERVER,
    )
    assert node.api.reads == 1


async def test_a_claim_that_was_replaced_is_refused(node):
    node.api.add(ref("bbbb"), "gpu-0")
    assert "replaced by one of the same name with UID bbbb" in (await node.prepare(ref("aaaa"))).message


@pytest.mark.parametrize("uid", ["../../etc/passwd", "", "a/b", "a.b", "-a", "a" * 64, "aa\n", "é"])
async def test_a_uid_that_could_be_a_path_is_refused_and_unprepares(node, uid):
    answer = await node.prepare(ref(uid))
    assert isinstance(answer, Refusal)
    assert not answer.retryable
    assert await node.unprepare(ref(uid)) is None


async def test_two_calls_for_one_claim_at_once_give_one_answer(node):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    first, second = await asyncio.gather(node.prepare(claim), node.prepare(claim))
    assert first == second
    assert isinstance(first, Prepared)
    assert len(node.vendor.calls) == 1
    assert node.api.reads == 1


@pytest.mark.case("C31")
async def test_a_call_that_runs_out_of_time_is_answered_and_its_work_goes_on(tmp_path):
    async with Node(tmp_path).running(AT_ONCE) as node:
        claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
        gate = node.vendor.gates[node.uuid("gpu-0")] = asyncio.Event()
        answer = await node.prepare(claim, within=0.05)
        assert isinstance(answer, Refusal)
        assert answer.retryable
        gate.set()
        assert await node.engine.drain(asyncio.get_running_loop().time() + PATIENCE) == 0
        assert [record.state for record in await node.journal.records()] == [State.PREPARED]


@pytest.mark.case("C31")
async def test_draining_tells_what_is_still_in_work(tmp_path):
    async with Node(tmp_path).running(AT_ONCE) as node:
        claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
        gate = node.vendor.gates[node.uuid("gpu-0")] = asyncio.Event()
        await node.prepare(claim, within=0.05)
        assert await node.engine.drain(asyncio.get_running_loop().time()) == 1
        gate.set()


async def test_a_cancelled_call_does_not_cut_its_work_short(node):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    gate = node.vendor.gates[node.uuid("gpu-0")] = asyncio.Event()
    entered = node.vendor.entered[node.uuid("gpu-0")] = asyncio.Event()
    call = asyncio.create_task(node.prepare(claim))
    await entered.wait()
    call.cancel()
    await asyncio.wait([call])
    gate.set()
    await node.engine.drain(asyncio.get_running_loop().time() + PATIENCE)
    assert [record.state for record in await node.journal.records()] == [State.PREPARED]


@pytest.mark.case("C35")
async def test_a_wall_clock_that_jumps_moves_no_deadline(tmp_path, monkeypatch):
    async with Node(tmp_path, held_wait=0.2).running() as node:
        monkeypatch.setattr("time.time", lambda: 0.0)
        old, new = ref("aaaa"), ref("bbbb")
        node.api.add(old, "gpu-0")
        await node.prepare(old)
        node.api.add(new, "gpu-0")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        answer = await node.prepare(new, within=30)
        assert "still held" in answer.message
        assert 0.2 <= loop.time() - begun < PATIENCE / 2


async def test_a_monitor_sees_a_busy_gpu_and_changes_nothing(node):
    user = node.api.add(ref("user", "job"), "gpu-0", configs=[config(**LONG)])
    watcher = node.api.add(ref("watch", "dcgm"), result("gpu-0-monitor", admin=True), configs=[config(**LONG)])
    await node.prepare(user)
    calls = list(node.vendor.calls)
    assert isinstance(await node.prepare(watcher), Prepared)
    assert await node.unprepare(watcher) is None
    assert node.vendor.calls == calls


async def test_a_monitor_keeps_no_claim_from_the_gpu(node):
    watcher = node.api.add(ref("watch", "dcgm"), result("gpu-0-monitor", admin=True))
    user = node.api.add(ref("user", "job"), "gpu-0")
    await node.prepare(watcher)
    assert isinstance(await node.prepare(user), Prepared)


@pytest.mark.case("C32")
async def test_unprepare_reports_a_record_that_cannot_be_deleted_but_frees_the_device(node, monkeypatch):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    await node.prepare(claim)

    async def full(*_):
        raise JournalFullError("no space left on device (ENOSPC)")

    monkeypatch.setattr(node.journal, "forget", full)
    monkeypatch.setattr(node.journal, "mark", full)
    answer = await node.unprepare(claim)
    assert isinstance(answer, Refusal)
    assert "ENOSPC" in answer.message
    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    monkeypatch.undo()
    assert await node.unprepare(claim) is None


@pytest.mark.case("C32")
async def test_when_the_last_record_cannot_be_written_everything_is_undone(node, monkeypatch):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])

    async def full(*_):
        raise JournalFullError("no space left on device (ENOSPC)")

    monkeypatch.setattr(node.journal, "mark", full)
    assert "ENOSPC" in (await node.prepare(claim)).message
    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    assert node.specs.claim_uids() == frozenset()
    assert await node.journal.records() == []


async def test_an_incomplete_driver_installation_is_waited_for_inside_the_call(node):
    claim = node.api.add(ref(), "gpu-0")
    node.vendor.edit_fault = NotReadyError("driver root /driver has no libcuda.so yet")
    preparing = asyncio.create_task(node.prepare(claim))
    while await node.journal.load("aaaa") is None:
        await asyncio.sleep(0)
    node.vendor.edit_fault = None
    assert isinstance(await preparing, Prepared)
