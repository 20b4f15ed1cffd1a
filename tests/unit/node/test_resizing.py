"""The loop that follows ClaimResizes: what makes it visit a share, and what it says of it."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

from msgspec.structs import replace

from dra_gpu.api.claim_resize import AppliesTo, ClaimResize, ClaimResizeMeta, ClaimResizeStatus, NodeStatus, Target
from dra_gpu.apiserver.kubernetes_api import Listing
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.resize import wish as wishes
from dra_gpu.claims.resize.resizing import Visit
from dra_gpu.claims.resize.state import ShareKey
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.node import resizing as module
from dra_gpu.node.resizing import Listeners, NodeResizes

GIB = 2**30
OWN = Amounts(90, 60 * GIB, 1)
KEY = ShareKey("uid", "gpu-0-shared", "share")
PATIENCE = 20.0
TARGET = Target("uid", "gpu.nvidia.com", "node-a", "gpu-0-shared", "share")
STATUS = ClaimResizeStatus(
    node_name="node-a",
    target=TARGET,
    allocated=OWN.wire(),
    permitted=OWN.wire(),
    wanted=OWN.wire(),
    permit=1,
)
OBJECT = ClaimResize(metadata=ClaimResizeMeta("c", "team", "object", "1"), status=STATUS)


def visited(status=None, before=None, after=None, *, waiting=False) -> Visit:
    return Visit(status, waiting, before, after)


class Api:
    """One object, listed at the start; patches are kept."""

    def __init__(self, *objects) -> None:
        self.objects, self.patches = objects, []
        self.deliver = None

    async def list(self, _resource, _selection):
        return Listing(self.objects, "1")

    async def watch(self, _resource, _selection, _options, deliver):
        self.deliver = deliver
        await asyncio.Event().wait()

    async def patch(self, _resource, body, name, namespace, *, subresource=""):
        self.patches.append((namespace, name, subresource, body))


class Visits:
    """Counts visits, and answers each as the test wants."""

    def __init__(self) -> None:
        self.keys, self.answers = [], []
        self.came = asyncio.Event()

    def wish(self, resize):
        return wishes.of(resize, "gpu.nvidia.com", "node-a")

    def key_of(self, resize):
        wish = self.wish(resize)
        return None if wish is None else wish.key

    async def visit(self, key, _seen):
        self.keys.append(key)
        self.came.set()
        return self.answers.pop(0) if self.answers else visited()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.keys) < count:
                self.came.clear()
                await self.came.wait()


class Journal:
    def __init__(self) -> None:
        self.rows, self.faults = (), []

    async def kept(self):
        if self.faults:
            raise self.faults.pop(0)
        return self.rows


@asynccontextmanager
async def following(*objects, journal=None, in_charge=True):
    api, visits, told = Api(*objects), Visits(), []
    publishing = SimpleNamespace(in_charge=in_charge, on_acknowledged=None)
    ready = asyncio.Event()
    ready.set()
    made = NodeResizes(
        api,
        "node-a",
        journal=journal or Journal(),
        resizing=visits,
        publishing=publishing,
        ready=ready,
        listeners=Listeners(lambda ref, kind, reason, note: told.append((ref.name, kind, reason, note))),
    )
    running = asyncio.create_task(made.run())
    try:
        yield SimpleNamespace(resizes=made, api=api, visits=visits, told=told, publishing=publishing, running=running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_object_is_visited_when_it_is_seen_and_what_is_found_is_written_into_its_status():
    async with following(OBJECT) as scene:
        scene.visits.answers = [visited(NodeStatus(claim_uid="uid", round=1))] * 2
        async with asyncio.timeout(PATIENCE):
            while not scene.api.patches:
                await asyncio.sleep(0.001)

        namespace, name, subresource, body = scene.api.patches[0]
        assert (namespace, name, subresource) == ("team", "c", "status")
        assert body == {"metadata": {"uid": "object"}, "status": {"node": NodeStatus(claim_uid="uid", round=1)}}
        assert set(scene.visits.keys) == {KEY}


async def test_what_the_object_says_already_is_not_written_again():
    said = replace(OBJECT, status=replace(STATUS, node=NodeStatus(claim_uid="uid", round=1)))
    async with following(said) as scene:
        scene.visits.answers = [visited(NodeStatus(claim_uid="uid", round=1))] * 4
        await scene.visits.until(1)
        scene.resizes.acknowledged()
        await scene.visits.until(2)

        assert scene.api.patches == []


async def test_for_whom_limits_are_in_force_is_taken_back_with_the_limits():
    late = {"computePercent": AppliesTo.NEW_PROCESSES, "memory": AppliesTo.RUNNING_PROCESSES}
    said = replace(OBJECT, status=replace(STATUS, node=NodeStatus(claim_uid="uid", prepared=True, applies_to=late)))
    async with following(said) as scene:
        now = NodeStatus(claim_uid="uid", applies_to={"memory": AppliesTo.RUNNING_PROCESSES})
        scene.visits.answers = [visited(now)] * 2
        async with asyncio.timeout(PATIENCE):
            while not scene.api.patches:
                await asyncio.sleep(0.001)

        node = scene.api.patches[0][3]["status"]["node"]
        assert node["appliesTo"] == {"computePercent": None, "memory": "RunningProcesses"}
        assert node["prepared"] is False


async def test_a_share_is_visited_when_its_claim_changes_and_when_the_server_has_what_was_offered():
    async with following(OBJECT) as scene:
        await scene.visits.until(1)
        before = len(scene.visits.keys)
        scene.resizes.claim_changed("uid")
        await scene.visits.until(before + 1)
        before = len(scene.visits.keys)
        scene.publishing.on_acknowledged()
        await scene.visits.until(before + 1)


async def test_a_workload_that_is_waited_for_is_looked_at_again_and_again(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_LOOK", 0.001)
    async with following(OBJECT) as scene:
        scene.visits.answers = [visited(waiting=True)] * 3
        await scene.visits.until(4)


async def test_a_share_without_an_object_is_visited_from_what_the_journal_has():
    journal = Journal()
    journal.rows = (wishes.begun(wishes.of(OBJECT, "gpu.nvidia.com", "node-a")),)
    async with following(journal=journal) as scene:
        scene.resizes.acknowledged()
        async with asyncio.timeout(PATIENCE):
            while not scene.visits.keys:
                scene.resizes.acknowledged()
                await asyncio.sleep(0.001)

        assert scene.visits.keys[0] == KEY


async def test_an_instance_that_does_not_publish_visits_nothing():
    async with following(OBJECT, in_charge=False) as scene:
        await asyncio.wait({scene.running}, timeout=0.05)

        assert scene.visits.keys == []


async def test_a_journal_that_cannot_be_read_ends_nothing(monkeypatch):
    monkeypatch.setattr(module, "TICK_SECONDS", 0.001)
    journal = Journal()
    journal.faults = [JournalError("no space left")] * 3
    journal.rows = (wishes.begun(wishes.of(OBJECT, "gpu.nvidia.com", "node-a")),)
    async with following(journal=journal) as scene:
        await scene.visits.until(1)

        assert not scene.running.done()


async def test_a_limit_that_changed_and_what_is_in_the_way_are_told_of_the_claim_once():
    row = wishes.begun(wishes.of(OBJECT, "gpu.nvidia.com", "node-a"))
    lower = replace(row, limit=Amounts(20, 16 * GIB, 1))
    waits = NodeStatus(claim_uid="uid", reason="WaitingForWorkload", message="pid 4711 has more")
    async with following(OBJECT) as scene:
        scene.visits.answers = [
            visited(waits, row, row),
            visited(waits, row, row),
            visited(None, row, lower),
        ]
        for count in (1, 2, 3):
            await scene.visits.until(count)
            scene.resizes.acknowledged()
        await scene.visits.until(4)

        assert [(name, kind, reason) for name, kind, reason, _ in scene.told] == [
            ("c", "Warning", "ClaimResizeWaits"),
            ("c", "Normal", "ClaimResized"),
        ]
        assert "pid 4711 has more" in scene.told[0][3]
        assert "at most 20 % of the SMs" in scene.told[1][3]
