import asyncio
from collections import Counter
from pathlib import Path

import pytest

from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.apiserver.errors import UnavailableError
from dra_gpu.apiserver.resources import Node, NodeStatus
from dra_gpu.kubelet.foreign import ForeignRegistration
from dra_gpu.node.masters import LOOK_SECONDS, Masters, find_master
from tests.unit.apiserver.virtual_clock import VirtualClock

RESOURCES = ("nvidia.com/gpu",)


def node(**allocatable):
    return Node(ObjectMeta(name="node-a"), NodeStatus({key.replace("__", "/"): v for key, v in allocatable.items()}))


def with_gpus(amount):
    return Node(ObjectMeta(name="node-a"), NodeStatus({"nvidia.com/gpu": amount}))


def test_a_node_without_a_device_plugin_has_no_other_master():
    assert find_master(node(cpu="2"), RESOURCES, []) is None


def test_a_device_plugin_is_named_with_the_way_out():
    assert "remove it from this node" in find_master(with_gpus("8"), RESOURCES, [])


@pytest.mark.parametrize("amount", ["0", "", "nonsense"])
def test_a_device_plugin_that_offers_nothing_is_no_master(amount):
    assert find_master(with_gpus(amount), RESOURCES, []) is None


def test_another_driver_registered_under_our_name_is_a_master():
    foreign = ForeignRegistration(Path("/registry/x-reg.sock"), "/plugins/x.sock")

    assert "/registry/x-reg.sock" in find_master(node(), RESOURCES, [foreign])


NODES = 300


class Fleet:
    """All nodes' looks at their Node objects, on one clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.away = False
        self.asked: list[float] = []

    async def get(self, *_):
        self.asked.append(self.clock.now())
        if self.away:
            raise UnavailableError("get", "nodes", detail="it is away")
        return node(cpu="2")

    async def foreign(self, *_):
        return []

    async def run(self) -> None:
        told = []
        ours = (self, "node-a", self, (), RESOURCES, told.append, lambda *_: None)
        async with asyncio.TaskGroup() as group:
            for _ in range(NODES):
                group.create_task(Masters(*ours, clock=self.clock).run())

    def most_in_a_second_after(self, since: float) -> int:
        return max(Counter(int(at) for at in self.asked if at >= since).values())


@pytest.mark.case("C160")
@pytest.mark.parametrize("away", [False, True])
async def test_nodes_that_started_together_do_not_ask_together_for_ever(away):
    fleet = Fleet()
    fleet.away = away
    running = asyncio.ensure_future(fleet.run())
    await fleet.clock.advance(8 * LOOK_SECONDS)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert fleet.asked[:NODES] == [0.0] * NODES  # nobody is kept waiting at the start
    assert fleet.most_in_a_second_after(5 * LOOK_SECONDS) < NODES / 3
    assert len(fleet.asked) >= NODES * 8
