"""Fractions of a GPU: from a claim through unmodified scheduler and kubelet to what the hardware lets a client do."""

import sys
from collections.abc import Callable

import pytest

from dra_gpu_sim import checker
from tests.e2e.harness import newer_version
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Container, claim_template, device_request, first_available, pod
from tests.e2e.harness.shares import (
    CLIENT,
    GIB,
    REQUIRED,
    SMS_OF_A_FIFTH,
    Workloads,
    conditions,
    device_status,
    memory_mechanism,
    on_gpu,
    share_request,
    uuid_of_gpu,
)
from tests.e2e.harness.waiting import wait_until

FIVE = ("one", "two", "three", "four", "five")
NEWER = (sys.executable, newer_version.__file__)
#: A client whose container outlives it until somebody lets it go.
LEAVES_LATER = Container(
    script="mkfifo /tmp/commands; cuda-client 0<>/tmp/commands; until [ -e /tmp/go ]; do sleep 0.1; done; exit 1"
)
GPU, INDEX, OTHER_GPU = "gpu-5", 5, "gpu-6"


@pytest.fixture
def workloads(driver: DriverOnNode, namespace: TestNamespace) -> Workloads:
    """The client pods of the test."""
    return Workloads(driver, namespace)


@pytest.fixture
def uuid(driver: DriverOnNode) -> str:
    """The one GPU that the claims of the test ask for."""
    return uuid_of_gpu(driver, GPU)


@pytest.fixture
def start(namespace: TestNamespace, uuid: str) -> Callable[..., None]:
    """Creates pods with a client each that ask for a fifth of the GPU and 10 GiB; the template is made before."""
    namespace.create(claim_template("a-fifth", share_request(uuid)))

    def create(*names: str) -> None:
        namespace.create(*(pod(name, CLIENT, templates={"gpu": "a-fifth"}) for name in names))

    return create


@pytest.fixture
def five(namespace: TestNamespace, workloads: Workloads, start: Callable[..., None]) -> dict[str, checker.Client]:
    """Five pods that run and have a fifth of one GPU each; pod name -> its client as the hardware sees it."""
    start(*FIVE)
    namespace.wait_running(*FIVE)
    return workloads.all_attached(FIVE)


@pytest.mark.budget(15)
def test_five_pods_have_a_fifth_of_one_gpu_each_and_the_hardware_holds_each_to_it(
    driver: DriverOnNode, workloads: Workloads, five: dict[str, checker.Client]
) -> None:
    use = checker.uses(driver.gpus.root)[INDEX]

    assert {client.pid for client in use.clients} == {client.pid for client in five.values()}
    assert len({client.namespace for client in use.clients}) == 5
    for client in use.clients:
        assert (client.mps, client.sm_percent, client.sms) == (True, 20, SMS_OF_A_FIFTH)
        assert client.memory_limit == 10 * GIB
        assert (client.cgroup_limit is not None) == (memory_mechanism() == "cgroup")
    assert (use.sm_percent, use.memory_limits) == (100, 50 * GIB)
    assert workloads.tell("one", "alloc 9G").startswith("ok")
    assert workloads.tell("one", "alloc 2G") == "CUDA_ERROR_OUT_OF_MEMORY 2"


@pytest.mark.budget(10)
def test_each_claim_says_what_enforces_what_it_has_and_how_much_that_is(
    namespace: TestNamespace, uuid: str, start: Callable[..., None]
) -> None:
    start("one", "two")
    namespace.wait_running("one", "two")

    said = {name: device_status(namespace, name) for name in ("one", "two")}

    memory = memory_mechanism()
    for name, device in said.items():
        (result,) = namespace.claim_of(name)["status"]["allocation"]["devices"]["results"]
        key = ("driver", "pool", "device", "shareID")
        assert {part: device[part] for part in key} == {part: result[part] for part in key}
        told = conditions(device)
        assert {name: told[name] for name in ("Ready", "Enforced")} == {
            "Ready": ("True", "Prepared"),
            "Enforced": ("True", "LimitsBind") if memory == "cgroup" else ("False", "Cooperative"),
        }
        data = device["data"]
        assert (data["gpu"], data["view"], data["strategy"]) == (uuid, "shared", "MPS")
        assert data["multiprocessors"] == SMS_OF_A_FIFTH
        assert data["capacities"]["computePercent"] == {
            "mechanism": "namespace",
            "requested": "20",
            "effective": "20",
            "scope": "process",
            "lifted": False,
        }
        assert data["capacities"]["memory"] == {
            "mechanism": memory,
            "requested": "10Gi",
            "effective": "10Gi",
            "scope": "pod" if memory == "cgroup" else "process",
            "lifted": memory != "cgroup",
        }
        assert data["capacities"]["clients"]["mechanism"] == "accounting"
    assert said["one"]["shareID"] != said["two"]["shareID"]


@pytest.mark.budget(20)
@pytest.mark.usefixtures("five")
def test_a_sixth_waits_until_one_leaves_and_a_whole_gpu_until_all_have(
    namespace: TestNamespace, workloads: Workloads, uuid: str, start: Callable[..., None]
) -> None:
    namespace.create(
        claim_template("whole", device_request(selector=on_gpu(uuid))),
        pod("greedy", CLIENT, templates={"gpu": "whole"}),
    )
    start("six")
    namespace.wait_unschedulable("six", "greedy")

    namespace.delete_pod("three")

    namespace.wait_running("six")
    assert workloads.attached("six").sms == SMS_OF_A_FIFTH
    assert "nodeName" not in namespace.pod("greedy")["spec"]
    for name in ("one", "two", "four", "five", "six"):
        namespace.delete_pod(name)
    namespace.wait_running("greedy")
    assert not workloads.attached("greedy").mps


@pytest.mark.budget(15)
def test_a_client_that_asks_for_more_memory_is_refused_and_the_others_go_on(
    workloads: Workloads, five: dict[str, checker.Client]
) -> None:
    for name in FIVE:
        assert workloads.tell(name, "alloc 5G").startswith("ok")

    assert workloads.tell("two", "alloc 20G") == "CUDA_ERROR_OUT_OF_MEMORY 2"

    after = workloads.all_attached(FIVE)
    assert {name: client.pid for name, client in after.items()} == {name: client.pid for name, client in five.items()}
    assert all(client.memory == five[name].memory + 5 * GIB for name, client in after.items())
    assert workloads.tell("two", "alloc 1G").startswith("ok")


@pytest.mark.budget(10)
def test_a_claim_takes_a_whole_gpu_while_one_is_free_and_else_a_share(
    driver: DriverOnNode, namespace: TestNamespace, workloads: Workloads, uuid: str
) -> None:
    whole = device_request("whole", selector=on_gpu(uuid))
    other = uuid_of_gpu(driver, OTHER_GPU)
    either = first_available("gpu", whole, share_request(other, "fifth"))
    namespace.create(claim_template("either", either), pod("first", CLIENT, templates={"gpu": "either"}))
    namespace.wait_running("first")

    namespace.create(pod("second", CLIENT, templates={"gpu": "either"}))
    namespace.wait_running("second")

    first, second = workloads.attached("first"), workloads.attached("second")
    assert (first.gpu, first.mps, first.sm_percent, first.memory_limit) == (INDEX, False, 100, None)
    assert (second.gpu, second.mps, second.sm_percent, second.memory_limit) == (INDEX + 1, True, 20, 10 * GIB)
    results = [namespace.claim_of(name)["status"]["allocation"]["devices"]["results"] for name in ("first", "second")]
    assert [[(one["request"], one["device"]) for one in each] for each in results] == [
        [("gpu/whole", GPU)],
        [("gpu/fifth", f"{OTHER_GPU}-shared")],
    ]


@pytest.mark.budget(20)
def test_an_upgrade_of_the_node_plugin_leaves_all_five_clients_as_they_are(
    driver: DriverOnNode, namespace: TestNamespace, workloads: Workloads, five: dict[str, checker.Client], uuid: str
) -> None:
    containers = {name: namespace.container_ids(name) for name in FIVE}
    daemon = driver.mps.daemon_pid(uuid)
    old = driver.current
    assert old is not None

    driver.start(program=NEWER)
    assert old.stop(), "the old instance did not end within its grace period"
    driver.others.remove(old)

    after = checker.uses(driver.gpus.root)[INDEX].clients
    assert {client.pid for client in after} == {client.pid for client in five.values()}
    assert all((client.sms, client.memory_limit) == (SMS_OF_A_FIFTH, 10 * GIB) for client in after)
    assert driver.mps.daemon_pid(uuid) == daemon
    assert {name: namespace.container_ids(name) for name in FIVE} == containers
    assert all(workloads.tell(name, "alloc 1G").startswith("ok") for name in FIVE)


@pytest.mark.budget(15)
def test_the_mps_service_is_killed_and_comes_back_without_harm_to_any_client(
    driver: DriverOnNode, namespace: TestNamespace, workloads: Workloads, uuid: str, start: Callable[..., None]
) -> None:
    start("one", "two")
    namespace.wait_running("one", "two")
    before, daemon = workloads.all_attached(("one", "two")), driver.mps.daemon_pid(uuid)

    driver.mps.kill_service()
    start("three")

    namespace.wait_running("three")
    assert workloads.attached("three").sms == SMS_OF_A_FIFTH
    assert workloads.all_attached(("one", "two")) == before
    assert driver.mps.daemon_pid(uuid) == daemon


@pytest.mark.budget(30)
def test_a_killed_control_daemon_is_started_again_its_claims_are_told_and_the_other_gpus_clients_live(
    driver: DriverOnNode, namespace: TestNamespace, workloads: Workloads, uuid: str
) -> None:
    other = uuid_of_gpu(driver, OTHER_GPU)
    namespace.create(
        claim_template("here", share_request(uuid)),
        claim_template("there", share_request(other)),
        pod("hit", LEAVES_LATER, templates={"gpu": "here"}, restart="OnFailure"),
        pod("spared", CLIENT, templates={"gpu": "there"}, restart="OnFailure"),
    )
    namespace.wait_running("hit", "spared")
    before = workloads.all_attached(("hit", "spared"))
    spared = namespace.container_ids("spared")

    killed = driver.mps.kill_daemon(uuid)

    # It is told once the daemon is there again with its shares. A container that starts before finds no MPS.
    told = namespace.wait_event(namespace.claim_of("hit")["metadata"]["name"], "MpsDaemonEnded")
    assert driver.mps.daemon_pid(uuid) not in {None, killed}
    driver.cluster.kubectl("exec", "-n", namespace.name, "hit", "--", "touch", "/tmp/go")
    wait_until("the container started again", lambda: namespace.container_ids("hit")["main"][1] == 1, 100.0)
    again = workloads.attached("hit")
    assert (again.sms, again.memory_limit) == (SMS_OF_A_FIFTH, 10 * GIB)
    assert again.pid != before["hit"].pid
    assert workloads.attached("spared") == before["spared"]
    assert namespace.container_ids("spared") == spared
    assert uuid in told
    assert not namespace.events(namespace.claim_of("spared")["metadata"]["name"], "MpsDaemonEnded")


@pytest.mark.budget(10)
def test_a_gpu_that_is_shared_no_more_is_as_it_was_before(
    driver: DriverOnNode, namespace: TestNamespace, workloads: Workloads, uuid: str, start: Callable[..., None]
) -> None:
    before = checker.snapshot(driver.gpus.root).gpus[INDEX]
    start("one")
    namespace.wait_running("one")
    workloads.attached("one")
    assert checker.snapshot(driver.gpus.root).gpus[INDEX] != before

    namespace.delete_pod("one")
    namespace.wait_gone("one")

    assert checker.snapshot(driver.gpus.root).gpus[INDEX] == before
    assert not checker.snapshot(driver.gpus.root).limits
    assert driver.mps.daemon_pid(uuid) is None


@pytest.mark.budget(10)
def test_required_limits_are_kept_where_the_node_can_and_else_refused_with_the_reason(
    namespace: TestNamespace, workloads: Workloads, uuid: str
) -> None:
    namespace.create(
        claim_template("strict", share_request(uuid), parameters=REQUIRED),
        pod("insists", CLIENT, templates={"gpu": "strict"}),
    )

    if memory_mechanism() == "cgroup":
        namespace.wait_running("insists")
        assert workloads.attached("insists").cgroup_limit == 10 * GIB
        assert conditions(device_status(namespace, "insists"))["Enforced"] == ("True", "LimitsBind")
    else:
        refused = namespace.wait_event("insists", "FailedPrepareDynamicResources")
        assert "enforcement Required refuses memory by `cooperative`" in refused
        assert "write enforcement: BestEffort" in refused
