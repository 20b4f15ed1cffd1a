"""The chart renders into what Kubernetes takes and the driver's own programs understand, for every set of values."""

import json
import re
import tomllib

import pytest
import yaml

from dra_gpu.cdi.extra_edits import load_extra_edits
from dra_gpu.mps import settings as mps_settings
from tests.component.deploy.rendering import (
    CHART,
    NAMESPACE,
    RELEASE,
    ROOT,
    VALUE_SETS,
    Rendered,
    decoding_errors,
    documents,
    helm,
    rendered,
    template,
)
from tests.component.go_programs import builds_go

pytestmark = builds_go
every_set = pytest.mark.parametrize("name", VALUE_SETS)


def pods(name):
    return [(one, one["spec"]["template"]) for one in rendered(name).workloads]


def containers(name):
    return [container for _, pod in pods(name) for container in pod["spec"]["containers"]]


@every_set
def test_every_object_is_one_that_the_types_of_kubernetes_decode(name):
    # Those of the Prometheus Operator and cert-manager are looked at in test_monitoring and test_webhook.
    foreign = ("monitoring.coreos.com/", "cert-manager.io/")
    objects = [one for one in rendered(name).objects if not one["apiVersion"].startswith(foreign)]

    assert decoding_errors(objects) == []


@every_set
def test_no_object_stands_twice(name):
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in rendered(name).objects]

    assert sorted(map(str, names)) == sorted(map(str, set(names)))


@every_set
def test_every_object_says_which_release_it_is_of(name):
    for one in rendered(name).objects:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", one["metadata"]["name"]
        assert labels["helm.sh/chart"].startswith("dra-driver-gpu-")


@every_set
def test_a_workload_selects_its_own_pods_and_no_other_workloads(name):
    # A Job is given a selector of its own by Kubernetes.
    selectors = [
        (one["metadata"]["name"], one["spec"]["selector"]["matchLabels"], pod)
        for one, pod in pods(name)
        if one["kind"] != "Job"
    ]
    job = [pod for one, pod in pods(name) if one["kind"] == "Job"]

    for owner, selector, _ in selectors:
        chosen = [other for other, _, pod in selectors if selector.items() <= pod["metadata"]["labels"].items()]
        assert chosen == [owner]
        assert not [pod for pod in job if selector.items() <= pod["metadata"]["labels"].items()]


@every_set
def test_names_are_labels_of_dns_with_the_longest_release_too(name):
    for one, _ in pods(name):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", one["metadata"]["name"])


def test_a_long_release_name_is_cut_and_not_refused():
    made = helm("template", "r" * 53, CHART, "--namespace", NAMESPACE)

    assert made.returncode == 0, made.stderr
    found = re.findall(r"^  name: (r\S+)$", made.stdout, re.MULTILINE)
    assert found
    assert max(map(len, found)) <= 63


@every_set
def test_all_of_a_namespace_goes_into_one(name):
    cluster_wide = {
        "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "DeviceClass", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
    }  # fmt: skip
    wanted = VALUE_SETS[name].get("namespaceOverride", NAMESPACE)

    for one in rendered(name).objects:
        expected = None if one["kind"] in cluster_wide else wanted
        assert one["metadata"].get("namespace") == expected, one["metadata"]["name"]


@every_set
def test_one_image_with_a_version_runs_everywhere(name):
    images = {container["image"] for container in containers(name)}

    assert len(images) <= (2 if "image" in VALUE_SETS[name].get("mps", {}) else 1)
    for image in images:
        assert re.search(r"(:v\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})$", image)
        assert not image.endswith(":latest")


def test_a_registry_of_ones_own_is_a_matter_of_values():
    assert {container["image"] for container in containers("own registry")} == {
        f"registry.example.com:5000/gpu/driver@sha256:{'5e' * 32}"
    }
    for _, pod in pods("own registry"):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_an_upgrade_can_leave_the_mps_pods_as_they_are():
    images = {container["name"]: container["image"] for container in containers("MPS pods left as they are")}

    assert images["mps"].endswith(":v9.9.8")
    assert images["gpus"].endswith(":v9.9.9")


def test_no_vendor_no_pod_on_a_node():
    assert rendered("no vendor").of_kind("DaemonSet") == []


def test_the_chart_has_the_version_of_the_driver():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert chart["version"] == chart["appVersion"] == project["version"]


def test_helm_finds_nothing_to_complain_about():
    made = helm("lint", CHART, "--strict", "--namespace", NAMESPACE)

    assert made.returncode == 0, made.stdout


def test_the_package_has_what_the_directory_has(tmp_path):
    made = helm("package", CHART, "--destination", tmp_path)
    assert made.returncode == 0, made.stderr
    archive = next(tmp_path.glob("dra-driver-gpu-*.tgz"))

    from_archive = helm("template", RELEASE, archive, "--namespace", NAMESPACE)

    assert from_archive.stdout == helm("template", RELEASE, CHART, "--namespace", NAMESPACE).stdout


def test_the_notes_say_how_to_see_the_devices_of_each_node():
    made = helm("install", RELEASE, CHART, "--namespace", NAMESPACE, "--dry-run=client")

    assert made.returncode == 0, made.stderr
    notes = made.stdout.partition("NOTES:")[2]
    assert "kubectl gpu list" in notes
    assert "kubectl get resourceslices --field-selector spec.driver=gpu.nvidia.com" in notes


def test_the_notes_name_pods_by_the_labels_that_they_have():
    made = helm("install", RELEASE, CHART, "--namespace", NAMESPACE, "--dry-run=client", values=VALUE_SETS["names"])

    assert made.returncode == 0, made.stderr
    assert "kubectl get pods -n elsewhere -l team=platform -o wide" in made.stdout


@pytest.mark.parametrize(
    ("values", "namespace", "words"),
    [
        ({}, "default", "install with --namespace dra-gpu"),
        ({"kubeletRoot": "/a/../b"}, NAMESPACE, "give a path without .."),
        ({"kubeletRoot": f"/{'k' * 60}"}, NAMESPACE, "a Unix socket's may have 107"),
        ({"host": {"devRoot": "/run/../dev"}}, NAMESPACE, "host.devRoot is /run/../dev: give a path without .."),
        ({"runRoot": f"/{'r' * 42}"}, NAMESPACE, "paths of 108 bytes, and a Unix socket's may have 107"),
        ({"webhook": {"tls": {"mode": "secret"}}}, NAMESPACE, "give webhook.tls.secret.name"),
        (
            {"webhook": {"tls": {"mode": "secret", "secret": {"name": "ours", "caBundle": "Y2VydA=="}}}},
            NAMESPACE,
            "webhook.tls.secret.caBundle is no certificate",
        ),
        (
            {"webhook": {"tls": {"mode": "cert-manager", "certManager": {"issuerKind": "ClusterIssuer"}}}},
            NAMESPACE,
            "give its name as webhook.tls.certManager.issuerName",
        ),
        ({"webhook": {"containerPort": 8080}}, NAMESPACE, "are both 8080"),
        ({"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": 0}}}}, NAMESPACE, "neither maxSurge nor"),
        ({"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}}}}, NAMESPACE, "has both"),
        ({"controller": {"leaderElection": {"renewDeadline": "15s"}}}, NAMESPACE, "must be longer than renewDeadline"),
    ],
    ids=[
        "default namespace",
        "path with ..",
        "sockets' paths too long",
        "another path with ..",
        "pipes' paths too long",
        "a Secret without a name",
        "a CA that is none",
        "a cluster's issuer without a name",
        "two servers on one port",
        "an upgrade that cannot begin",
        "an upgrade that Kubernetes refuses",
        "two leaders at once",
    ],
)
def test_what_would_never_work_is_refused_with_the_way_out(values, namespace, words):
    made = template(values, namespace=namespace)

    assert made.returncode != 0
    assert words in made.stderr


def test_a_run_root_as_long_as_sockets_allow_is_taken_by_chart_and_service():
    made = template({"runRoot": f"/{'r' * 41}"})

    assert made.returncode == 0, made.stderr
    (container,) = Rendered(tuple(documents(made.stdout))).one("DaemonSet", "-mps")["spec"]["template"]["spec"][
        "containers"
    ]
    assert mps_settings.parse(container["args"][1:], {}) is not None


@pytest.mark.parametrize(
    "strategy",
    [
        {"rollingUpdate": {"maxSurge": "25%"}},
        {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        {"type": "OnDelete"},
        None,
    ],
    ids=str,
)
def test_an_upgrade_goes_through_the_nodes_as_one_likes(strategy):
    made = template({"kubeletPlugin": {"updateStrategy": strategy}})

    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("name", ["leaving the nodes", "leaving without metrics"])
def test_a_pod_that_leaves_its_node_says_when_it_has_whoever_wants_metrics_or_not(name):
    (container,) = rendered(name).one("DaemonSet", "-node-nvidia")["spec"]["template"]["spec"]["containers"]

    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_check_before_an_uninstall_runs_on_nodes_for_the_controller_and_no_replica_keeps_it_away():
    controller = rendered("everything").one("Deployment", "-controller")["spec"]["template"]["spec"]
    check = rendered("everything").one("Job", "-uninstall-check")["spec"]["template"]["spec"]

    assert check["nodeSelector"] == controller["nodeSelector"]
    assert check["affinity"] == {"nodeAffinity": controller["affinity"]["nodeAffinity"]}


def test_the_default_namespace_is_for_those_who_insist():
    assert template({"allowDefaultNamespace": True}, namespace="default").returncode == 0


def test_extra_edits_reach_the_driver_as_the_file_it_reads(tmp_path):
    (found,) = [one for one in rendered("everything").of_kind("ConfigMap") if "extra-edits.json" in one["data"]]
    file = tmp_path / "extra-edits.json"
    file.write_text(found["data"]["extra-edits.json"])

    assert json.loads(file.read_text()) == {"containerEdits": VALUE_SETS["everything"]["extraEdits"]}
    assert load_extra_edits(file).env == ("CUDA_CACHE_PATH=/tmp/cuda",)


def test_a_kind_stays_when_the_release_goes_for_all_its_objects_would_go_with_it():
    (kind,) = rendered("default").of_kind("CustomResourceDefinition")

    assert kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert rendered("somebody else's kinds").of_kind("CustomResourceDefinition") == []
