"""Reconciliation brings journal, node and API server together and touches nothing for lack of knowledge."""

import asyncio
import dataclasses

import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.claims.journal import FILE_NAME
from dra_gpu.claims.outcome import Prepared, Refusal
from dra_gpu.claims.ports import ClaimReadError
from dra_gpu.claims.reconcile import Action, NodeFacts, Presence, decide, needs_claim, presence
from dra_gpu.claims.record import State
from dra_gpu.inventory.model import SickGpu
from dra_gpu.vendors.base import FailureKind
from tests.unit.claims.test_journal import BOOT, GPU, change, record
from tests.unit.claims.world import LONG, Node, claim_of, config, fault, inventory_of, ref, result
from tests.unit.inventory.builders import gpu

HERE = NodeFacts(BOOT, frozenset({GPU}))
PREPARED = dataclasses.replace(record("u1"), state=State.PREPARED)


@pytest.fixture
async def node(tmp_path):
    async with Node(tmp_path).running() as node:
        yield node


@pytest.mark.parametrize(
    ("found", "facts", "claim", "action"),
    [
        (PREPARED, HERE, Presence.ALLOCATED, Action.VERIFY),
        (PREPARED, HERE, Presence.IDLE, Action.VERIFY),
        (PREPARED, HERE, Presence.UNKNOWN, Action.VERIFY),
        (PREPARED, HERE, Presence.GONE, Action.UNPREPARE),
        (dataclasses.replace(PREPARED, state=State.PREPARING), HERE, Presence.UNKNOWN, Action.ERASE),
        (dataclasses.replace(PREPARED, state=State.UNPREPARING), HERE, Presence.UNKNOWN, Action.ERASE),
        (PREPARED, NodeFacts(BOOT, frozenset({"GPU-other"})), Presence.ALLOCATED, Action.QUARANTINE),
        (PREPARED, NodeFacts(BOOT, frozenset(), frozenset({GPU})), Presence.ALLOCATED, Action.KEEP),
        (PREPARED, NodeFacts(BOOT, frozenset(), complete=False), Presence.ALLOCATED, Action.KEEP),
        (PREPARED, NodeFacts(BOOT, None), Presence.ALLOCATED, Action.KEEP),
        (dataclasses.replace(PREPARED, state=State.QUARANTINED), HERE, Presence.ALLOCATED, Action.VERIFY),
        (dataclasses.replace(PREPARED, fault="unreadable"), HERE, Presence.ALLOCATED, Action.QUARANTINE),
        (dataclasses.replace(PREPARED, fault="unreadable"), HERE, Presence.GONE, Action.UNPREPARE),
        (dataclasses.replace(PREPARED, fault="new step", undoable=False), HERE, Presence.GONE, Action.QUARANTINE),
        (dataclasses.replace(PREPARED, adopted=True), HERE, Presence.ALLOCATED, Action.PREPARE),
        (dataclasses.replace(PREPARED, adopted=True), HERE, Presence.UNKNOWN, Action.KEEP),
        (PREPARED, NodeFacts("boot-2", frozenset({GPU})), Presence.ALLOCATED, Action.PREPARE),
        (PREPARED, NodeFacts("boot-2", frozenset({GPU})), Presence.GONE, Action.UNPREPARE),
        (PREPARED, NodeFacts("boot-2", frozenset({GPU})), Presence.IDLE, Action.UNPREPARE),
        (PREPARED, NodeFacts("boot-2", frozenset({GPU})), Presence.UNKNOWN, Action.KEEP),
        (PREPARED, NodeFacts("boot-2", frozenset({"GPU-other"})), Presence.ALLOCATED, Action.UNPREPARE),
        (PREPARED, NodeFacts("boot-2", None), Presence.ALLOCATED, Action.PREPARE),
    ],
)
def test_the_decision_follows_from_record_node_and_claim(found, facts, claim, action):
    assert decide(found, facts, claim).action is action


def test_a_claim_of_another_uid_is_not_the_claim():
    mine = ref("u1")
    assert presence(mine, None) is Presence.GONE
    assert presence(mine, claim_of(ref("u2"), "gpu-0")) is Presence.GONE
    assert presence(mine, claim_of(mine, "gpu-0")) is Presence.ALLOCATED


def test_a_claim_of_unknown_name_is_not_asked_for():
    assert not needs_claim(dataclasses.replace(PREPARED, ref=ref("u1", "", "")), HERE)


@pytest.mark.case("C02")
@pytest.mark.case("C28")
async def test_a_prepared_claim_that_no_longer_exists_is_taken_back(node):
    gone = node.api.add(ref("u1", "gone"), "gpu-0", configs=[config(**LONG)])
    kept = node.api.add(ref("u2", "kept"), "gpu-1", configs=[config(**LONG)])
    await node.prepare(gone, kept)
    node.api.delete(gone)
    report = await node.reconciler.reconcile()
    assert report.actions[Action.UNPREPARE] == 1
    assert node.specs.claim_uids() == {"u2"}
    assert node.slice_of("gpu-0") is TimeSliceInterval.DEFAULT
    assert node.slice_of("gpu-1") is TimeSliceInterval.LONG
    new = node.api.add(ref("u3", "new"), "gpu-0")
    assert isinstance(await node.prepare(new), Prepared)


@pytest.mark.case("C02")
async def test_a_claim_of_the_same_name_with_another_uid_does_not_keep_the_old_record(node):
    old = node.api.add(ref("u1"), "gpu-0")
    await node.prepare(old)
    node.api.add(ref("u2"), "gpu-0")
    await node.reconciler.reconcile()
    assert await node.journal.records() == []


async def test_an_api_server_that_does_not_answer_costs_no_record(node):
    claim = node.api.add(ref(), "gpu-0")
    await node.prepare(claim)
    node.api.fault = ClaimReadError("away", retryable=True)
    await node.reconciler.reconcile()
    assert len(await node.journal.records()) == 1


@pytest.mark.case("C22")
async def test_after_a_reboot_a_claim_that_still_exists_is_prepared_anew_and_others_are_dropped(tmp_path):
    before = Node(tmp_path)
    async with before.running():
        kept = before.api.add(ref("u1", "kept"), "gpu-0", configs=[config(**LONG)])
        gone = before.api.add(ref("u2", "gone"), "gpu-1", configs=[config(**LONG)])
        await before.prepare(kept, gone)
        before.api.delete(gone)
    after = Node(tmp_path, boot="boot-2")
    after.api = before.api
    for uid in ("u1", "u2"):
        after.specs.remove(uid)
    async with after.running():
        await after.reconciler.recover()
        assert after.specs.claim_uids() == {"u1"}
        assert after.slice_of("gpu-0") is TimeSliceInterval.LONG
        assert [(found.ref, found.boot_id, found.state) for found in await after.journal.records()] == [
            (kept, "boot-2", State.PREPARED)
        ]
        assert after.vendor.calls == [f"set {after.uuid('gpu-0')} Long"]


@pytest.mark.case("C22")
async def test_after_a_reboot_a_prepare_does_not_trust_the_old_record(tmp_path):
    before = Node(tmp_path)
    async with before.running():
        claim = before.api.add(ref(), "gpu-0", configs=[config(**LONG)])
        await before.prepare(claim)
    after = Node(tmp_path, boot="boot-2")
    after.api = before.api
    async with after.running():
        assert isinstance(await after.prepare(claim), Prepared)
        assert after.slice_of("gpu-0") is TimeSliceInterval.LONG
        assert (await after.journal.load("aaaa")).boot_id == "boot-2"


async def test_a_record_of_an_earlier_boot_is_unprepared_without_touching_a_gpu(tmp_path):
    before = Node(tmp_path)
    async with before.running():
        claim = before.api.add(ref(), "gpu-0", configs=[config(**LONG)])
        await before.prepare(claim)
    after = Node(tmp_path, boot="boot-2")
    async with after.running():
        assert await after.unprepare(claim) is None
        assert after.vendor.calls == []
        assert after.specs.claim_uids() == frozenset()
        assert await after.journal.records() == []


@pytest.mark.case("C34")
async def test_gpus_swapped_behind_the_same_names_inherit_nothing(tmp_path):
    before = Node(tmp_path)
    async with before.running():
        old = before.api.add(ref("u1"), "gpu-0", configs=[config(**LONG)])
        await before.prepare(old)
    after = Node(tmp_path, boot="boot-2")
    after.inventory = inventory_of([gpu(0, uuid="GPU-c"), gpu(1, uuid="GPU-d")])
    after.api = before.api
    async with after.running():
        await after.reconciler.recover()
        assert await after.journal.records() == []
        assert after.vendor.calls == []
        new = after.api.add(ref("u2", "new"), "gpu-0")
        assert isinstance(await after.prepare(new), Prepared)


@pytest.mark.case("C23")
async def test_at_start_every_lost_or_changed_cdi_file_is_written_anew(node):
    lost = node.api.add(ref("u1", "lost"), "gpu-0")
    stale = node.api.add(ref("u2", "stale"), "gpu-1")
    await node.prepare(lost, stale)
    node.specs.remove("u1")
    node.vendor.library = "/usr/lib/libcuda.so.2"
    await node.reconciler.recover()
    for uid in ("u1", "u2"):
        nodes = [item.path for item in node.specs.read(uid).container_edits.device_nodes]
        assert "/usr/lib/libcuda.so.2" in nodes


@pytest.mark.case("C25")
async def test_a_record_whose_gpu_is_gone_is_quarantined_and_the_others_served(node):
    first = node.api.add(ref("u1", "one"), "gpu-0")
    second = node.api.add(ref("u2", "two"), "gpu-1", configs=[config(**LONG)])
    await node.prepare(first, second)
    node.inventory = inventory_of([gpu(0)])
    await node.reconciler.recover()
    assert node.specs.claim_uids() == {"u1"}
    assert (await node.journal.load("u2")).state is State.QUARANTINED
    answer = await node.prepare(second)
    assert isinstance(answer, Refusal)
    assert "recreate the pod" in answer.message
    assert isinstance(await node.prepare(first), Prepared)
    assert await node.unprepare(second) is None
    assert [found.ref.uid for found in await node.journal.records()] == ["u1"]


@pytest.mark.case("C25")
async def test_a_quarantined_record_serves_again_when_its_gpu_is_back(node):
    claim = node.api.add(ref(), "gpu-1")
    await node.prepare(claim)
    everything, node.inventory = node.inventory, inventory_of([gpu(0)])
    await node.reconciler.reconcile()
    node.inventory = everything
    await node.reconciler.reconcile()
    assert (await node.journal.load("aaaa")).state is State.PREPARED
    assert node.specs.claim_uids() == {"aaaa"}


async def test_a_sick_gpu_is_not_a_missing_one(node):
    claim = node.api.add(ref(), "gpu-1")
    await node.prepare(claim)
    sick = SickGpu("0000:11:00.0", "GPU is lost", node.uuid("gpu-1"))
    node.inventory = inventory_of([gpu(0)], [sick])
    report = await node.reconciler.reconcile()
    assert report.actions[Action.KEEP] == 1
    assert node.specs.claim_uids() == {"aaaa"}


async def test_gpus_that_were_not_seen_yet_are_not_missing(node):
    claim = node.api.add(ref(), "gpu-1")
    await node.prepare(claim)
    node.inventory = inventory_of([])
    await node.reconciler.recover()
    assert (await node.journal.load("aaaa")).state is State.PREPARED
    assert node.specs.claim_uids() == {"aaaa"}


async def test_unprepare_of_a_claim_on_a_silent_gpu_is_lenient(node, monkeypatch):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    await node.prepare(claim)
    node.vendor.faults[node.uuid("gpu-0")] = [fault(FailureKind.UNRESPONSIVE)]
    assert await node.unprepare(claim) is None
    assert await node.journal.records() == []


async def test_a_record_with_a_step_of_a_newer_release_is_kept_with_its_file_and_says_so(node):
    claim = node.api.add(ref(), "gpu-0")
    other = node.api.add(ref("u2", "other"), "gpu-1")
    await node.prepare(claim)
    change(
        node.directory / "state",
        "UPDATE claims SET payload = json_set(payload, '$.steps[0].step', 'foldSpace', '$.writer', '9.9.9')",
    )
    await node.reconciler.recover()
    assert node.specs.claim_uids() == {"aaaa"}
    assert "foldSpace" in (await node.prepare(claim)).message
    refusal = await node.unprepare(claim)
    assert "written by release 9.9.9" in refusal.message
    assert "run that release again" in refusal.message
    assert isinstance(await node.prepare(other), Prepared)


async def test_an_unreadable_record_can_be_unprepared(node):
    claim = node.api.add(ref(), "gpu-0")
    await node.prepare(claim)
    change(node.directory / "state", "UPDATE claims SET payload = 'rubbish'")
    await node.reconciler.recover()
    assert "cannot be read" in (await node.prepare(claim)).message
    assert await node.unprepare(claim) is None
    assert node.specs.claim_uids() == frozenset()


@pytest.mark.case("C19")
async def test_a_lost_journal_is_rebuilt_from_cdi_files_and_claims(tmp_path):
    before = Node(tmp_path)
    async with before.running():
        kept = before.api.add(ref("u1", "kept"), result("gpu-0", "main"), configs=[config(**LONG)])
        gone = before.api.add(ref("u2", "gone"), "gpu-1")
        answers = await before.prepare(kept, gone)
        before.api.delete(gone)
    (tmp_path / "state" / FILE_NAME).write_bytes(b"")
    after = Node(tmp_path)
    after.api, after.vendor = before.api, before.vendor
    async with after.running():
        assert after.journal.recovered is not None
        report = await after.reconciler.recover()
        assert report.adopted == 2
        assert after.specs.claim_uids() == {"u1"}
        assert await after.prepare(kept) == answers["u1"]
        [found] = await after.journal.records()
        assert (found.ref, found.adopted) == (kept, False)


@pytest.mark.case("C19")
async def test_a_lost_journal_holds_its_devices_while_the_api_server_is_away(tmp_path):
    before = Node(tmp_path)
    async with before.running():
        old = before.api.add(ref("u1", "old"), "gpu-0")
        await before.prepare(old)
    (tmp_path / "state" / FILE_NAME).write_bytes(b"")
    after = Node(tmp_path)
    async with after.running():
        after.api.fault = ClaimReadError("away", retryable=True)
        await after.reconciler.recover()
        after.api.fault = None
        new = after.api.add(ref("u2", "new"), "gpu-0")
        assert "still held by claim team-a/old (u1)" in (await after.prepare(new)).message
        assert await after.unprepare(old) is None
        assert isinstance(await after.prepare(new), Prepared)


async def test_orphaned_files_of_ours_go_and_everything_else_stays(node):
    foreign = node.directory / "cdi" / "nvidia.com-gpu.json"
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("{}")
    claim = node.api.add(ref("u1"), "gpu-0")
    await node.prepare(claim)
    ours = node.specs.path("u1").read_text()
    node.specs.path("orphan").write_text(ours.replace("u1-gpu-0", "orphan-gpu-77"))
    node.specs.path("broken").write_text("not JSON")
    temporary = node.directory / "cdi" / f".{node.specs.path('u1').stem}.{'0' * 16}.tmp"
    temporary.write_text("half")
    await node.reconciler.recover()
    assert node.specs.claim_uids() == {"u1"}
    assert foreign.exists()
    assert not temporary.exists()


async def test_a_claim_in_work_is_not_erased(node):
    claim = node.api.add(ref(), "gpu-0", configs=[config(**LONG)])
    gate = node.vendor.gates[node.uuid("gpu-0")] = asyncio.Event()
    entered = node.vendor.entered[node.uuid("gpu-0")] = asyncio.Event()
    preparing = asyncio.create_task(node.prepare(claim))
    await entered.wait()
    await node.reconciler.reconcile()
    gate.set()
    assert isinstance(await preparing, Prepared)
    assert (await node.journal.load("aaaa")).state is State.PREPARED


async def test_an_erased_or_rewritten_record_is_not_the_one_that_was_looked_at(node):
    claim = node.api.add(ref(), "gpu-0")
    await node.prepare(claim)
    [looked_at] = await node.journal.records()
    await node.unprepare(claim)
    await node.prepare(claim)
    await node.preparation.unprepare(claim, asyncio.get_running_loop().time() + 1, seq=looked_at.seq)
    assert (await node.journal.load("aaaa")).state is State.PREPARED


@pytest.mark.case("C26")
async def test_reconciling_all_the_time_loses_no_record_and_tears_none(tmp_path):
    async with Node(tmp_path, gpus=8).running() as node:

        async def pairs(number: int) -> None:
            for round_ in range(12):
                claim = node.api.add(ref(f"u-{number}-{round_}", f"c{number}-{round_}"), f"gpu-{number}")
                assert isinstance(await node.prepare(claim), Prepared)
                [kept] = [found for found in await node.journal.records() if found.ref == claim]
                assert (kept.state, kept.fault) == (State.PREPARED, "")
                assert await node.unprepare(claim) is None

        async def cleanup() -> None:
            while True:
                await node.reconciler.reconcile()

        cleaning = asyncio.create_task(cleanup())
        await asyncio.gather(*(pairs(number) for number in range(8)))
        cleaning.cancel()
        await asyncio.wait([cleaning])
        assert cleaning.cancelled()
        assert await node.journal.records() == []
        assert node.specs.claim_uids() == frozenset()
