"""What no watch tells of is found by looking."""

import asyncio

import pytest

from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.apiserver.kubernetes_api import Listing
from dra_gpu.apiserver.resources import NODE_METADATA, Unstructured
from dra_gpu.controller.resizes.sweep import ResizeSweep
from tests.unit.controller.resizes.cluster import Cluster
from tests.unit.controller.resizes.driving import KEY
from tests.unit.controller.resizes.test_resizer import Scene


class Ticking:
    """A clock that a test moves."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time


class WithNodes(Cluster):
    """A cluster with nodes."""

    nodes = ("node-0",)

    async def list(self, resource, *_, **__):
        if resource is NODE_METADATA:
            return Listing(tuple(Unstructured(ObjectMeta(name=name)) for name in self.nodes), "1")
        return await super().list(resource)


@pytest.fixture
def scene():
    """A resize that has given something back."""
    made = Scene({"computePercent": 20})
    made.cluster.__class__ = WithNodes
    made.settle()
    return made


def look(sweep):
    work = sweep.look()
    while True:
        try:
            work.send(None)
        except StopIteration:
            return


def queued(scene):
    return set(scene.replica.resizer.queue._waiting)


def test_a_claim_whose_resize_vanished_while_nobody_led_is_looked_at(scene):
    scene.cluster.force_out("training")
    scene.replica.hear()
    scene.replica.resizer.queue._waiting.clear()

    look(ResizeSweep(scene.cluster, scene.replica.resizer, clock=Ticking()))

    assert queued(scene) == {KEY}
    scene.controller()
    assert scene.resize["metadata"]["deletionTimestamp"]


def test_a_node_is_lost_when_it_has_been_missing_for_the_grace_and_found_when_it_is_back(scene):
    scene.replica.hear()
    clock = Ticking()
    sweep = ResizeSweep(scene.cluster, scene.replica.resizer, grace=60, clock=clock)
    scene.cluster.nodes = ()
    look(sweep)
    assert scene.replica.resizer.lost_nodes == frozenset()

    clock.time = 60
    look(sweep)
    assert scene.replica.resizer.lost_nodes == {"node-0"}

    scene.cluster.nodes = ("node-0",)
    look(sweep)
    assert scene.replica.resizer.lost_nodes == frozenset()


def test_nobody_asks_for_nodes_where_nothing_is_resized():
    cluster = WithNodes()
    scene = Scene(resized=False)
    sweep = ResizeSweep(cluster, scene.replica.resizer, clock=Ticking())
    asked = []
    cluster.list = lambda resource, *_, **__: asked.append(resource.plural) or asyncio.sleep(0, Listing((), "1"))

    look(sweep)

    assert asked == ["resourceclaims"]
