"""Kubelet, plugin and API server go and come back: pods stay as they are, slices change no more than they must."""

import sys
from pathlib import Path

import pytest
from lab.api import Event

from tests.e2e.harness import newer_version
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import REPORT_END, Container, claim, claim_template, device_request, pod
from tests.e2e.harness.slices import Json, devices_of, slices_of, uuid_of, watch_slices
from tests.e2e.harness.waiting import PATIENCE, wait_until

NEWER = (sys.executable, newer_version.__file__)


def published(driver: DriverOnNode) -> dict[str, Json]:
    return devices_of(driver.cluster.api, driver.cluster.node.name)


def slice_identities(driver: DriverOnNode) -> dict[str, str]:
    """Slice name -> UID: equal before and after means that none was deleted."""
    return {
        item["metadata"]["name"]: item["metadata"]["uid"]
        for item in slices_of(driver.cluster.api, driver.cluster.node.name)
    }


def run_pod(namespace: TestNamespace, name: str) -> None:
    """Run a pod with one GPU."""
    namespace.create(claim_template(f"for-{name}"), pod(name, templates={"gpu": f"for-{name}"}))
    namespace.wait_running(name)


def cdi_specs(driver: DriverOnNode) -> set[Path]:
    """The CDI files that the container runtime of the node sees."""
    return {path for path in driver.cluster.node.cdi_dir.iterdir() if not path.name.startswith(".")}


@pytest.mark.budget(30)
def test_slices_are_back_at_once_after_the_kubelet_wiped_them_at_its_start(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    run_pod(namespace, "bystander")
    before = namespace.container_ids("bystander")
    names = set(slice_identities(driver))
    driver.cluster.stop_kubelet()

    with watch_slices(driver.cluster.api, driver.cluster.node.name) as watch:
        driver.cluster.start_kubelet()

        def all_back(events: list[Event]) -> bool:
            wiped = {event.object["metadata"]["name"] for event in events if event.kind == "DELETED"}
            added = {event.object["metadata"]["name"] for event in events if event.kind == "ADDED"}
            return wiped == names == added

        watch.wait_for("slices wiped and published again", 2 * PATIENCE, all_back)
        wiped_at = max(event.at for event in watch.events if event.kind == "DELETED")
        back_at = max(event.at for event in watch.events if event.kind == "ADDED")

    assert back_at - wiped_at < 20.0  # two seconds, and what a busy machine makes of them
    assert namespace.container_ids("bystander") == before
    run_pod(namespace, "afterwards")


@pytest.mark.budget(30)
def test_a_plugin_that_was_killed_comes_back_with_no_write_and_its_pods_untouched(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    run_pod(namespace, "before")
    untouched = namespace.container_ids("before")
    assert driver.current is not None

    with watch_slices(driver.cluster.api, driver.cluster.node.name) as watch:
        driver.current.kill()
        driver.restart()
        run_pod(namespace, "after")

    assert watch.summary() == []
    assert namespace.container_ids("before") == untouched
    assert len(set(namespace.allocated_devices())) == 2


@pytest.mark.case("C29")
@pytest.mark.budget(30)
def test_an_upgrade_with_two_instances_side_by_side_changes_each_slice_once_and_touches_no_pod(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    run_pod(namespace, "before")
    untouched = namespace.container_ids("before")
    identities = slice_identities(driver)
    old = driver.current
    assert old is not None

    with watch_slices(driver.cluster.api, driver.cluster.node.name) as watch:
        driver.start(program=NEWER)
        watch.wait_for("the later release's attributes", PATIENCE, bool)
        run_pod(namespace, "during")
        assert old.stop(), "the old instance did not end within its grace period"
        driver.others.remove(old)
        run_pod(namespace, "after")

    changed = [event.object["metadata"]["name"] for event in watch.events]
    assert sorted(changed) == sorted(set(changed)), watch.summary()
    assert {event.kind for event in watch.events} == {"MODIFIED"}
    assert slice_identities(driver) == identities
    assert all(newer_version.NEW_ATTRIBUTE in device["attributes"] for device in published(driver).values())
    assert namespace.container_ids("before") == untouched
    assert len(set(namespace.allocated_devices())) == 3


@pytest.mark.case("C29")
@pytest.mark.budget(30)
def test_a_roll_back_to_the_older_release_works_the_same_way(driver: DriverOnNode, namespace: TestNamespace) -> None:
    driver.start(program=NEWER)
    api, node_name = driver.cluster.api, driver.cluster.node.name
    wait_until(
        "the later release publishes",
        lambda: newer_version.NEW_ATTRIBUTE in devices_of(api, node_name)["gpu-0"]["attributes"],
    )
    run_pod(namespace, "before")
    untouched = namespace.container_ids("before")
    later = driver.current
    assert later is not None

    driver.start()
    wait_until(
        "the older release publishes",
        lambda: newer_version.NEW_ATTRIBUTE not in devices_of(api, node_name)["gpu-0"]["attributes"],
    )
    assert later.stop()

    driver.others.remove(later)
    run_pod(namespace, "after")
    assert namespace.container_ids("before") == untouched


@pytest.mark.case("C10")
@pytest.mark.budget(45)
def test_a_claim_is_unprepared_while_the_api_server_is_away(driver: DriverOnNode, namespace: TestNamespace) -> None:
    lingering = Container(script=f"echo '{REPORT_END}'; trap '' TERM; while :; do sleep 0.2; done")
    namespace.create(claim_template("one"), pod("leaving", lingering, templates={"gpu": "one"}, grace_seconds=4))
    namespace.wait_running("leaving")
    held = cdi_specs(driver)
    assert held

    namespace.delete_pod("leaving")
    namespace.wait_event("leaving", "Killing")  # the kubelet knows; else it would learn of it only from the next server
    with driver.cluster.apiserver_away():
        # The container ends after its four seconds; only then the kubelet calls Unprepare.
        wait_until(
            "the CDI spec of the claim removed without the API server", lambda: not cdi_specs(driver), 2 * PATIENCE
        )

    namespace.wait_gone("leaving", seconds=2 * PATIENCE)
    driver.wait_published(driver.gpu_count)
    run_pod(namespace, "next")


@pytest.mark.budget(45)
def test_a_gpu_that_is_lost_at_start_leaves_seven_serving(driver: DriverOnNode, namespace: TestNamespace) -> None:
    driver.stop_all()
    driver.gpus.inject("--gpu", "3", "--lost")
    try:
        driver.start()
        driver.wait_published(driver.gpu_count - 1)
        namespace.create(claim("rest", device_request(count=7)), pod("worker", claims={"gpu": "rest"}))
        namespace.wait_running("worker")
        devices = namespace.allocated_devices("rest")
        report = namespace.report("worker")
        namespace.delete_pod("worker")
        namespace.wait_gone("worker")
    finally:
        driver.gpus.inject("--gpu", "3", "--returned")
        driver.stop_all()

    assert devices == [f"gpu-{minor}" for minor in (0, 1, 2, 4, 5, 6, 7)]
    assert report.gpu_minors == {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.case("C17")
@pytest.mark.budget(75)
def test_a_pod_deleted_while_the_plugin_is_away_goes_when_it_is_back(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    run_pod(namespace, "leaving")
    assert driver.current is not None
    driver.current.kill()
    api, node_name = driver.cluster.api, driver.cluster.node.name

    namespace.delete_pod("leaving")
    # The kubelet takes the slices away 30 s after the plugin has gone (Source: K8s v1.37 pkg/kubelet/cm/dra).
    wait_until("slices taken away", lambda: not slices_of(api, node_name), 30.0 + PATIENCE)
    assert "deletionTimestamp" in namespace.pod("leaving")["metadata"]
    driver.start()

    namespace.wait_gone("leaving", seconds=2 * PATIENCE)
    driver.wait_published(driver.gpu_count)
    assert not cdi_specs(driver)


@pytest.mark.case("C23")
@pytest.mark.budget(30)
def test_a_container_restarts_after_the_cdi_directory_was_wiped_and_the_plugin_restarted(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    namespace.create(
        claim_template("one"),
        pod("phoenix", Container(script="nvidia-smi -L; exec sleep 1000"), templates={"gpu": "one"}, restart="Always"),
    )
    namespace.wait_running("phoenix")
    assert driver.current is not None
    specs = cdi_specs(driver)
    driver.current.kill()
    for spec in specs:
        spec.unlink()

    driver.restart()
    wait_until("the CDI spec written anew", lambda: cdi_specs(driver) == specs)
    (container_id, _) = namespace.container_ids("phoenix")["main"]
    driver.cluster.kill_container(container_id)

    wait_until("the container restarted", lambda: namespace.container_ids("phoenix")["main"][1] == 1, 2 * PATIENCE)
    namespace.wait_running("phoenix")
    assert "(UUID: GPU-" in namespace.log("phoenix")


@pytest.mark.case("C28")
@pytest.mark.budget(90)
def test_a_pod_force_deleted_while_the_kubelet_is_down_frees_its_gpus(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    everything = device_request(all_devices=True)
    namespace.create(claim_template("all", everything), pod("old", templates={"gpu": "all"}))
    namespace.wait_running("old")
    driver.cluster.stop_kubelet()
    namespace.delete_pod("old", grace_seconds=0)
    namespace.wait_gone("old")

    driver.cluster.start_kubelet()
    # Every 60 s the kubelet looks for claims that nobody uses any more (Source: K8s v1.37 pkg/kubelet/cm/dra).
    wait_until("the claim of the deleted pod unprepared", lambda: not cdi_specs(driver), 60.0 + PATIENCE)
    namespace.create(pod("new", templates={"gpu": "all"}))

    namespace.wait_running("new")
    assert len(namespace.allocated_devices()) == driver.gpu_count


@pytest.mark.case("C02")
@pytest.mark.budget(45)
def test_a_record_of_a_claim_that_vanished_meanwhile_is_released_by_the_plugin_itself(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    wanted = uuid_of(published(driver)["gpu-3"])
    pinned = device_request(selector=f"device.attributes['gpu.nvidia.com'].uuid == '{wanted}'")
    namespace.create(claim("first", pinned), pod("holder", claims={"gpu": "first"}))
    namespace.wait_running("holder")
    driver.cluster.stop_kubelet()
    driver.stop_all()
    namespace.delete_pod("holder", grace_seconds=0)
    namespace.delete_claim("first")
    driver.cluster.forget_kubelet_claims()

    driver.launch(extra_arguments=["--reconcile-period=2"])
    driver.cluster.start_kubelet()
    wait_until("the record of the vanished claim released", lambda: not cdi_specs(driver), 2 * PATIENCE)
    driver.wait_registered()
    namespace.create(claim("second", pinned), pod("successor", claims={"gpu": "second"}))

    namespace.wait_running("successor")
    assert namespace.allocated_devices("second") == ["gpu-3"]


@pytest.mark.case("C22")
@pytest.mark.budget(60)
def test_after_a_power_cut_and_a_new_boot_the_pod_of_before_runs_again_with_its_gpu(
    driver: DriverOnNode, namespace: TestNamespace
) -> None:
    namespace.create(claim_template("one"), pod("survivor", templates={"gpu": "one"}, restart="Always"))
    namespace.wait_running("survivor")
    before = namespace.container_ids("survivor")["main"]
    devices = namespace.allocated_devices()
    assert driver.current is not None

    driver.cluster.cut_power()
    driver.current.kill()
    driver.mps.stop()
    for spec in cdi_specs(driver):
        spec.unlink()
    driver.gpus.inject("--reboot")
    driver.mps.start()
    driver.launch()
    driver.wait_listening()
    driver.cluster.start_kubelet()

    wait_until("a new container", lambda: namespace.container_ids("survivor")["main"][0] != before[0], 2 * PATIENCE)
    namespace.wait_running("survivor")
    assert namespace.allocated_devices() == devices
    assert namespace.report("survivor").gpu_minors == {int(devices[0].removeprefix("gpu-"))}
