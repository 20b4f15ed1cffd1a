from pathlib import Path

import pytest

from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.apiserver.resources import Node, NodeStatus
from dra_gpu.kubelet.foreign import ForeignRegistration
from dra_gpu.node.masters import find_master

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
