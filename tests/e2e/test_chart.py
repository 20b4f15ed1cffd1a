"""The chart and the image as users install them: on a node where nothing else of the driver runs.

The commands are those of operations.md, as they stand there. The tests follow one release from before its installation
to after its end; each leaves it as the next expects it.
"""

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab.api import ApiError, path_of
from lab.chart import LabChart
from lab.errors import LabError

from dra_gpu_sim import checker
from tests.console import ROOT, Command, commands
from tests.e2e.conftest import GPUS
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.driver import DriverOnNode
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Json, claim, claim_template, device_request, pod
from tests.e2e.harness.release import BINDINGS, CLASSES, KINDS, NAMESPACE, PODS, POLICIES, Release, ready, uids
from tests.e2e.harness.shares import FIFTH, SHARED_CLASS
from tests.e2e.harness.slices import devices_of, slices_of
from tests.e2e.harness.waiting import PATIENCE, wait_until
from tests.e2e.test_examples import EXAMPLES, SHOWN, gpus_of

OPERATIONS = ROOT / "docs" / "operations.md"
NEXT = "0.1.1"
#: How many pods each has on a node.
COMPONENTS = {"node": 1, "mps": 1, "controller": 2, "webhook": 2}
#: Where there is one node only, a second replica that may not go at the same time holds a drain up.
ALONE = {"controller": {"replicas": 1}, "webhook": {"replicas": 1}}
#: Started one after the other while an upgrade runs: a bound, no load test.
MOST_PODS = 12
#: Eight GPUs are enough for these at once; the others come after them.
TOGETHER = sorted(set(SHOWN) - {"mps.yaml", "nvlink-pair.yaml", "time-slice.yaml"})
LONG_SLICES: Json = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


@pytest.fixture(scope="module")
def release(cluster: Cluster, node_driver: DriverOnNode) -> Iterator[Release]:
    """The release, not installed yet; the driver of the other tests has ended, and what it brought is gone."""
    node_driver.stop_all()
    node_driver.mps.stop()
    release = Release(cluster, LabChart(cluster.layout, cluster.node, node_driver.gpus, NAMESPACE))
    release.delete_plain(POLICIES, BINDINGS, KINDS)
    wait_until("no kind of the driver left", lambda: not release.plain(KINDS))
    for one in cluster.api.items(PODS):  # made by hand for tokens, and made again where they are wanted
        cluster.api.delete(f"{PODS}/{one['metadata']['name']}", grace_seconds=0)
    release.chart.import_image()
    release.chart.share_driver_root()
    yield release
    if release.state():
        release.chart.uninstall("--no-hooks")
    wait_until("no pod of the chart left", lambda: not release.pods(), 2 * PATIENCE)
    release.chart.unshare_driver_root()
    cluster.apply_deployment()


@pytest.mark.case("C146")
@pytest.mark.budget(40)
def test_device_classes_of_somebody_else_are_told_before_anything_is_installed(release: Release) -> None:
    with pytest.raises(LabError, match=r"DeviceClass \S+ is there already .* deviceClasses\.create=false"):
        release.chart.install()
    assert release.state() == ""
    assert not release.pods()

    left_to_them = release.chart.install("--set", "deviceClasses.create=false", "--dry-run=server")

    assert "kind: DeviceClass" not in left_to_them


@pytest.mark.budget(60)
def test_after_the_commands_of_an_installation_everything_is_ready_and_the_gpus_are_published(
    release: Release, cluster: Cluster
) -> None:
    release.delete_plain(CLASSES)
    shell = release.shell()

    for command in commands(OPERATIONS, "Install"):
        shell.does(command)

    release.wait_ready(COMPONENTS)
    assert len(devices_of(cluster.api, cluster.node.name)) == GPUS
    (backup,) = commands(OPERATIONS, "Backup")
    shell.does(backup)
    (state_of(cluster) / "journal-copy.db").unlink()


@pytest.mark.budget(90)
@pytest.mark.parametrize("names", [TOGETHER, sorted(set(SHOWN) - set(TOGETHER))], ids=["together", "the rest"])
def test_the_examples_run_on_it(names: list[str], release: Release, cluster: Cluster) -> None:
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
def test_a_mistake_in_a_claim_is_told_when_it_is_created(release: Release, namespace: TestNamespace) -> None:
    wrong = {"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "SharedGpuConfig", "enforcement": "Sometimes"}

    with pytest.raises(ApiError, match="enforcement"):
        namespace.create(claim("wrong", device_request("gpu", SHARED_CLASS, capacity=FIFTH), parameters=wrong))


@pytest.mark.budget(10)
def test_every_component_shows_its_metrics(release: Release) -> None:
    for component in COMPONENTS:
        for one in release.pods(component):
            with urllib.request.urlopen(f"http://{one['status']['podIP']}:8080/metrics", timeout=PATIENCE) as answer:
                text = answer.read().decode()
            assert f'dra_gpu_build_info{{component="{component}"' in text


@pytest.mark.case("C152")
@pytest.mark.budget(10)
def test_a_second_release_is_refused_and_leaves_the_first_alone(release: Release, cluster: Cluster) -> None:
    before = uids(release.pods())

    with pytest.raises(LabError, match=r"belongs to release dra-driver-gpu in namespace dra-gpu"):
        release.chart.install("--set", "deviceClasses.create=false", release="second", namespace="gpu-b")

    assert uids(release.pods()) == before
    assert len(devices_of(cluster.api, cluster.node.name)) == GPUS


def of_an_upgrade() -> tuple[Command, Command, Command]:
    """Forward, what there was, and back, as operations.md has them."""
    forward, history, back = commands(OPERATIONS, "Upgrade and roll back")
    return forward, history, back


def image_of_plugin(release: Release) -> str:
    """The image of the only node plugin that is there to stay."""
    (plugin,) = filter(ready, release.pods("node"))
    return str(plugin["spec"]["containers"][0]["image"])


@pytest.mark.budget(90)
def test_an_upgrade_under_load_starts_no_pod_anew_and_keeps_none_waiting(
    release: Release, cluster: Cluster, namespace: TestNamespace
) -> None:
    release.chart.import_image(NEXT)
    shell = release.shell(image={"pullPolicy": "Never", "tag": f"v{NEXT}"}, **ALONE)
    forward, history, _ = of_an_upgrade()
    shares = claim("share", device_request("gpu", SHARED_CLASS, capacity=FIFTH))
    namespace.create(claim("whole"), shares)
    namespace.create(pod("old-whole", claims={"gpu": "whole"}), pod("old-share", claims={"gpu": "share"}))
    namespace.wait_running("old-whole", "old-share")
    containers = {name: namespace.pod(name)["status"]["containerStatuses"] for name in ("old-whole", "old-share")}
    slices = [(one["metadata"]["name"], one["metadata"]["uid"]) for one in slices_of(cluster.api, cluster.node.name)]
    mps = uids(release.pods("mps"))

    started = 0
    with ThreadPoolExecutor(1) as beside:
        upgrade = beside.submit(shell.does, forward)
        while not upgrade.done() and started < MOST_PODS:
            name = f"new-{started}"
            namespace.create(claim(name), pod(name, claims={"gpu": name}))
            namespace.wait_running(name)
            namespace.delete_pod(name)
            namespace.wait_gone(name)
            started += 1
        if (error := upgrade.exception()) is not None:
            raise AssertionError(f"{error}\n{release.story()}") from error

    assert started > 0
    shell.does(history)
    assert image_of_plugin(release).endswith(f":v{NEXT}")
    assert {name: namespace.pod(name)["status"]["containerStatuses"] for name in containers} == containers
    found = slices_of(cluster.api, cluster.node.name)
    assert [(one["metadata"]["name"], one["metadata"]["uid"]) for one in found] == slices
    assert uids(release.pods("mps")) == mps


def replica_set(name: str) -> Json:
    """What makes a pod with a GPU, and another one when that is evicted."""
    template = pod(name, templates={"gpu": "one-gpu"}, restart="Always")
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


@pytest.mark.budget(60)
def test_a_node_that_is_drained_gives_its_gpus_back_and_has_them_again_when_it_returns(
    release: Release, cluster: Cluster, namespace: TestNamespace
) -> None:
    drain, uncordon = commands(OPERATIONS, "Reboot and drain")
    shell, on_node = release.shell(), uids([*release.pods("node"), *release.pods("mps")])
    sets = path_of("apps/v1", "replicasets", namespace=namespace.name)
    namespace.create(claim_template("one-gpu"))
    cluster.api.create(sets, replica_set("worker"))

    def running() -> list[Json]:
        pods = cluster.api.items(path_of("v1", "pods", namespace=namespace.name))
        return [one for one in pods if ready(one) and one["status"]["phase"] == "Running"]

    try:
        wait_until("the worker runs", lambda: bool(running()))
        before = uids(running())

        shell.does(drain)
        held = cluster.held_claims()
        in_use = checker.snapshot(release.chart.gpus.root).processes
        shell.does(uncordon)

        wait_until("another worker runs", lambda: bool(uids(running()) - before))
        release.wait_ready(COMPONENTS | dict.fromkeys(ALONE, 1))
    finally:
        cluster.api.delete(f"{sets}/worker")
    assert held == []
    assert not in_use
    assert uids([*release.pods("node"), *release.pods("mps")]) == on_node


@pytest.mark.budget(60)
def test_the_way_back_to_the_release_before_is_as_quiet(release: Release, namespace: TestNamespace) -> None:
    namespace.create(claim("whole"), pod("stays", claims={"gpu": "whole"}))
    namespace.wait_running("stays")
    containers, mps = namespace.pod("stays")["status"]["containerStatuses"], uids(release.pods("mps"))
    _, _, back = of_an_upgrade()

    release.shell().does(back)

    release.wait_ready(COMPONENTS)
    assert not image_of_plugin(release).endswith(f":v{NEXT}")
    assert namespace.pod("stays")["status"]["containerStatuses"] == containers
    assert uids(release.pods("mps")) == mps


@pytest.mark.budget(60)
def test_an_uninstall_is_refused_while_a_pod_has_a_gpu_and_changes_nothing(
    release: Release, cluster: Cluster, namespace: TestNamespace
) -> None:
    namespace.create(claim("training"), pod("trainer", claims={"gpu": "training"}))
    namespace.wait_running("trainer")
    before = uids(release.pods())

    with pytest.raises(LabError) as refused:
        release.chart.uninstall()

    text = str(refused.value).replace("\\n", "\n")  # Helm 4 makes one line of what a hook says
    assert f"{namespace.name}/training: {cluster.node.name}/gpu-" in text
    assert "used by trainer;\n" in text
    wait_until("nothing left of the check", lambda: not [*release.pods("uninstall-check"), *check_of(release)])
    assert uids(release.pods()) == before
    # Helm has noted that an uninstall began; the refusal says how to call it off.
    (call_off,) = [line for line in text.splitlines() if line.startswith("helm rollback")]
    release.shell().does(Command(call_off))
    assert release.state() == "deployed"
    assert uids(release.pods()) == before
    assert namespace.runs("trainer")


def check_of(release: Release) -> list[str]:
    """What is there of the check before an uninstall; its NetworkPolicy is there as long as the release is."""
    return [one for one in release.objects("uninstall-check") if "networkpolicies" not in one]


@pytest.mark.budget(90)
def test_after_the_commands_of_an_uninstall_nothing_of_it_is_left(
    release: Release, cluster: Cluster, namespace: TestNamespace
) -> None:
    before = checker.snapshot(release.chart.gpus.root).gpus
    slow = claim("slow", parameters=LONG_SLICES)
    namespace.create(slow, claim("share", device_request("gpu", SHARED_CLASS, capacity=FIFTH)))
    namespace.create(pod("whole", claims={"gpu": "slow"}), pod("part", claims={"gpu": "share"}))
    namespace.wait_running("whole", "part")
    assert checker.snapshot(release.chart.gpus.root).gpus != before
    containers = {name: namespace.container_ids(name) for name in ("whole", "part")}
    list_gpus, leave, list_claims, wait_left, uninstall = commands(OPERATIONS, "Uninstall")
    shell = release.shell()

    for command in (list_gpus, leave, list_claims):
        shell.does(command)
    wait_until("nothing is offered", lambda: not slices_of(cluster.api, cluster.node.name), 2 * PATIENCE)
    assert {name: namespace.container_ids(name) for name in containers} == containers
    assert not [*filter(ready, release.pods("node"))]
    for name in containers:
        namespace.delete_pod(name)
    namespace.wait_gone(*containers)
    shell.does(wait_left)
    shell.does(uninstall)

    assert release.state() == ""
    wait_until("no object of the chart left", lambda: not release.objects(), 2 * PATIENCE)
    assert checker.snapshot(release.chart.gpus.root).gpus == before
    assert left_on(cluster) == []
    ending = [one for one in cluster.api.items(path_of("v1", "pods")) if "deletionTimestamp" in one["metadata"]]
    assert [one["metadata"]["name"] for one in ending if one["metadata"]["namespace"] != NAMESPACE] == []
    assert not slices_of(cluster.api, cluster.node.name)
    # Kinds stay, since their objects would go with them.
    assert [one["metadata"]["name"] for one in cluster.api.items(KINDS)] == ["claimresizes.resource.dra-gpu.dev"]


def state_of(cluster: Cluster) -> Path:
    """Where the node plugin keeps its journal on the test node."""
    return cluster.node.kubelet_root / "plugins" / "gpu.nvidia.com"


def left_on(cluster: Cluster) -> list[str]:
    """What the driver has left on the test node: its state, sockets, and CDI files."""
    node = cluster.node
    places = [
        state_of(cluster),
        node.kubelet_root / "plugins_registry",
        node.cdi_dir,
    ]
    return [
        str(path)
        for place in places
        if place.exists()
        for path in place.rglob("*")
        if path.is_file() or path.is_socket()
    ]
