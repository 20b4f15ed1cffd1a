"""Sixty pods at once on one node, again and again: all are served, and nothing of them stays.

Ten rounds with MANY_PODS_ROUNDS=10; fewer by default.
"""

import asyncio
import os
import uuid
from pathlib import Path

import pytest

from tests.component.node.node_under_fire import journal_path, status_of

PODS, GPUS = 60, 16
ROUNDS = int(os.environ.get("MANY_PODS_ROUNDS", "2"))
#: What all rounds together may add; a leak would add something for each of the sixty pods. What was said of the last
#: two thousand claims is remembered, a connection more may be open, a page of the journal more in use.
SLACK = {"files": 8, "threads": 4, "journal": 64 * 1024, "memory": 5 * 1024 * 1024}


def costs(sharing) -> dict[str, int]:
    """What the plugin has open, takes in memory and has on the disk."""
    pid = sharing.world.plugin.pid
    return {
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": status_of(pid, "Threads"),
        "journal": journal_path(sharing.world).stat().st_size,
        "memory": status_of(pid, "VmRSS") * 1024,
    }


async def come_and_go(sharing) -> None:
    """Sixty pods come, each with a call of its own, and go."""

    async def come(number: int):
        name, uid = f"pod-{number}", str(uuid.uuid4())
        cgroup = sharing.cluster.paths.make_pod_cgroup(uid)
        claim = sharing.claim(name, 10, "8Gi", pod_uid=uid)
        return sharing.of(name, claim, await sharing.world.prepared(claim), cgroup)

    pods = await asyncio.gather(*(come(number) for number in range(PODS)))
    assert len({pod.devices[0].share_id for pod in pods}) == PODS
    await asyncio.gather(*(pod.end(sharing.kubelet) for pod in pods))


@pytest.mark.case("C158")
async def test_sixty_pods_at_once_are_all_served_and_round_after_round_costs_the_same(make_sharing):
    sharing = await make_sharing("P-dc8", gpus=GPUS)
    await come_and_go(sharing)
    before = costs(sharing)

    for _ in range(ROUNDS - 1):
        await come_and_go(sharing)
        assert sharing.left() == {}

    after = costs(sharing)
    assert {name: (before[name], after[name]) for name in SLACK if after[name] > before[name] + SLACK[name]} == {}
