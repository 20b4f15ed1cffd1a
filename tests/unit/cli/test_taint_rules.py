"""Which DeviceTaintRules take a GPU out of service, and what a drain does to whom."""

import msgspec
import pytest

from dra_gpu.api import cordon
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintSelector, taint_rule
from dra_gpu.api.resource_v1 import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceToleration,
    ObjectMeta,
    ResourceClaimConsumerReference,
)
from dra_gpu.cli import listing
from dra_gpu.cli.gpu_target import find, published
from dra_gpu.cli.listing import DRIVER
from dra_gpu.cli.taint_rules import Effect, held, of_gpu, plan
from tests.unit.cli.published import slices_of
from tests.unit.inventory.builders import gpu


@pytest.fixture
def target():
    return find(published(slices_of(gpu(0), gpu(1))), "node-a", "gpu-0")


def written(target, effect):
    return list(plan(target, [], effect).create)


def devices(rules):
    return sorted(rule.spec.device_selector.device for rule in rules)


@pytest.mark.case("C106")
def test_each_rule_names_driver_pool_and_device_so_that_it_touches_no_other(target):
    rules = written(target, Effect.CORDON)

    assert [rule.spec.device_selector for rule in rules] == [
        DeviceTaintSelector(DRIVER, "node-a", "gpu-0"),
        DeviceTaintSelector(DRIVER, "node-a", "gpu-0-shared"),
    ]
    assert {rule.spec.taint.effect for rule in rules} == {"NoSchedule"}
    assert {rule.metadata.annotations[cordon.GPU_ANNOTATION] for rule in rules} == {gpu(0).uuid}


@pytest.mark.case("C106")
@pytest.mark.parametrize("missing", ["driver", "pool", "device"])
def test_a_selector_that_could_match_more_is_not_written(missing):
    selector = msgspec.structs.replace(DeviceTaintSelector(DRIVER, "node-a", "gpu-0"), **{missing: ""})

    with pytest.raises(ValueError, match="must name driver, pool and device"):
        taint_rule(ObjectMeta(name="r"), selector, DeviceTaint("key", "NoExecute"))


def test_cordoning_again_writes_nothing(target):
    again = plan(target, written(target, Effect.CORDON), Effect.CORDON)

    assert (again.create, again.change) == ((), ())
    assert len(again.rules) == 2


def test_what_is_missing_of_a_cordon_is_completed(target):
    first, _second = written(target, Effect.CORDON)

    completed = plan(target, [first], Effect.CORDON)

    assert devices(completed.create) == ["gpu-0-shared"]
    assert completed.keep == (first,)


def test_a_drain_makes_the_rules_of_a_cordon_stronger(target):
    drained = plan(target, written(target, Effect.CORDON), Effect.DRAIN)

    assert drained.create == ()
    assert {rule.spec.taint.effect for rule in drained.change} == {"NoExecute"}


def test_cordoning_a_drained_gpu_does_not_make_it_weaker(target):
    again = plan(target, written(target, Effect.DRAIN), Effect.CORDON)

    assert (again.create, again.change) == ((), ())


def test_rules_of_a_board_that_was_replaced_are_of_the_new_one_from_then_on(target):
    rules = written(target, Effect.CORDON)
    before = [
        msgspec.structs.replace(
            rule, metadata=msgspec.structs.replace(rule.metadata, annotations={cordon.GPU_ANNOTATION: "GPU-old"})
        )
        for rule in rules
    ]

    changed = plan(target, before, Effect.CORDON).change

    assert {rule.metadata.annotations[cordon.GPU_ANNOTATION] for rule in changed} == {gpu(0).uuid}
    assert {rule.metadata.name for rule in changed} == {rule.metadata.name for rule in rules}


def test_rules_of_other_gpus_and_of_other_people_are_none_of_its_own(target):
    other = find(published(slices_of(gpu(0), gpu(1))), "node-a", "gpu-1")
    foreign = taint_rule(
        ObjectMeta(name="by-hand"), DeviceTaintSelector(DRIVER, "node-a", "gpu-0"), DeviceTaint("k", "NoExecute")
    )

    assert of_gpu(target, [*written(other, Effect.DRAIN), foreign]) == []


def test_rules_of_devices_that_are_not_published_any_more_go_with_the_gpu(target):
    vanished = taint_rule(
        ObjectMeta(name="r", labels={cordon.CORDON_LABEL: "true"}, annotations={cordon.GPU_ANNOTATION: gpu(0).uuid}),
        DeviceTaintSelector(DRIVER, "node-a", "gpu-0-mig-3g40gb-9-0"),
        DeviceTaint(cordon.TAINT_KEY, "NoSchedule"),
    )

    assert of_gpu(target, [vanished]) == [vanished]


def test_a_name_is_an_objects_however_long_the_nodes_is():
    long = ".".join(["n" * 63] * 3 + ["n" * 60])
    [first, second] = written(find(published(slices_of(gpu(0), node=long)), long, "gpu-0"), Effect.CORDON)

    assert max(len(first.metadata.name), len(second.metadata.name)) <= 253
    assert first.metadata.name != second.metadata.name


def claim(name, *devices, tolerations=(), pods=("pod",), pool="node-a", driver=DRIVER):
    results = [
        DeviceRequestAllocationResult("r", driver, pool, device, tolerations=list(tolerations)) for device in devices
    ]
    return listing.Claim(
        metadata=ObjectMeta(name=name, namespace="team", uid=f"uid-{name}"),
        status=listing._Status(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=results)),
            reserved_for=[ResourceClaimConsumerReference("pods", pod, f"uid-{pod}") for pod in pods],
        ),
    )


def test_claims_on_any_device_but_the_watching_one_are_evicted_with_their_pods(target):
    claims = [
        claim("b", "gpu-0-shared", pods=("one", "two")),
        claim("a", "gpu-0"),
        claim("watch", "gpu-0-monitor"),
        claim("elsewhere", "gpu-1"),
        claim("other-node", "gpu-0", pool="node-b"),
        claim("other-driver", "gpu-0", driver="x.example.com"),
    ]

    found = held(target, claims)

    assert [(one.shown, one.devices, one.pods, one.fate) for one in found] == [
        ("team/a", ("gpu-0",), ("pod",), "evicted"),
        ("team/b", ("gpu-0-shared",), ("one", "two"), "evicted"),
    ]


@pytest.mark.case("C106")
@pytest.mark.parametrize(
    ("toleration", "fate", "after"),
    [
        (DeviceToleration(operator="Exists", effect="NoExecute"), "stays", 0),
        (DeviceToleration(key=cordon.TAINT_KEY, operator="Exists", effect="NoExecute"), "stays", 0),
        (DeviceToleration(key=cordon.TAINT_KEY, effect="NoExecute"), "stays", 0),
        (DeviceToleration(operator="Exists", effect="NoExecute", toleration_seconds=30), "evicted later", 30),
        (DeviceToleration(operator="Exists", effect="NoExecute", toleration_seconds=-1), "evicted", 0),
        (DeviceToleration(operator="Exists"), "evicted", 0),  # without the effect it lets a pod in and keeps none
        (DeviceToleration(key="gpu.nvidia.com/xid", operator="Exists", effect="NoExecute"), "evicted", 0),
        (DeviceToleration(key=cordon.TAINT_KEY, value="other", effect="NoExecute"), "evicted", 0),
    ],
)
def test_a_toleration_of_the_effect_alone_keeps_a_pod_from_being_evicted(target, toleration, fate, after):
    [found] = held(target, [claim("job", "gpu-0", tolerations=[toleration])])

    assert (found.fate, found.after_seconds) == (fate, after)


def test_one_device_without_toleration_is_enough_to_end_the_pod(target):
    tolerated = claim("job", "gpu-0", tolerations=[DeviceToleration(operator="Exists", effect="NoExecute")])
    plain = claim("job", "gpu-0-shared")
    results = [*tolerated.status.allocation.devices.results, *plain.status.allocation.devices.results]
    both = msgspec.structs.replace(
        tolerated,
        status=msgspec.structs.replace(
            tolerated.status, allocation=AllocationResult(devices=DeviceAllocationResult(results=results))
        ),
    )

    assert held(target, [both])[0].fate == "evicted"
