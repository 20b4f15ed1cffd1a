"""Capacity moves between running workloads on a real cluster: by the scheduler, and without a restart of anything."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.api import path_of

from dra_gpu_sim import checker
from dra_gpu_sim.reach import reach
from tests.e2e.harness.components import Component, component
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Container, Json, claim, claim_template, device_request, pod
from tests.e2e.harness.resizes import GROWTH, Program, Resizes, published, starts
from tests.e2e.harness.shares import GIB, share_request, uuid_of_gpu
from tests.e2e.harness.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "resize-training-to-inference.yaml"
IDLE = Container(script="sleep 3600")
ALL, SMALL = {"computePercent": "90", "memory": "60Gi"}, {"computePercent": "20", "memory": "10Gi"}
GPU, INDEX = "gpu-3", 3
SMS = {20: 26, 25: 32, 90: 118}
BURST = 30


@pytest.fixture
def controller(driver: DriverOnNode) -> Iterator[Component]:
    """The controller, which leads."""
    with component(driver.cluster, "controller") as running:
        running.wait_logged("this replica leads")
        yield running


@pytest.fixture
def resizes(controller: Component, namespace: TestNamespace) -> Iterator[Resizes]:
    """The resizes of the test's namespace, which a controller works on until none is left."""
    assert controller.process.running() is not None
    made = Resizes(namespace)
    yield made
    made.clean()


@pytest.fixture
def training(driver: DriverOnNode, namespace: TestNamespace) -> Program:
    """A running pod with most of one GPU, and its program, which is not started yet."""
    uuid = uuid_of_gpu(driver, GPU)
    namespace.create(
        claim("training", share_request(uuid, capacity=ALL)), pod("training", IDLE, claims={"gpu": "training"})
    )
    namespace.wait_running("training")
    return Program(driver, namespace, "training")


@pytest.mark.budget(90)
def test_a_training_lends_most_of_its_gpu_to_inference_and_takes_it_back_and_nothing_is_restarted(
    driver: DriverOnNode, namespace: TestNamespace, resizes: Resizes
) -> None:
    at = ("-n", namespace.name, "-f", str(EXAMPLE))
    inference = "batch.kubernetes.io/job-name=inference"
    # Nothing else is free: only so is there anything to wait for.
    namespace.create(claim("others", device_request(count=7)), pod("others", IDLE, claims={"gpu": "others"}))
    namespace.wait_running("others")
    driver.cluster.kubectl("apply", *at)
    namespace.wait_running("training")
    program = Program(driver, namespace, "training")
    first = program.start()
    assert (first.sms, first.memory_limit) == (SMS[90], 60 * GIB)
    assert program.tell("alloc 50G").startswith("ok")
    before = starts(namespace, "training", "others")
    wait_until("three pods of inference", lambda: len(names(namespace, inference)) == 3)
    three = names(namespace, inference)
    namespace.wait_unschedulable(*three)

    resizes.want("training", **SMALL)
    waiting = resizes.wait_phase("training", "WaitingForWorkload")
    assert [one["pid"] for one in waiting["node"]["waitingFor"]] == [first.pid]
    assert bound(namespace, inference) == []

    assert program.tell("free 45G").startswith("ok")
    assert bound(namespace, inference) == []
    program.leave()
    shrunk = resizes.wait_phase("training", "Applied")
    small = program.start()
    namespace.wait_running(*three)

    assert in_force(shrunk) == SMALL
    assert (small.sms, small.memory_limit) == (SMS[20], 10 * GIB)
    assert program.tell("alloc 20G") == "CUDA_ERROR_OUT_OF_MEMORY 2"
    served = [Program(driver, namespace, name) for name in three]
    assert [(one.sms, one.memory_limit) for one in (each.start() for each in served)] == [(SMS[25], 20 * GIB)] * 3
    assert reach(driver.gpus.root)[small.gpu].sm_percent == 95
    assert reach(driver.gpus.root)[small.gpu].memory == 70 * GIB

    resizes.forget("training")
    short = resizes.wait("training", "no room yet", lambda status: status["phase"] == "InsufficientCapacity")
    assert short["free"]
    driver.cluster.kubectl("delete", "-n", namespace.name, "job/inference")
    program.leave()
    resizes.wait_gone("training")
    again = program.start()

    assert (again.sms, again.memory_limit) == (SMS[90], 60 * GIB)
    assert starts(namespace, "training", "others") == before


@pytest.mark.budget(30)
@pytest.mark.usefixtures("training")
def test_a_resize_that_cannot_fit_is_refused_and_one_that_does_not_fit_now_says_what_is_free_and_waits(
    driver: DriverOnNode, namespace: TestNamespace, resizes: Resizes
) -> None:
    resizes.want("training", computePercent="95", memory="60Gi")
    refused = resizes.wait_phase("training", "Refused")
    assert refused["message"]
    assert not resizes.growths()

    resizes.want("training", **SMALL)
    resizes.wait_phase("training", "Applied")
    beside = share_request(uuid_of_gpu(driver, GPU), capacity={"computePercent": "50", "memory": "30Gi"})
    namespace.create(claim("beside", beside), pod("beside", IDLE, claims={"gpu": "beside"}))
    namespace.wait_running("beside")
    resizes.want("training", **ALL)
    short = resizes.wait_phase("training", "InsufficientCapacity")
    assert short["free"]["computePercent"] == "30"
    assert in_force(short) == SMALL

    namespace.delete_pod("beside")
    resizes.wait_phase("training", "Applied")
    assert in_force(resizes.status("training")) == ALL


@pytest.mark.budget(60)
def test_a_growth_against_a_burst_of_pods_is_one_of_them_and_nothing_is_promised_twice(
    driver: DriverOnNode, namespace: TestNamespace, resizes: Resizes, training: Program
) -> None:
    hardware = published(driver, f"{GPU}-shared")
    resizes.want("training", **SMALL)
    resizes.wait_phase("training", "Applied")
    few = share_request(uuid_of_gpu(driver, GPU), capacity={"computePercent": "3", "memory": "2Gi"})
    namespace.create(claim_template("few", few))

    half = BURST // 2
    namespace.create(*(pod(f"burst-{number}", IDLE, templates={"gpu": "few"}) for number in range(half)))
    resizes.want("training", **ALL)
    namespace.create(*(pod(f"burst-{number}", IDLE, templates={"gpu": "few"}) for number in range(half, BURST)))
    resizes.wait("training", "decided", lambda status: status["phase"] in ("Applied", "InsufficientCapacity"))
    wait_until("all are decided", lambda: decided(namespace, BURST + 1))

    programs = [Program(driver, namespace, name) for name in bound(namespace) if name.startswith("burst")]
    for each in programs[:4]:
        each.namespace.wait_running(each.pod)
        each.start()
    training.start()
    assert promised(namespace) <= 100
    assert reach(driver.gpus.root)[INDEX].sm_percent <= 100
    assert reach(driver.gpus.root)[INDEX].memory <= checker.snapshot(driver.gpus.root).gpus[INDEX].memory

    training.leave()
    for number in range(BURST):
        namespace.delete_pod(f"burst-{number}", grace_seconds=1)
    resizes.wait_phase("training", "Applied")
    resizes.forget("training")
    resizes.wait_gone("training")
    wait_until("as much is published as the hardware has", lambda: published(driver, f"{GPU}-shared") == hardware)


@pytest.mark.budget(90)
def test_a_claim_that_gave_back_and_is_force_deleted_again_and_again_loses_nothing_and_lends_nothing_twice(
    driver: DriverOnNode, namespace: TestNamespace, resizes: Resizes, training: Program
) -> None:
    hardware = published(driver, f"{GPU}-shared")
    uuid = uuid_of_gpu(driver, GPU)
    namespace.create(claim_template("next", share_request(uuid, capacity={"computePercent": "70", "memory": "40Gi"})))
    for number in range(3):
        resizes.want("training", **SMALL)
        resizes.wait_phase("training", "Applied")
        borrower = Program(driver, namespace, f"borrower-{number}")
        namespace.create(pod(borrower.pod, IDLE, templates={"gpu": "next"}))
        namespace.wait_running(borrower.pod)
        borrower.start()
        training.start()

        namespace.delete_pod("training", grace_seconds=0)
        namespace.create(pod(f"later-{number}", IDLE, templates={"gpu": "next"}))
        namespace.wait_unschedulable(f"later-{number}")
        assert reach(driver.gpus.root)[INDEX].sm_percent <= 100

        namespace.delete_pod(borrower.pod, grace_seconds=1)
        namespace.wait_running(f"later-{number}")
        namespace.delete_pod(f"later-{number}", grace_seconds=1)
        wait_until("the claim is free", lambda: "training" not in allocated(namespace))
        namespace.create(pod("training", IDLE, claims={"gpu": "training"}))
        namespace.wait_running("training")

    resizes.forget("training")
    resizes.wait_gone("training")
    wait_until("as much is published as the hardware has", lambda: published(driver, f"{GPU}-shared") == hardware)


def names(namespace: TestNamespace, label: str) -> list[str]:
    """Return the names of pods with a label."""
    found = namespace.api.items(path_of("v1", "pods", namespace=namespace.name), labelSelector=label)
    return sorted(one["metadata"]["name"] for one in found)


def bound(namespace: TestNamespace, label: str = "") -> list[str]:
    """Return the names of pods that the scheduler has found a place for."""
    found = namespace.api.items(path_of("v1", "pods", namespace=namespace.name), labelSelector=label)
    return sorted(one["metadata"]["name"] for one in found if one["spec"].get("nodeName"))


def decided(namespace: TestNamespace, count: int) -> bool:
    """Tell whether the scheduler has looked at so many pods, whatever it found."""
    found = namespace.api.items(path_of("v1", "pods", namespace=namespace.name), labelSelector=f"!{GROWTH}")
    looked = [one for one in found if one["spec"].get("nodeName") or namespace.unschedulable(one["metadata"]["name"])]
    return len(looked) >= count


def allocated(namespace: TestNamespace) -> dict[str, int]:
    """Return what percentage of a GPU each claim of the namespace was allocated, growths among them."""
    return {
        one["metadata"]["name"]: int(result["consumedCapacity"]["computePercent"])
        for one in namespace.claims()
        for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    }


def promised(namespace: TestNamespace) -> int:
    """Return the percentages of all claims but the training's, and of the training what its limit is."""
    others = {name: amount for name, amount in allocated(namespace).items() if not name.startswith("training")}
    limit = int(Resizes(namespace).node("training")["inForce"]["computePercent"])
    return limit + sum(others.values())


def in_force(status: Json) -> dict[str, str]:
    """Return what a resize says that the claim has, as far as it is asked for here."""
    return {name: amount for name, amount in status["node"]["inForce"].items() if name in ALL}
