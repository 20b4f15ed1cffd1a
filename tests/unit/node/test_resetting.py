"""What a node does with a request to reset a GPU."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from dra_gpu.api import cordon
from dra_gpu.api.cordon import ResetAnswer
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.apiserver.kubernetes_api import Listing
from dra_gpu.claims.locks import LockTimeoutError
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.preparation import Identity
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.inventory import naming, views
from dra_gpu.inventory.model import Scan
from dra_gpu.node.reset_log import Entry, ResetLog
from dra_gpu.node.resetting import GpuResets, ResetTimes
from dra_gpu.vendors.base import FailureKind, VendorError
from tests.unit.inventory.builders import gpu

REQUEST = "0123456789abcdef"
IMPATIENT = ResetTimes(lock=0.01, free=0.02, again=0.005, idle=0.005, longest=0.01)
PATIENCE = 20.0


class Node:
    """A node with two GPUs; what its vendor is asked to reset fails as often as `failures` says."""

    def __init__(self, directory, times=IMPATIENT):
        self.gpus = [gpu(0), gpu(1)]
        self.resets, self.failures, self.told, self.looked_again = [], [], [], []
        self.holds, self.locked, self.acts = [], [], True
        self.rules, self.boot_id, self.well = [], "boot-1", []
        self.directory, self.times = directory, times
        self.desk = self.started()

    def started(self):
        looked = asyncio.Event()
        looked.set()
        return GpuResets(
            self,
            Identity("gpu.nvidia.com", "node-a"),
            self,
            self.inventory,
            looked,
            self,
            self.records,
            "boot-1",
            lambda: self.acts,
            ResetLog(self.directory),
            self.told.append,
            self.looked_again.append,
            self.times,
            on_done=self.well.append,
        )

    def inventory(self):
        return views.build(Scan(gpus=tuple(self.gpus)), naming.assign({}, self.gpus)).inventory

    async def records(self):
        ref = ClaimRef("team", "job", "uid-1")
        return [Record(ref, self.boot_id, State.PREPARED, holds=tuple(self.holds))]

    @asynccontextmanager
    async def hold(self, *_):
        if self.locked:
            raise LockTimeoutError(f"the lock is held by {self.locked[0]}")
        yield

    async def reset_gpu(self, one):
        self.resets.append(one.uuid)
        if self.failures:
            raise self.failures.pop(0)

    async def list(self, _resource, selection=None, **_):
        assert selection.label_selector == cordon.RESET_LABEL
        return Listing(tuple(self.rules), "1")

    async def watch(self, *_):
        await asyncio.Event().wait()

    async def asked(self, request=REQUEST, **of) -> ResetAnswer:
        """Hand a request in; the answer."""
        await self.desk.handle(rule(request, **of))
        return self.told[-1]


def rule(request=REQUEST, *, device="gpu-0", pool="node-a", meant="", name="cordon"):
    annotations = {cordon.GPU_ANNOTATION: meant} if meant else {}
    return DeviceTaintRule(
        metadata=ObjectMeta(name=name, labels={cordon.RESET_LABEL: request}, annotations=annotations),
        spec=DeviceTaintRuleSpec(DeviceTaintSelector("gpu.nvidia.com", pool, device)),
    )


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


async def test_a_free_gpu_is_reset_and_the_answer_names_the_request(node):
    answer = await node.asked()

    assert node.resets == [node.gpus[0].uuid]
    assert answer.done
    assert answer.note.startswith(f"Request {REQUEST}: {node.gpus[0].uuid} was reset")
    assert node.looked_again == [node.gpus[0]]
    assert node.well == [node.gpus[0]]
    assert node.desk.counts == {(node.gpus[0].uuid, "done"): 1}


async def test_a_gpu_that_a_claim_holds_is_not_reset_and_the_claim_is_named(node):
    node.holds = [Hold("gpu-0", node.gpus[0].uuid, Access.EXCLUSIVE)]

    answer = await node.asked()

    assert (node.resets, node.well, answer.done) == ([], [], False)
    assert "team/job (uid-1) (gpu-0)" in answer.text


@pytest.mark.parametrize(
    "hold", [Hold("gpu-1", gpu(1).uuid, Access.EXCLUSIVE), Hold("gpu-0-monitor", gpu(0).uuid, Access.OBSERVER)]
)
async def test_a_claim_of_another_gpu_and_one_that_only_watches_are_in_nobodys_way(node, hold):
    node.holds = [hold]

    assert (await node.asked()).done


async def test_what_was_held_in_an_earlier_boot_is_held_by_nobody(node):
    node.holds, node.boot_id = [Hold("gpu-0", node.gpus[0].uuid, Access.EXCLUSIVE)], "boot-0"

    assert (await node.asked()).done


async def test_a_claim_that_is_just_ending_is_waited_for(tmp_path):
    node = Node(tmp_path, ResetTimes(free=PATIENCE, again=0.005))
    node.holds = [Hold("gpu-0", node.gpus[0].uuid, Access.EXCLUSIVE)]
    asking = asyncio.create_task(node.asked())
    done, _ = await asyncio.wait({asking}, timeout=0.02)
    assert not done

    node.holds = []

    assert (await asyncio.wait_for(asking, PATIENCE)).done


async def test_a_process_that_is_being_killed_is_waited_for(tmp_path):
    node = Node(tmp_path, ResetTimes(free=PATIENCE, again=0.001))
    node.failures = [VendorError(FailureKind.IN_USE, "pid 4711 (python) has it open")] * 3

    assert (await node.asked()).done
    assert len(node.resets) == 4


async def test_who_keeps_a_gpu_open_is_named_with_pid_and_command(node):
    node.failures = [VendorError(FailureKind.IN_USE, "pid 4711 (python train.py) has it open")] * 100

    answer = await node.asked()

    assert not answer.done
    assert "pid 4711 (python train.py) has it open" in answer.text
    assert node.desk.counts == {(node.gpus[0].uuid, "failed"): 1}


async def test_another_failure_is_told_at_once(node):
    node.failures = [VendorError(FailureKind.UNSUPPORTED, "not supported")]

    answer = await node.asked()

    assert (len(node.resets), answer.done) == (1, False)
    assert "not supported" in answer.text


async def test_a_fault_of_ours_is_an_answer_and_not_the_end_of_the_process(node):
    node.failures = [ZeroDivisionError()]

    answer = await node.asked()

    assert not answer.done
    assert "internal error ZeroDivisionError" in answer.text


async def test_a_gpu_on_which_a_claim_is_being_prepared_is_not_reset(node):
    node.locked = ["process 1 for claim team/job"]

    answer = await node.asked()

    assert (node.resets, answer.done) == ([], False)
    assert "team/job" in answer.text


async def test_a_board_that_has_taken_the_place_of_the_one_that_was_meant_is_not_reset(node):
    answer = await node.asked(meant="GPU-other")

    assert (node.resets, answer.done) == ([], False)
    assert "GPU-other was meant" in answer.text


async def test_a_device_that_is_not_there_is_named(node):
    answer = await node.asked(device="gpu-7")

    assert not answer.done
    assert "'gpu-7'" in answer.text


async def test_a_request_that_was_carried_out_is_answered_again_after_a_restart_and_not_carried_out_again(node):
    first = await node.asked()
    node.desk = node.started()

    again = await node.asked()

    assert again == first
    assert len(node.resets) == 1


async def test_a_request_that_a_restart_interrupted_is_not_begun_again(node):
    ResetLog(node.directory).note(REQUEST, Entry())

    answer = await node.asked()

    assert (node.resets, answer.done) == ([], False)
    assert "restarted in the middle" in answer.text


async def test_a_damaged_log_costs_nobody_a_reset(node):
    (node.directory / "resets.json").write_bytes(b"\xff{")

    assert (await node.asked()).done


async def test_the_log_keeps_the_newest_requests(tmp_path):
    log = ResetLog(tmp_path)

    for number in range(100):
        log.note(f"request-{number:03}", Entry("GpuReset", "done"))

    assert log.find("request-099") == Entry("GpuReset", "done")
    assert log.find("request-000") is None


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def test_requests_for_other_nodes_and_labels_that_are_no_ids_are_left_alone(node):
    node.rules = [rule(pool="node-b", name="a"), rule("??", name="b"), rule(name="c", device="gpu-1")]
    running = asyncio.create_task(node.desk.run())

    await until(lambda: node.told)

    running.cancel()
    assert node.resets == [node.gpus[1].uuid]
    assert [answer.request for answer in node.told] == [REQUEST]


async def test_of_two_instances_the_one_that_publishes_acts(node):
    node.acts, node.rules = False, [rule()]
    running = asyncio.create_task(node.desk.run())
    done, _ = await asyncio.wait({running}, timeout=0.02)
    assert not done
    assert node.resets == []

    node.acts = True
    await until(lambda: node.told)

    running.cancel()
    assert node.resets == [node.gpus[0].uuid]


async def test_an_answer_that_may_have_got_lost_is_given_again_while_the_request_stands_but_not_for_ever(tmp_path):
    node = Node(tmp_path, replace(IMPATIENT, repeat=0.005, repeats=3))
    node.rules = [rule()]
    running = asyncio.create_task(node.desk.run())

    await until(lambda: len(node.told) == 4)
    done, _ = await asyncio.wait({running}, timeout=0.05)

    running.cancel()
    assert not done
    assert len(set(node.told)) == 1
    assert (len(node.told), len(node.resets)) == (4, 1)


def test_an_answer_is_read_from_the_event_that_tells_it():
    answer = ResetAnswer(REQUEST, done=True, text="GPU-1 was reset")

    assert ResetAnswer.read(answer.reason, answer.note, REQUEST) == answer
    assert ResetAnswer.read(answer.reason, answer.note, "another-request") is None
    assert ResetAnswer.read("GpuNotUsable", answer.note, REQUEST) is None
