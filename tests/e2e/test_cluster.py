"""The lab itself: what every other end-to-end test takes for granted."""

import json

import pytest

from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import Container, pod


@pytest.mark.budget(40)
def test_the_server_is_the_kubernetes_that_go_mod_pins(cluster: Cluster) -> None:
    version = json.loads(cluster.kubectl("version", "--output=json"))

    assert version["serverVersion"]["gitVersion"] == "v1.37.2"
    assert version["clientVersion"]["gitVersion"] == "v1.37.2"


@pytest.mark.budget(5)
def test_the_control_plane_runs_with_default_feature_gates(cluster: Cluster) -> None:
    metrics = cluster.api.text("/metrics")

    partitionable = [line for line in metrics.splitlines() if 'name="DRAPartitionableDevices"' in line]
    workload_claims = [line for line in metrics.splitlines() if 'name="DRAWorkloadResourceClaims"' in line]
    assert partitionable[0].endswith(" 1")
    assert workload_claims[0].endswith(" 0")


@pytest.mark.budget(10)
def test_a_plain_pod_runs_and_kubectl_reads_its_log_and_enters_it(cluster: Cluster, namespace: TestNamespace) -> None:
    namespace.create(pod("plain", Container(script="echo hello; exec sleep 1000", claims=())))
    namespace.wait_running("plain")

    in_namespace = f"--namespace={namespace.name}"
    assert cluster.kubectl(in_namespace, "logs", "plain") == "hello\n"
    assert cluster.kubectl(in_namespace, "exec", "plain", "--", "echo", "from inside") == "from inside\n"


@pytest.mark.budget(15)
def test_running_pods_survive_an_absence_of_the_api_server(cluster: Cluster, namespace: TestNamespace) -> None:
    namespace.create(pod("stays", Container(script="exec sleep 1000", claims=())))
    namespace.wait_running("stays")
    before = namespace.container_ids("stays")

    with cluster.apiserver_away():
        assert not cluster.api.ready()

    assert namespace.container_ids("stays") == before


@pytest.mark.budget(30)
def test_running_pods_survive_a_restart_of_the_kubelet(cluster: Cluster, namespace: TestNamespace) -> None:
    namespace.create(pod("stays", Container(script="exec sleep 1000", claims=())))
    namespace.wait_running("stays")
    before = namespace.container_ids("stays")

    cluster.stop_kubelet()
    cluster.start_kubelet()
    namespace.create(pod("later", Container(script="exec sleep 1000", claims=())))
    namespace.wait_running("later")

    assert namespace.container_ids("stays") == before
