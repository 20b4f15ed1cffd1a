"""A pod gets its GPU: from a user's claim through the unmodified scheduler and kubelet to what a container sees."""

import json

import pytest

from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import Report, TestNamespace
from tests.e2e.harness.objects import REPORT, Container, claim, claim_template, device_request, pod
from tests.e2e.harness.slices import Json, devices_of, uuid_of
from tests.e2e.harness.waiting import wait_until

#: Nodes that every container with an NVIDIA GPU needs beside the GPU's own (Source: NVIDIA driver, nvidia-modprobe).
CONTROL_NODES = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
#: Tries to open a GPU whose node the container makes itself: the device cgroup, not the missing node, must keep it out.
OPEN_EVERY_GPU = """
for minor in 0 1 2 3 4 5 6 7; do
  mknod /tmp/gpu$minor c 195 $minor
  echo "$minor $(head -c 1 /tmp/gpu$minor 2>&1)"
done
"""


def published(driver: DriverOnNode, view: str = "gpu") -> dict[str, Json]:
    """The devices of one view as the cluster has them."""
    return devices_of(driver.cluster.api, driver.cluster.node.name, view)


def assert_sees_exactly(report: Report, driver: DriverOnNode, *device_names: str) -> None:
    """NVML and /dev show the GPUs of these devices and no other."""
    devices = published(driver)
    assert set(report.uuids) == {uuid_of(devices[name]) for name in device_names}
    assert report.gpu_minors == {int(name.removeprefix("gpu-")) for name in device_names}
    assert report.device_nodes >= CONTROL_NODES


@pytest.mark.budget(45)
def test_a_pod_sees_the_gpu_of_its_claim_and_no_other(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(claim_template("one-gpu"), pod("worker", templates={"gpu": "one-gpu"}))
    namespace.wait_running("worker")

    (device,) = namespace.allocated_devices()
    assert_sees_exactly(namespace.report("worker"), driver, device)


@pytest.mark.budget(10)
def test_a_pod_cannot_open_a_gpu_that_it_was_not_given(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(
        claim_template("one-gpu"),
        pod("prober", Container(script=OPEN_EVERY_GPU + REPORT), templates={"gpu": "one-gpu"}),
    )
    namespace.wait_running("prober")
    namespace.report("prober")

    (device,) = namespace.allocated_devices()
    refused = {line.split()[0] for line in namespace.log("prober").splitlines() if "Operation not permitted" in line}
    own = device.removeprefix("gpu-")
    assert refused == {str(minor) for minor in range(8)} - {own}


@pytest.mark.budget(10)
def test_a_pod_without_a_claim_sees_no_gpu(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(pod("bystander", Container(claims=())))
    namespace.wait_running("bystander")

    report = namespace.report("bystander")
    assert report.gpu_minors == frozenset()
    assert not [name for name in report.device_nodes if name.startswith("nvidia")]


@pytest.mark.budget(10)
def test_a_container_asks_for_one_gpu_by_the_extended_resource(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(pod("classic", Container(claims=(), limits={"nvidia.com/gpu": "1"})))
    namespace.wait_running("classic")

    (device,) = namespace.allocated_devices()
    assert_sees_exactly(namespace.report("classic"), driver, device)


@pytest.mark.case("C151")
@pytest.mark.budget(15)
def test_each_container_gets_as_many_gpus_as_it_asks_for_by_the_extended_resource_however_long_the_names_are(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    name, one, two = f"classic-{'p' * 150}", f"one-{'c' * 59}", f"two-{'c' * 59}"
    # It ends, and another container may have its GPU then.
    init = Container("before", REPORT.partition("trap")[0], claims=(), limits={"nvidia.com/gpu": "1"})
    containers = (
        Container(one, claims=(), limits={"nvidia.com/gpu": "1"}),
        Container(two, claims=(), limits={"nvidia.com/gpu": "2"}),
        Container("none", claims=()),
    )
    namespace.create(pod(name, *containers, init=(init,)))
    namespace.wait_running(name)

    seen = {each: namespace.report(name, each) for each in (one, two, "none", "before")}
    assert [len(seen[each].uuids) for each in (one, two, "before")] == [1, 2, 1]
    assert not set(seen[one].uuids) & set(seen[two].uuids)
    assert seen["none"].gpu_minors == frozenset()
    allocated = {uuid_of(published(driver)[device]) for device in namespace.allocated_devices()}
    assert {uuid for report in (seen[one], seen[two], seen["before"]) for uuid in report.uuids} == allocated

    namespace.delete_pod(name)
    namespace.wait_gone(name)
    wait_until("the claim that Kubernetes made has gone", lambda: not namespace.claims())


@pytest.mark.budget(10)
def test_a_claim_for_two_gpus_gives_both(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(claim("pair", device_request(count=2)), pod("worker", claims={"gpu": "pair"}))
    namespace.wait_running("worker")

    devices = namespace.allocated_devices("pair")
    assert len(devices) == 2
    assert_sees_exactly(namespace.report("worker"), driver, *devices)


@pytest.mark.budget(10)
def test_a_gpu_is_chosen_by_an_attribute(driver: DriverOnNode, namespace: TestNamespace) -> None:
    wanted = uuid_of(published(driver)["gpu-5"])
    selector = f"device.attributes['gpu.nvidia.com'].uuid == '{wanted}'"
    namespace.create(claim("this-one", device_request(selector=selector)), pod("worker", claims={"gpu": "this-one"}))
    namespace.wait_running("worker")

    assert namespace.report("worker").uuids == (wanted,)


@pytest.mark.budget(15)
def test_two_containers_of_a_pod_share_the_gpu_of_one_claim(driver: DriverOnNode, namespace: TestNamespace) -> None:
    namespace.create(
        claim_template("one-gpu"), pod("pair", Container("left"), Container("right"), templates={"gpu": "one-gpu"})
    )
    namespace.wait_running("pair")

    (device,) = namespace.allocated_devices()
    for container in ("left", "right"):
        assert_sees_exactly(namespace.report("pair", container), driver, device)


@pytest.mark.budget(15)
def test_two_pods_share_the_gpu_of_one_claim_and_it_stays_until_the_last_has_gone(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    namespace.create(claim("shared"), pod("first", claims={"gpu": "shared"}), pod("second", claims={"gpu": "shared"}))
    namespace.wait_running("first", "second")
    (device,) = namespace.allocated_devices("shared")
    for name in ("first", "second"):
        assert_sees_exactly(namespace.report(name), driver, device)

    namespace.delete_pod("first")
    namespace.wait_gone("first")
    namespace.create(pod("third", claims={"gpu": "shared"}))
    namespace.wait_running("third")

    assert_sees_exactly(namespace.report("third"), driver, device)


@pytest.mark.case("C16")
@pytest.mark.budget(15)
def test_two_requests_of_a_claim_go_to_the_containers_that_name_them(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    init = Container("before", script=REPORT.partition("trap")[0], claims=())
    containers = (
        Container("left", claims=(("gpu", "left"),)),
        Container("right", claims=(("gpu", "right"),)),
        Container("both"),
    )
    namespace.create(
        claim("two", device_request("left"), device_request("right")),
        pod("split", *containers, claims={"gpu": "two"}, init=(init,)),
    )
    namespace.wait_running("split")

    results = namespace.claim("two")["status"]["allocation"]["devices"]["results"]
    device = {result["request"]: result["device"] for result in results}
    assert_sees_exactly(namespace.report("split", "left"), driver, device["left"])
    assert_sees_exactly(namespace.report("split", "right"), driver, device["right"])
    assert_sees_exactly(namespace.report("split", "both"), driver, device["left"], device["right"])
    assert namespace.report("split", "before").gpu_minors == frozenset()


@pytest.mark.budget(20)
def test_the_monitor_view_sees_all_gpus_while_every_one_is_in_use(
    driver: DriverOnNode, namespace: TestNamespace, admin_namespace: TestNamespace
) -> None:
    namespace.create(claim("all", device_request(all_devices=True)), pod("greedy", claims={"gpu": "all"}))
    namespace.wait_running("greedy")
    assert len(namespace.allocated_devices("all")) == driver.gpu_count
    look = device_request("look", "monitor.nvidia.com", all_devices=True, admin=True)
    admin_namespace.create(claim("look", look), pod("watcher", claims={"gpu": "look"}))

    admin_namespace.wait_running("watcher")

    assert_sees_exactly(admin_namespace.report("watcher"), driver, *published(driver))
    assert len(admin_namespace.allocated_devices("look")) == driver.gpu_count


@pytest.mark.case("C05")
@pytest.mark.budget(20)
def test_a_force_deleted_pod_hands_its_gpus_over_without_waiting_for_the_kubelets_next_try(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    stubborn = Container(script="trap '' TERM; while :; do sleep 0.2; done")
    everything = device_request(all_devices=True)
    namespace.create(
        claim_template("all", everything), pod("old", stubborn, templates={"gpu": "all"}, grace_seconds=10)
    )
    namespace.wait_running("old")

    namespace.delete_pod("old", grace_seconds=0)
    namespace.create(pod("new", templates={"gpu": "all"}))

    # The kubelet repeats a failed Prepare after 60 to 90 s: the plugin has to wait inside the call.
    namespace.wait_running("new")
    assert_sees_exactly(namespace.report("new"), driver, *published(driver))


@pytest.mark.budget(10)
def test_the_published_devices_carry_the_names_and_attributes_of_nvidias_driver(driver: DriverOnNode) -> None:
    whole, monitor = published(driver), published(driver, "monitor")

    assert sorted(whole) == [f"gpu-{minor}" for minor in range(8)]
    assert sorted(monitor) == [f"gpu-{minor}-monitor" for minor in range(8)]
    for device in whole.values():
        assert device["attributes"]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
        assert device["attributes"].keys() >= {
            "uuid",
            "brand",
            "architecture",
            "cudaComputeCapability",
            "driverVersion",
        }
        assert device["capacity"].keys() == {"memory"}, json.dumps(device)
