"""What the pods may do: in the cluster what the plain manifests say, on a node no more than each needs."""

import copy
import importlib.util

import pytest

from tests.component.deploy.rendering import DEPLOY, PLAIN_NAMES, ROOT, VALUE_SETS, documents, rendered
from tests.component.go_programs import builds_go

pytestmark = builds_go
every_set = pytest.mark.parametrize("name", VALUE_SETS)

#: Kinds of objects that the chart has from the plain manifests and from nowhere else.
FROM_MANIFESTS = {
    "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DeviceClass", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
}  # fmt: skip

#: Directories of the host that a component sees, by value set "default": nothing else of a node is within its reach.
HOST_PATHS = {
    "node": {
        "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/run/cdi", "/dev", "/run/dra-gpu/mps",
        "/ (read only)", "/sys/fs/cgroup (read only)",
    },
    "mps": {"/run/dra-gpu/mps", "/dev", "/ (read only)"},
}  # fmt: skip


def chart_tool():
    spec = importlib.util.spec_from_file_location("chart", ROOT / "tools" / "chart.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(one):
    """Return an object without what only a release of Helm has."""
    one = copy.deepcopy(one)
    one["metadata"].pop("labels", None)
    return one


def by_name(objects):
    return {(one["kind"], one["metadata"]["name"]): plain(one) for one in objects}


def component(one):
    return one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]


def test_the_templates_are_those_that_the_plain_manifests_give():
    tool = chart_tool()
    there = {path.name: path.read_text() for path in tool.TEMPLATES.iterdir()}

    assert there == tool.templates(), "run `make chart`"
    assert tool.REFERENCE.read_text() == tool.reference(), "run `make chart`"


def test_rights_classes_and_policies_are_those_of_the_plain_manifests():
    assert VALUE_SETS["plain names"] == PLAIN_NAMES
    files = [*DEPLOY.glob("*.yaml"), *(DEPLOY / "rbac").glob("*.yaml")]
    wanted = [one for path in files for one in documents(path.read_text()) if one["kind"] in FROM_MANIFESTS]

    found = [one for one in rendered("plain names").lasting if one["kind"] in FROM_MANIFESTS]

    assert by_name(found) == by_name(wanted)


@every_set
def test_the_policy_that_ties_slices_to_nodes_knows_the_accounts_name(name):
    chart = rendered(name)
    (account,) = {
        (one["metadata"]["namespace"], one["spec"]["template"]["spec"]["serviceAccountName"])
        for one in chart.of_kind("DaemonSet")
        if component(one) == "node"
    } or {None}
    if account is None:
        return
    (policy,) = [one for one in chart.of_kind("ValidatingAdmissionPolicy") if "node-slices" in one["metadata"]["name"]]
    (condition,) = policy["spec"]["matchConditions"]

    assert condition["expression"].endswith(f"'system:serviceaccount:{account[0]}:{account[1]}'")


@every_set
def test_every_account_that_a_pod_or_a_binding_names_is_made_or_left_to_somebody_else(name):
    chart = rendered(name)
    made = {one["metadata"]["name"] for one in chart.of_kind("ServiceAccount")}
    used = {one["spec"]["template"]["spec"]["serviceAccountName"] for one in chart.workloads}
    bound = {
        subject["name"]
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for one in chart.of_kind(kind)
        for subject in one["subjects"]
    }

    if VALUE_SETS[name].get("serviceAccount", {}).get("create", True):
        assert used | bound <= made
    else:
        assert made == set()


@every_set
def test_no_container_writes_its_own_root_and_only_those_on_nodes_are_privileged(name):
    for one in rendered(name).workloads:
        pod = one["spec"]["template"]["spec"]
        assert pod.get("hostNetwork", False) is False
        assert pod.get("hostIPC", False) is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            if component(one) in {"node", "mps"}:
                assert context["privileged"] is True
            else:
                assert context == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "runAsGroup": 65532,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                }
                assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume]


@pytest.mark.parametrize("which", HOST_PATHS)
def test_a_component_sees_these_directories_of_its_node(which):
    (one,) = [one for one in rendered("default").of_kind("DaemonSet") if component(one) == which]
    pod = one["spec"]["template"]["spec"]
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    (container,) = pod["containers"]

    seen = {
        hosts[mount["name"]] + (" (read only)" if mount.get("readOnly") else "")
        for mount in container["volumeMounts"]
        if mount["name"] in hosts
    }

    assert seen == HOST_PATHS[which]


def test_the_mps_service_is_never_ended_by_kubernetes_itself():
    (one,) = [one for one in rendered("default").of_kind("DaemonSet") if component(one) == "mps"]
    pod = one["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert one["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "livenessProbe" not in container
    assert "limits" not in container["resources"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["hostPID"] is True
    assert pod["automountServiceAccountToken"] is False


def test_the_node_plugin_is_upgraded_with_two_instances_at_once_and_time_to_end_its_calls():
    (one,) = [one for one in rendered("default").of_kind("DaemonSet") if component(one) == "node"]
    pod = one["spec"]["template"]["spec"]

    assert one["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    from dra_gpu.kubelet import server

    needed = server.DRAIN_SECONDS + 2 * server.UNDO_SECONDS + server.DEREGISTRATION_SECONDS + 2 * server.CLOSE_SECONDS
    assert pod["terminationGracePeriodSeconds"] > needed
    assert not [port for container in pod["containers"] for port in container.get("ports", ()) if "hostPort" in port]


def test_the_driver_leaves_all_nodes_at_once_whatever_an_upgrade_would_do():
    (one,) = [one for one in rendered("leaving the nodes").of_kind("DaemonSet") if component(one) == "node"]
    (container,) = one["spec"]["template"]["spec"]["containers"]

    assert one["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"},
    }
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_kubelet_asks_the_node_plugin_for_its_health_where_that_is_served():
    def container(name):
        (one,) = [one for one in rendered(name).of_kind("DaemonSet") if component(one) == "node"]
        return one["spec"]["template"]["spec"]["containers"][0]

    served, quiet = container("monitored"), container("no metrics")

    assert served["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert served["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert served["ports"] == [{"name": "metrics", "containerPort": 9400}]
    assert {"--http-endpoint=:9400", "--metrics-path=/gpu/metrics"} <= set(served["args"])
    assert not {"readinessProbe", "livenessProbe", "ports"} & quiet.keys()
    assert not [flag for flag in quiet["args"] if flag.startswith("--http")]


def test_pods_run_on_nodes_that_have_one_of_the_vendors_labels():
    for one in rendered("default").of_kind("DaemonSet"):
        affinity = one["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

        keys = [term["matchExpressions"][0]["key"] for term in terms]

        assert "feature.node.kubernetes.io/pci-10de.present" in keys
        assert "nvidia.com/gpu.present" in keys
        assert all(len(term["matchExpressions"]) == 1 for term in terms)


def test_a_cluster_without_such_labels_tries_every_node():
    for one in rendered("every node, no vendor's label").of_kind("DaemonSet"):
        assert "affinity" not in one["spec"]["template"]["spec"]


@every_set
def test_a_network_policy_stands_for_every_workload_or_there_is_none(name):
    chart = rendered(name)
    policies = [one["spec"]["podSelector"]["matchLabels"] for one in chart.of_kind("NetworkPolicy")]

    for one in chart.workloads:
        labels = one["spec"]["template"]["metadata"]["labels"]
        chosen = [selector for selector in policies if selector.items() <= labels.items()]
        assert len(chosen) == (1 if VALUE_SETS[name].get("networkPolicy", {}).get("enabled", True) else 0)
