"""What several claims have together goes with the last of them, also when the last two end at the same moment."""

import asyncio

import pytest

from dra_gpu.claims.outcome import Prepared
from tests.unit.claims.world import EVERY_VIEW, Node, inventory_of, partitionable_gpus, ref, result, share

SHARES_OF = {
    "a partition": [share("gpu-0-mig-1g10gb-19-2-shared", number, memory="2Gi") for number in (1, 2)],
    "the mode of a GPU": [result("gpu-0-mig-1g10gb-19-2"), result("gpu-0-mig-1g10gb-19-3")],
    "the limits of a GPU": [share("gpu-0-shared", number) for number in (1, 2)],
}


@pytest.fixture
async def node(tmp_path):
    made = Node(tmp_path)
    made.inventory = inventory_of(partitionable_gpus(), options=EVERY_VIEW)
    async with made.running() as node:
        yield node


@pytest.mark.parametrize("what", SHARES_OF)
async def test_of_two_claims_that_end_at_once_the_second_does_not_take_the_first_for_one_that_stays(
    node, monkeypatch, what
):
    claims = [
        node.api.add(ref(f"u{number}", f"job-{number}"), device, configs=[])
        for number, device in enumerate(SHARES_OF[what])
    ]
    answers = await node.prepare(*claims)
    assert all(isinstance(answer, Prepared) for answer in answers.values()), answers
    locks, forget, forgetting = node.preparation._gpu_locks._local, node.journal.forget, []

    async def forget_late(uid: str) -> None:
        forgetting.append(uid)
        # The other one comes as far as it can meanwhile: to the lock of the GPU, or to its own end.
        while len(forgetting) < 2 and not any(entry.users > 1 for entry in locks._entries.values()):
            await asyncio.sleep(0)
        await forget(uid)

    monkeypatch.setattr(node.journal, "forget", forget_late)
    assert await node.unprepare(*claims) == {claim.uid: None for claim in claims}

    assert node.vendor.instances == {}
    assert not any(node.vendor.mig_modes.values())
    assert node.vendor.limits == {}
    assert node.mps.held == {}
