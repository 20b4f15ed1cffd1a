"""MIG: partitions beside shares and whole GPUs, made when a pod starts and gone when it has gone."""

import re

import pytest

from dra_gpu_sim import checker
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim_template, device_request, pod
from tests.e2e.harness.partitions import SHARED_MIG_CLASS, instances_of, of_parent, of_profile, partition_request
from tests.e2e.harness.shares import (
    CLIENT,
    GIB,
    SHARED_CLASS,
    Workloads,
    conditions,
    device_status,
    on_gpu,
    share_request,
    uuid_of_gpu,
)
from tests.e2e.harness.slices import watch_slices
from tests.e2e.harness.waiting import wait_until

#: SMs of an H100's partitions (Source: nvidia-smi mig -lgip).
SMS = {"1g.10gb": 16, "2g.20gb": 32, "3g.40gb": 60, "4g.40gb": 64}
GPU, INDEX = "gpu-2", 2
ROUNDS, AT_ONCE = 50, 10


@pytest.fixture
def workloads(driver: DriverOnNode, namespace: TestNamespace) -> Workloads:
    """The client pods of the test."""
    return Workloads(driver, namespace)


@pytest.fixture
def uuid(driver: DriverOnNode) -> str:
    """The GPU that is cut into partitions."""
    return uuid_of_gpu(driver, GPU)


@pytest.mark.budget(25)
def test_partitions_of_several_sizes_run_beside_shares_and_a_whole_gpu_and_no_slice_is_written(
    driver: DriverOnNode, namespace: TestNamespace, workloads: Workloads, uuid: str
) -> None:
    profiles = {"large": "4g.40gb", "middle": "2g.20gb", "small": "1g.10gb"}
    requests = {name: partition_request(profile, uuid) for name, profile in profiles.items()}
    requests |= {"share": share_request(uuid_of_gpu(driver, "gpu-3")), "whole": device_request()}
    with watch_slices(driver.cluster.api, driver.cluster.node.name) as written:
        namespace.create(*(claim_template(name, request) for name, request in requests.items()))
        # The large one first: what no static order of places can do is to keep room for it.
        namespace.create(pod("large", CLIENT, templates={"gpu": "large"}))
        namespace.wait_running("large")
        namespace.create(*(pod(name, CLIENT, templates={"gpu": name}) for name in requests if name != "large"))
        namespace.wait_running(*requests)
        clients = workloads.all_attached(tuple(requests))

        assert instances_of(driver.gpus) == {INDEX: sorted(profiles.values())}
        assert {name: clients[name].sms for name in profiles} == {name: SMS[of] for name, of in profiles.items()}
        assert (clients["share"].mps, clients["whole"].sms) == (True, 132)
        assert workloads.tell("small", "alloc 12G") == "CUDA_ERROR_OUT_OF_MEMORY 2"
        assert workloads.tell("large", "alloc 12G").startswith("ok")
        namespace.delete_pod("large")
        namespace.wait_gone("large")
        wait_until("4g.40gb destroyed", lambda: instances_of(driver.gpus) == {INDEX: ["1g.10gb", "2g.20gb"]}, 10.0)

    assert written.summary() == []


@pytest.mark.budget(15)
def test_a_container_sees_its_partition_and_no_other_and_the_claim_says_that_the_hardware_keeps_it(
    driver: DriverOnNode, namespace: TestNamespace, uuid: str
) -> None:
    namespace.create(claim_template("small", partition_request("1g.10gb", uuid)))
    namespace.create(*(pod(name, templates={"gpu": "small"}) for name in ("one", "two")))
    namespace.wait_running("one", "two")

    for name in ("one", "two"):
        namespace.report(name)
    seen = {name: re.findall(r"MIG (\S+) .*UUID: (MIG-[^)]+)", namespace.log(name)) for name in ("one", "two")}
    exist = {ci.uuid for gi in checker.snapshot(driver.gpus.root).gpus[INDEX].instances for ci in gi.compute_instances}

    assert [[profile for profile, _ in found] for found in seen.values()] == [["1g.10gb"], ["1g.10gb"]]
    assert {mig for found in seen.values() for _, mig in found} == exist
    device = device_status(namespace, "one")
    assert conditions(device)["Enforced"][0] == "True"
    assert device["data"]["capacities"]["memory"]["mechanism"] == "hardware"


@pytest.mark.budget(30)
def test_a_gpu_and_its_partitions_exclude_each_other(driver: DriverOnNode, namespace: TestNamespace, uuid: str) -> None:
    whole = device_request(selector=on_gpu(uuid))
    for name, request in {
        "part": partition_request("1g.10gb", uuid),
        "overlapping": partition_request("7g.80gb", uuid),
        "whole": whole,
        "share": share_request(uuid),
    }.items():
        namespace.create(claim_template(name, request))
    namespace.create(pod("part", templates={"gpu": "part"}))
    namespace.wait_running("part")
    namespace.create(*(pod(name, templates={"gpu": name}) for name in ("overlapping", "whole", "share")))
    namespace.wait_unschedulable("overlapping", "whole", "share")
    namespace.delete_pod("overlapping")
    namespace.delete_pod("share")

    namespace.delete_pod("part")

    namespace.wait_running("whole")
    gpu = checker.snapshot(driver.gpus.root).gpus[INDEX]
    assert (gpu.instances, gpu.mig_current) == ((), False)
    namespace.create(pod("late", templates={"gpu": "part"}))
    namespace.wait_unschedulable("late")


@pytest.mark.budget(20)
def test_two_pods_have_half_of_one_partition_each(
    driver: DriverOnNode, namespace: TestNamespace, workloads: Workloads, uuid: str
) -> None:
    chosen = f"{of_profile('3g.40gb')} && {of_parent(uuid)}"
    half = {"computePercent": "50", "memory": "16Gi"}
    namespace.create(claim_template("half", device_request("gpu", SHARED_MIG_CLASS, selector=chosen, capacity=half)))
    namespace.create(*(pod(name, CLIENT, templates={"gpu": "half"}) for name in ("one", "two")))
    namespace.wait_running("one", "two")
    clients = workloads.all_attached(("one", "two"))

    assert instances_of(driver.gpus) == {INDEX: ["3g.40gb"]}
    assert [(one.mps, one.sms, one.pinned_limit) for one in clients.values()] == [(True, 30, 16 * GIB)] * 2
    assert workloads.tell("one", "alloc 17G") == "CUDA_ERROR_OUT_OF_MEMORY 2"
    assert checker.snapshot(driver.gpus.root).gpus[INDEX].compute_mode == 0
    assert conditions(device_status(namespace, "one"))["Enforced"] == ("False", "Cooperative")

    namespace.delete_pod("one")
    namespace.wait_gone("one")
    assert workloads.tell("two", "alloc 1G").startswith("ok")
    namespace.delete_pod("two")
    namespace.wait_gone("two")
    wait_until("the partition is gone with its last share", lambda: instances_of(driver.gpus) == {}, 10.0)


@pytest.mark.budget(120)
def test_fifty_rounds_of_coming_and_going_leave_the_hardware_as_it_was(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    before = checker.snapshot(driver.gpus.root)
    half = {"computePercent": "50", "memory": "16Gi"}
    kinds = [
        *(partition_request(profile) for profile in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")),
        device_request(),
        device_request("gpu", SHARED_CLASS, capacity=half),
        device_request("gpu", SHARED_MIG_CLASS, capacity=half),
    ]
    for number, request in enumerate(kinds):
        namespace.create(claim_template(f"kind-{number}", request))
    names = [f"round-{number}" for number in range(ROUNDS)]
    for first in range(0, ROUNDS, AT_ONCE):
        now = names[first : first + AT_ONCE]
        namespace.create(*(pod(name, templates={"gpu": f"kind-{int(name[6:]) % len(kinds)}"}) for name in now))
        for name in now:  # those of the next wave arrive while these leave
            namespace.wait_running(name)
            namespace.delete_pod(name, grace_seconds=0)
    namespace.clean()

    wait_until("the hardware is as it was", lambda: checker.snapshot(driver.gpus.root) == before, 20.0)
