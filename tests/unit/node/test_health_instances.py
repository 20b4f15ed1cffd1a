"""Which partition an error belongs to."""

import pytest

from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import MigInstance, MigPlacement, MigProfile
from dra_gpu.node.health_instances import STALE_SECONDS, Instances
from tests.unit.inventory.builders import GIB, gpu

FIRST, SECOND = MigPlacement(0, 0, 1), MigPlacement(0, 1, 1)
SMALL = MigProfile(0, 19, "1g.10gb", 1, 10 * GIB, 16, placements=(FIRST, SECOND))


class Node:
    """A GPU with instances: those that claims know, and those that the last look saw."""

    def __init__(self):
        self.known = {}
        self.seen = ()
        self.now = 0.0
        self.instances = Instances(self.inventory, lambda _, place: self.known.get(place), lambda: self.now)

    @property
    def gpu(self):
        return gpu(0, mig_profiles=(SMALL,), mig_instances=self.seen)

    def inventory(self):
        return Inventory(gpus={self.gpu.uuid: self.gpu})

    def find(self, gpu_instance, compute_instance=None):
        return self.instances.find(self.gpu.uuid, gpu_instance, compute_instance)


@pytest.fixture
def node():
    return Node()


def test_an_instance_that_a_claim_made_is_known_before_anybody_looks(node):
    node.known[SECOND] = MigInstance(SECOND, 7, 0, "MIG-7")

    assert node.find(7, 0) == SECOND


def test_an_administrators_instance_is_known_from_the_last_look(node):
    node.seen = (MigInstance(FIRST, 8, 0, "MIG-8"),)

    assert node.find(8) == FIRST


@pytest.mark.case("C103")
def test_what_is_nowhere_is_nothing(node):
    node.known[FIRST] = MigInstance(FIRST, 7, 0, "MIG-7")

    assert node.find(9, 0) is None
    assert node.instances.find("GPU-9", 7, 0) is None


def test_an_instance_cut_into_several_is_one_partition(node):
    node.seen = (MigInstance(FIRST, 8),)

    assert node.find(8, 3) == FIRST


def test_the_error_of_a_compute_instance_that_is_gone_is_nobodys(node):
    node.known[FIRST] = MigInstance(FIRST, 7, 0, "MIG-7")

    assert node.find(7, 1) is None


@pytest.mark.case("C103")
def test_an_instance_that_was_destroyed_is_gone_though_the_last_look_saw_it(node):
    node.seen = (MigInstance(FIRST, 7, 0, "MIG-7"),)

    node.instances.destroyed(node.gpu.uuid, FIRST)

    assert node.find(7, 0) is None
    node.known[FIRST] = MigInstance(FIRST, 7, 0, "MIG-7")
    assert node.find(7, 0) == FIRST, "a claim has made the next one there"


def test_what_an_administrator_makes_there_later_is_seen_again(node):
    node.instances.destroyed(node.gpu.uuid, FIRST)
    node.seen = (MigInstance(FIRST, 7, 0, "MIG-7"),)
    node.now = STALE_SECONDS

    assert node.find(7, 0) == FIRST
