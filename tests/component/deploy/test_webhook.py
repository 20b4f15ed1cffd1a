"""The webhook in the chart: API servers find it, trust it, and hold up nothing but what is this driver's."""

import pytest

from tests.component.deploy.rendering import CA_BUNDLE, NAMESPACE, VALUE_SETS, rendered
from tests.component.go_programs import builds_go

pytestmark = builds_go
NAME = "dra-driver-gpu-webhook"
WITH_WEBHOOK = [name for name, values in VALUE_SETS.items() if values.get("webhook", {}).get("enabled", True)]


def container(name):
    (found,) = rendered(name).one("Deployment", "-webhook")["spec"]["template"]["spec"]["containers"]
    return found


def calls(name):
    (configuration,) = rendered(name).of_kind("ValidatingWebhookConfiguration")
    return configuration["webhooks"]


@pytest.mark.parametrize("name", WITH_WEBHOOK)
def test_api_servers_call_the_service_that_leads_to_its_pods(name):
    chart = rendered(name)
    service = chart.one("Service", "-webhook")
    pod = chart.one("Deployment", "-webhook")["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}

    for call in calls(name):
        called = call["clientConfig"]["service"]
        assert called["name"] == service["metadata"]["name"]
        assert called["namespace"] == service["metadata"]["namespace"]
        assert called["port"] == service["spec"]["ports"][0]["port"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert f"--port={ports[service['spec']['ports'][0]['targetPort']]}" in pod["spec"]["containers"][0]["args"]


def test_its_own_certificate_lies_in_a_secret_that_is_there_from_the_start():
    secret = rendered("default").one("Secret", "-webhook-tls")

    assert {f"--secret={NAME}-tls", f"--service={NAME}", f"--configuration={NAME}"} <= set(container("default")["args"])
    assert secret["metadata"]["name"] == f"{NAME}-tls"
    assert "data" not in secret  # an upgrade must not take the certificate away
    assert not any("caBundle" in call["clientConfig"] for call in calls("default"))


def test_its_rights_are_for_its_own_secret_and_configuration():
    chart = rendered("default")
    kinds = ("Role", "ClusterRole")
    roles = [one for kind in kinds for one in chart.of_kind(kind) if one["metadata"]["name"].endswith("-webhook")]

    named = {name for role in roles for rule in role["rules"] for name in rule["resourceNames"]}

    assert named == {f"{NAME}-tls", NAME}
    assert [one["metadata"]["name"] for one in chart.of_kind("ValidatingWebhookConfiguration")] == [NAME]


def test_cert_manager_makes_the_certificate_that_is_mounted_and_trusted():
    chart = rendered("certificate of cert-manager")
    (issuer,), (certificate,) = chart.of_kind("Issuer"), chart.of_kind("Certificate")
    (configuration,) = chart.of_kind("ValidatingWebhookConfiguration")
    (volume,) = chart.one("Deployment", "-webhook")["spec"]["template"]["spec"]["volumes"]

    assert issuer["spec"] == {"selfSigned": {}}
    assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    assert f"{NAME}.{NAMESPACE}.svc" in certificate["spec"]["dnsNames"]
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    injected = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"{NAMESPACE}/{certificate['metadata']['name']}"


def test_a_clusters_issuer_may_sign():
    chart = rendered("certificate of a cluster's issuer")
    (certificate,) = chart.of_kind("Certificate")

    assert chart.of_kind("Issuer") == []
    assert certificate["spec"]["issuerRef"] == {
        "group": "cert-manager.io",
        "kind": "ClusterIssuer",
        "name": "corporate",
    }


def test_a_secret_of_ones_own_is_mounted_and_its_ca_trusted():
    (volume,) = rendered("certificate of ones own").one("Deployment", "-webhook")["spec"]["template"]["spec"]["volumes"]

    assert volume["secret"] == {"secretName": "our-tls"}
    assert {call["clientConfig"]["caBundle"] for call in calls("certificate of ones own")} == {CA_BUNDLE}


@pytest.mark.parametrize("name", ["certificate of cert-manager", "certificate of ones own"])
def test_with_a_certificate_from_elsewhere_it_has_no_rights_at_all(name):
    chart = rendered(name)
    pod = chart.one("Deployment", "-webhook")["spec"]["template"]["spec"]
    kinds = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Secret")

    assert pod["automountServiceAccountToken"] is False
    assert not [one for kind in kinds for one in chart.of_kind(kind) if "webhook" in one["metadata"]["name"]]
    (mount,) = container(name)["volumeMounts"]
    assert f"--tls-cert-file={mount['mountPath']}/tls.crt" in container(name)["args"]
    assert f"--tls-private-key-file={mount['mountPath']}/tls.key" in container(name)["args"]


def test_what_becomes_of_claims_without_it_is_a_value():
    assert {call["failurePolicy"] for call in calls("default")} == {"Fail"}
    assert {(call["failurePolicy"], call["timeoutSeconds"]) for call in calls("everything")} == {("Ignore", 5)}


def test_without_it_the_policies_stay():
    chart = rendered("no webhook")

    assert not [one for one in chart.objects if "webhook" in one["metadata"]["name"]]
    assert len(chart.of_kind("ValidatingAdmissionPolicy")) == len(
        rendered("default").of_kind("ValidatingAdmissionPolicy")
    )


@pytest.mark.parametrize("component", ["controller", "webhook"])
def test_a_drain_takes_one_replica_at_a_time(component):
    chart = rendered("default")
    budget, deployment = chart.one("PodDisruptionBudget", component), chart.one("Deployment", component)
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert rendered("one replica of each").of_kind("PodDisruptionBudget") == []
