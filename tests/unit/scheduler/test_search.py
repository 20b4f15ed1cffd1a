"""How devices are chosen, and what is said when they are not."""

import pytest

from dra_gpu.scheduler import explanation
from dra_gpu.scheduler.allocator import Failure
from tests.unit.scheduler.builders import (
    CLASSES,
    Cluster,
    claim,
    device,
    device_class,
    node_with_gpus,
    published,
    request,
    share,
)


def pool(*groups):
    """Devices `d0`, `d1`, … with the NVLink groups named."""
    devices = [device(f"d{index}", attributes={"group": {"string": group}}) for index, group in enumerate(groups)]
    return Cluster([published(*devices)])


def constraint(kind, attribute="gpu.nvidia.com/group", *requests):
    return {kind: attribute, "requests": list(requests)}


def test_the_first_free_device_in_order_is_taken():
    cluster = pool("a", "a")
    assert [cluster.devices(claim(name=name)) for name in "xy"] == [["d0"], ["d1"]]


def test_a_choice_that_leaves_a_later_request_without_device_is_taken_back():
    selects_d0 = [{"cel": {"expression": 'device.attributes["gpu.nvidia.com"].group == "a"'}}]
    asked = claim(request(name="any"), request(name="a", selectors=selects_d0))
    assert pool("a", "b").devices(asked) == ["d1", "d0"]


def test_claims_of_one_pod_are_decided_together():
    selects_d0 = [{"cel": {"expression": 'device.attributes["gpu.nvidia.com"].group == "a"'}}]
    assert pool("a", "b").devices(claim(name="x"), claim(request(selectors=selects_d0), name="y")) == ["d1", "d0"]


def test_a_pair_that_must_match_skips_a_device_without_partner():
    asked = claim(request(count=2), constraints=[constraint("matchAttribute")])
    assert pool("a", "b", "b").devices(asked) == ["d1", "d2"]


def test_a_pair_that_must_differ_skips_an_equal_device():
    asked = claim(request(count=2), constraints=[constraint("distinctAttribute")])
    assert pool("a", "a", "b").devices(asked) == ["d0", "d2"]


def test_a_constraint_on_some_requests_leaves_the_others_alone():
    asked = claim(
        request(name="x"), request(name="y"), request(name="z"),
        constraints=[constraint("matchAttribute", "gpu.nvidia.com/group", "y", "z")],
    )  # fmt: skip
    assert pool("a", "b", "b").devices(asked) == ["d0", "d1", "d2"]


def test_a_device_without_the_attribute_satisfies_no_constraint_on_it():
    cluster = pool("a")
    asked = claim(constraints=[constraint("matchAttribute", "gpu.nvidia.com/nothing")])
    assert str(cluster.reason("d0", asked)) == "constraint 0 on attribute gpu.nvidia.com/nothing excludes it"


def test_the_first_alternative_that_fits_is_taken():
    cluster = Cluster(node_with_gpus(1))
    either = {
        "name": "r",
        "firstAvailable": [
            {"name": "whole", "deviceClassName": "gpu"},
            {"name": "part", "deviceClassName": "shared", "capacity": {"requests": {"computePercent": "20"}}},
        ],
    }
    cluster.devices(claim(share(), name="before"))
    assert cluster.devices(claim(either)) == ["gpu-0-shared"]
    assert cluster.claims[-1]["status"]["allocation"]["devices"]["results"][0]["request"] == "r/part"


def test_all_devices_means_none_may_be_missing():
    cluster = pool("a", "b")
    everything = claim(request(allocationMode="All"))
    assert cluster.devices(everything) == ["d0", "d1"]
    assert cluster.refused(everything).failure is Failure.NO_FIT


def test_admin_access_sees_a_gpu_in_use_and_takes_nothing():
    cluster = Cluster(node_with_gpus(1))
    cluster.devices(claim())
    watching = claim(request("monitor", adminAccess=True))
    assert cluster.devices(watching) == cluster.devices(watching) == ["gpu-0-monitor"]


def test_admin_access_to_a_view_with_counters_fits_only_while_the_gpu_is_free():
    cluster = Cluster(node_with_gpus(1))
    asked = claim(request(adminAccess=True))
    assert cluster.devices(asked) == ["gpu-0"]
    cluster.devices(claim())
    assert "counter memory of gpu-0" in str(cluster.reason("gpu-0", asked))


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_keeps_everybody_out_who_does_not_tolerate_it_admin_access_too(effect):
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect}
    cluster = Cluster([published(device("d0", taints=[taint]))])
    for asked in (claim(), claim(request(adminAccess=True))):
        assert str(cluster.reason("d0", asked)) == f"taint gpu.nvidia.com/xid=79:{effect} is not tolerated"
    assert cluster.devices(claim(request(tolerations=[{"key": "gpu.nvidia.com/xid", "operator": "Exists"}]))) == ["d0"]


def test_a_taint_that_is_only_a_notice_keeps_nobody_out():
    assert Cluster([published(device("d0", taints=[{"key": "k", "effect": "None"}]))]).devices(claim()) == ["d0"]


def test_an_overdrawn_counter_keeps_every_device_of_the_pool_from_use_that_has_counters():
    slices = node_with_gpus(2)
    cluster = Cluster(slices)
    cluster.devices(claim())
    slices[0]["spec"]["sharedCounters"][0]["counters"]["memory"]["value"] = "40Gi"
    assert str(cluster.reason("gpu-1", claim())) == "counter memory of gpu-0: 0 wanted, -40Gi free"


def test_who_holds_a_device_is_said():
    cluster = pool("a")
    cluster.devices(claim(name="training"))
    refused = cluster.refused(claim(name="next"))
    assert explanation.sentence(refused) == "cannot allocate all claims; request r: in use by ml/training"


def test_a_class_that_does_not_exist_gives_the_pod_up_and_the_others_are_named():
    refused = pool("a").refused(claim(request("tpu")))
    assert refused.failure is Failure.INVALID_INPUT
    assert refused.message.endswith("device class tpu does not exist; create it or name one of: gpu, monitor, shared")


def test_a_selector_that_fails_on_a_device_gives_the_pod_up_and_says_how_to_write_it():
    selector = [{"cel": {"expression": 'device.attributes["gpu.nvidia.com"].model == "H100"'}}]
    refused = pool("a").refused(claim(request(selectors=selector)))
    assert refused.failure is Failure.INVALID_INPUT
    assert "selector #0 on device gpu.nvidia.com/node-0/d0" in refused.message
    assert ".?name.orValue" in refused.message


def test_a_claim_may_have_thirty_two_devices():
    cluster = pool(*"a" * 40)
    assert len(cluster.devices(claim(request(count=32)))) == 32
    refused = cluster.refused(claim(request(count=33)))
    assert (refused.failure, refused.steps) == (Failure.INVALID_INPUT, 0)


def test_one_device_more_than_there_are_is_given_up_after_a_bounded_number_of_steps():
    refused = pool(*"a" * 30).refused(claim(request(count=31)), max_steps=2000)
    assert (refused.failure, refused.steps) == (Failure.TOO_MANY_STEPS, 2001)


def test_configs_of_the_class_come_first_and_those_for_every_request_name_none():
    kinds = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": kind}}} for kind in ("Class", "Claim")]
    with_config = device_class("gpu", "gpu")
    with_config["spec"]["config"] = kinds[:1]
    asked = claim(request(name="a"), request("monitor", name="b"))
    asked["spec"]["devices"]["config"] = [kinds[1] | {"requests": ["a", "b"]}, kinds[1] | {"requests": ["b"]}]
    cluster = Cluster(node_with_gpus(1), [with_config, *CLASSES[1:]])
    allocation = cluster.decide(asked).allocations[0]
    assert [(config.source, config.requests) for config in allocation.devices.config] == [
        ("FromClass", ["a"]),
        ("FromClaim", []),
        ("FromClaim", ["b"]),
    ]


def test_an_allocation_is_pinned_to_the_node_of_its_devices():
    allocation = pool("a").decide(claim()).allocations[0]
    (term,) = allocation.node_selector.node_selector_terms
    assert [(field.key, field.operator, field.values) for field in term.match_fields] == [
        ("metadata.name", "In", ["node-0"])
    ]
