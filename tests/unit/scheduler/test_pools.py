"""Which pools a node sees, in which order, and which of them give nothing."""

from dra_gpu.api.resource_v1 import ResourceSlice
from dra_gpu.scheduler import pools
from dra_gpu.scheduler.allocator import Failure
from dra_gpu.scheduler.model import Node
from dra_gpu.scheduler.pools import PoolState
from tests.unit.scheduler.builders import Cluster, claim, decode, device, published, request


def gather(*slices, node="node-0"):
    return pools.gather(decode(slices, list[ResourceSlice]), Node(node, {"zone": "a", "slots": "8"}))


def names(pool):
    return [candidate.id.device for candidate in pool.candidates]


def selecting(operator, *values, key="zone"):
    requirement = {"key": key, "operator": operator, "values": list(values)}
    return {"nodeName": "", "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}


def test_slices_are_tried_by_name_and_devices_as_they_are_listed():
    later = published(device("c"), name="1", count=2)
    first = published(device("b"), device("a"), name="0", count=2)
    (pool,) = gather(later, first)
    assert names(pool) == ["b", "a", "c"]


def test_only_the_newest_generation_counts():
    (pool,) = gather(published(device("new"), generation=2), published(device("old"), generation=1))
    assert names(pool) == ["new"]


def test_a_pool_with_slices_missing_gives_nothing_and_says_so():
    (pool,) = gather(published(device("a"), count=2))
    assert (pool.state, names(pool)) == (PoolState.INCOMPLETE, [])
    refused = Cluster([published(device("a"), count=2)]).refused(claim())
    assert refused.failure is Failure.NO_FIT
    assert "1 of 2 slices" in next(iter(refused.pools.values()))


def test_a_pool_whose_newer_generation_is_elsewhere_is_not_seen_at_all():
    newer = published(device("new"), name="newer", generation=2, nodeName="node-1")
    assert gather(published(device("old"), count=2), newer) == []


def test_a_device_name_twice_makes_the_pool_invalid():
    (pool,) = gather(published(device("a"), name="0", count=2), published(device("a"), name="1", count=2))
    assert (pool.state, pool.problem) == (PoolState.INVALID, "duplicate device name a")


def test_a_counter_set_that_does_not_exist_makes_the_pool_invalid():
    stray = device("a", consumesCounters=[{"counterSet": "gpu-9", "counters": {"memory": {"value": "1Gi"}}}])
    assert Cluster([published(stray)]).refused(claim()).failure is Failure.INVALID_POOL


def test_asking_for_all_devices_while_a_pool_is_being_written_gives_the_pod_up():
    refused = Cluster([published(device("a"), count=2)]).refused(claim(request(allocationMode="All")))
    assert refused.failure is Failure.INVALID_INPUT
    assert "the driver is writing it" in refused.message


def test_slices_of_other_nodes_are_not_seen():
    assert gather(published(device("a"), nodeName="node-1")) == []


def test_slices_for_all_nodes_and_for_nodes_with_a_label_are_seen():
    assert gather(published(device("a"), nodeName="", allNodes=True))
    for found in (
        selecting("In", "a"),
        selecting("NotIn", "b"),
        selecting("Exists"),
        selecting("Gt", "7", key="slots"),
    ):
        assert gather(published(device("a"), **found))
    for absent in (
        selecting("In", "b"),
        selecting("DoesNotExist"),
        selecting("Lt", "8", key="slots"),
        selecting("Odd"),
    ):
        assert not gather(published(device("a"), **absent))


def test_a_slice_may_leave_the_choice_of_nodes_to_its_devices():
    devices = [device("here", nodeName="node-0"), device("there", nodeName="node-1")]
    cluster = Cluster([published(*devices, nodeName="", perDeviceNodeSelection=True)])
    assert cluster.devices(claim()) == ["here"]
    assert str(cluster.reason("there", claim())) == "does not reach this node"
