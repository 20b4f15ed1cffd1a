"""The chart and the image as users install them: on a node where nothing else of the driver runs.

The tests follow one release from before its installation to after its end; each leaves it as the next expects it.
"""

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.api import ApiError, path_of
from lab.chart import LabChart
from lab.driver_image import project_version
from lab.errors import LabError

from dra_gpu_sim import checker
from tests.e2e.conftest import GPUS
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Json, claim, device_request, pod
from tests.e2e.harness.shares import FIFTH, SHARED_CLASS
from tests.e2e.harness.slices import devices_of, slices_of
from tests.e2e.harness.waiting import PATIENCE, wait_until
from tests.e2e.test_examples import EXAMPLES, SHOWN, gpus_of

NAMESPACE = "gpu-system"
PODS = path_of("v1", "pods", namespace=NAMESPACE)
NEXT = "0.1.1"
CLASSES = path_of("resource.k8s.io/v1", "deviceclasses")
POLICIES = path_of("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
BINDINGS = path_of("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings")
WEBHOOKS = path_of("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations")
ROLES = path_of("rbac.authorization.k8s.io/v1", "clusterroles")
#: How many pods each has on a node.
COMPONENTS = {"node": 1, "mps": 1, "controller": 2, "webhook": 2}
#: Started one after the other while an upgrade runs: a bound, no load test.
MOST_PODS = 12
#: Helm waits for Ready pods; a busy machine takes its time.
WAIT = ("--wait", f"--timeout={4 * PATIENCE:.0f}s")
#: Eight GPUs are enough for these at once; the others come after them.
TOGETHER = sorted(set(SHOWN) - {"mps.yaml", "nvlink-pair.yaml", "time-slice.yaml"})


@pytest.fixture(scope="module")
def chart(cluster: Cluster, node_driver: DriverOnNode) -> Iterator[LabChart]:
    """The chart, not installed yet; the driver of the other tests has ended, and its policies are gone."""
    node_driver.stop_all()
    node_driver.mps.stop()
    chart = LabChart(cluster.layout, cluster.node, node_driver.gpus, NAMESPACE)
    delete_ours(cluster, POLICIES)
    delete_ours(cluster, BINDINGS)
    chart.import_image()
    chart.share_driver_root()
    yield chart
    if installed(chart):
        chart.uninstall()
    wait_until("no pod of the chart left", lambda: not pods_of_chart(cluster), 2 * PATIENCE)
    chart.unshare_driver_root()
    cluster.apply_deployment()


def delete_ours(cluster: Cluster, collection: str) -> None:
    """Delete the objects of the whole cluster that deploy/ brings."""
    for one in cluster.api.items(collection):
        if one["metadata"]["name"].endswith(("dra-gpu.dev", "nvidia.com")):
            cluster.api.delete(f"{collection}/{one['metadata']['name']}")


def installed(chart: LabChart) -> bool:
    """Whether the release is there."""
    try:
        chart.helm("status")
    except LabError:
        return False
    return True


def pods_of_chart(cluster: Cluster, component: str = "") -> list[Json]:
    """The pods of the release, of one component or all; also those that are ending."""
    selector = "app.kubernetes.io/instance=dra-driver-gpu"
    selector += f",app.kubernetes.io/component={component}" if component else ""
    return cluster.api.items(PODS, labelSelector=selector)


def ready(one: Json) -> bool:
    """Whether a pod is Ready and stays."""
    conditions = one["status"].get("conditions") or []
    holds = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return holds and "deletionTimestamp" not in one["metadata"]


def story(cluster: Cluster) -> str:
    """What the pods of the release say, for a failure's message."""
    found = []
    for one in pods_of_chart(cluster):
        name = one["metadata"]["name"]
        try:
            log = cluster.api.text(f"{PODS}/{name}/log", tailLines="8")
        except ApiError as error:
            log = str(error)
        found.append(f"{name} {'ready' if ready(one) else 'not ready'}:\n{log}")
    return "\n".join(found)


@pytest.mark.case("C146")
@pytest.mark.budget(40)
def test_device_classes_of_somebody_else_are_told_before_anything_is_installed(
    chart: LabChart, cluster: Cluster
) -> None:
    with pytest.raises(LabError, match=r"DeviceClass \S+ is there already .* deviceClasses\.create=false"):
        chart.install()
    assert not installed(chart)
    assert not pods_of_chart(cluster)

    left_to_them = chart.install("--set", "deviceClasses.create=false", "--dry-run=server")

    assert "kind: DeviceClass" not in left_to_them


@pytest.mark.budget(60)
def test_everything_is_ready_and_the_gpus_are_published(chart: LabChart, cluster: Cluster) -> None:
    delete_ours(cluster, CLASSES)

    try:
        notes = chart.install(*WAIT)
    except LabError as error:
        raise AssertionError(f"{error}\n{story(cluster)}") from error

    counts = {name: len([*filter(ready, pods_of_chart(cluster, name))]) for name in COMPONENTS}
    assert counts == COMPONENTS
    assert len(devices_of(cluster.api, cluster.node.name)) == GPUS
    assert "kubectl gpu list" in notes


@pytest.mark.budget(90)
@pytest.mark.parametrize("names", [TOGETHER, sorted(set(SHOWN) - set(TOGETHER))], ids=["together", "the rest"])
def test_the_examples_run_on_it(names: list[str], chart: LabChart, cluster: Cluster) -> None:
    files = [EXAMPLES / name for name in names]
    arguments = [part for file in files for part in ("-f", str(file))]
    cluster.kubectl("apply", *arguments)

    try:
        for file in files:
            gpus_of(file, SHOWN[file.name], cluster)
    finally:
        cluster.kubectl("delete", "--ignore-not-found", *arguments, seconds=4 * PATIENCE)

    wait_until("no GPU held", lambda: not cluster.held_claims())


@pytest.mark.budget(10)
def test_a_mistake_in_a_claim_is_told_when_it_is_created(chart: LabChart, namespace: TestNamespace) -> None:
    wrong = {"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "SharedGpuConfig", "enforcement": "Sometimes"}

    with pytest.raises(ApiError, match="enforcement"):
        namespace.create(claim("wrong", device_request("gpu", SHARED_CLASS, capacity=FIFTH), parameters=wrong))


@pytest.mark.budget(10)
def test_every_component_shows_its_metrics(chart: LabChart, cluster: Cluster) -> None:
    for component in COMPONENTS:
        for one in pods_of_chart(cluster, component):
            with urllib.request.urlopen(f"http://{one['status']['podIP']}:8080/metrics", timeout=PATIENCE) as answer:
                text = answer.read().decode()
            assert f'dra_gpu_build_info{{component="{component}"' in text


@pytest.mark.case("C152")
@pytest.mark.budget(10)
def test_a_second_release_is_refused_and_leaves_the_first_alone(chart: LabChart, cluster: Cluster) -> None:
    before = [one["metadata"]["uid"] for one in pods_of_chart(cluster)]

    with pytest.raises(LabError, match=r"belongs to release dra-driver-gpu in namespace gpu-system"):
        chart.install("--set", "deviceClasses.create=false", release="second", namespace="gpu-b")

    assert [one["metadata"]["uid"] for one in pods_of_chart(cluster)] == before
    assert len(devices_of(cluster.api, cluster.node.name)) == GPUS


@pytest.mark.budget(90)
def test_an_upgrade_under_load_starts_no_pod_anew_and_keeps_none_waiting(
    chart: LabChart, cluster: Cluster, namespace: TestNamespace
) -> None:
    chart.import_image(NEXT)
    shares = claim("share", device_request("gpu", SHARED_CLASS, capacity=FIFTH))
    namespace.create(claim("whole"), shares)
    namespace.create(pod("old-whole", claims={"gpu": "whole"}), pod("old-share", claims={"gpu": "share"}))
    namespace.wait_running("old-whole", "old-share")
    containers = {name: namespace.pod(name)["status"]["containerStatuses"] for name in ("old-whole", "old-share")}
    slices = [(one["metadata"]["name"], one["metadata"]["uid"]) for one in slices_of(cluster.api, cluster.node.name)]
    (mps,) = pods_of_chart(cluster, "mps")

    started = 0
    with ThreadPoolExecutor(1) as beside:
        keep = ("--set", f"image.tag=v{NEXT}", "--set", f"mps.image.tag=v{project_version()}")
        upgrade = beside.submit(chart.upgrade, *keep, *WAIT)
        while not upgrade.done() and started < MOST_PODS:
            name = f"new-{started}"
            namespace.create(claim(name), pod(name, claims={"gpu": name}))
            namespace.wait_running(name)
            namespace.delete_pod(name)
            namespace.wait_gone(name)
            started += 1
        if (error := upgrade.exception()) is not None:
            raise AssertionError(f"{error}\n{story(cluster)}") from error

    assert started > 0
    (plugin,) = filter(ready, pods_of_chart(cluster, "node"))
    assert plugin["spec"]["containers"][0]["image"].endswith(f":v{NEXT}")
    assert {name: namespace.pod(name)["status"]["containerStatuses"] for name in containers} == containers
    found = slices_of(cluster.api, cluster.node.name)
    assert [(one["metadata"]["name"], one["metadata"]["uid"]) for one in found] == slices
    assert [one["metadata"]["uid"] for one in pods_of_chart(cluster, "mps")] == [mps["metadata"]["uid"]]


@pytest.mark.budget(60)
def test_after_the_end_nothing_of_it_is_left(chart: LabChart, cluster: Cluster, node_driver: DriverOnNode) -> None:
    wait_until("no GPU held", lambda: not cluster.held_claims())

    chart.uninstall()

    wait_until("no pod of the chart left", lambda: not pods_of_chart(cluster), 2 * PATIENCE)
    # The kubelet keeps a driver's slices for half a minute: it may come back.
    wait_until("no slice left", lambda: not slices_of(cluster.api, cluster.node.name), 2 * PATIENCE)
    ending = [
        one["metadata"]["name"]
        for one in cluster.api.items(path_of("v1", "pods"))
        if "deletionTimestamp" in one["metadata"]
    ]
    assert ending == []
    assert [gpu.compute_mode for gpu in checker.snapshot(node_driver.gpus.root).gpus] == [0] * GPUS
    for collection in (CLASSES, POLICIES, BINDINGS, WEBHOOKS, ROLES):
        assert not cluster.api.items(collection, labelSelector="app.kubernetes.io/instance=dra-driver-gpu")
