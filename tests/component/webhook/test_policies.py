"""What holds while no webhook answers, decided by Kubernetes' own code: the policies, and when a webhook is asked."""

import copy
import json
import random
import subprocess
from pathlib import Path

import pytest
import yaml

from dra_gpu.api import opaque
from dra_gpu.validation.classes import CLASSES
from dra_gpu.webhook import admission, ownership
from tests.component.go_programs import builds_go, go_program
from tests.component.node.hostile_claims import mutated
from tests.unit.validation.manifests import choice, claim, config, device_class, errors, request
from tests.unit.webhook.questions import KINDS, question

pytestmark = builds_go

DEPLOY = Path(__file__).parents[3] / "deploy"
DOMAIN = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "d"}, "spec": {}}
PARTITIONS = [name for name, facts in CLASSES.items() if facts.partition]


def manifests(name, kind):
    return [one for one in yaml.safe_load_all((DEPLOY / name).read_text()) if one and one["kind"] == kind]


def of_name(one):
    return one["metadata"]["name"].partition(".")[0]


POLICIES = {of_name(one): one for one in manifests("policies.yaml", "ValidatingAdmissionPolicy")}
(CONFIGURATION,) = manifests("webhook.yaml", "ValidatingWebhookConfiguration")


@pytest.fixture(scope="module")
def api_server():
    """Kubernetes' own admission code as a process."""
    with subprocess.Popen([go_program("go-policies")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:

        def ask(asked):
            one.stdin.write(json.dumps(asked) + "\n")
            one.stdin.flush()
            answer = json.loads(one.stdout.readline())
            assert "error" not in answer, answer
            return answer

        yield ask
        one.stdin.close()


def asked(document, operation="CREATE", old=None):
    resource = KINDS[document["kind"]]
    return {"operation": operation, "resource": resource, "object": document, "oldObject": old}


@pytest.fixture(scope="module")
def refused(api_server):
    """Return what a policy says against an object; nothing when it is admitted."""

    def refused(policy, document):
        (said,) = api_server({"policy": POLICIES[policy], "requests": [asked(document)]})["decisions"]
        return said

    return refused


def both_kinds(*requests):
    return [claim(*requests), claim(*requests, kind="ResourceClaimTemplate")]


def partitions(count=None, cls="mig.nvidia.com", name="r"):
    return request(name, cls, **({} if count is None else {"count": count}), allocationMode="ExactCount")


def alternatives(name, *counts, cls="mig.nvidia.com"):
    found = [{"name": f"s{n}", "deviceClassName": cls, "count": count} for n, count in enumerate(counts)]
    return {"name": name, "firstAvailable": found}


@pytest.mark.parametrize("cls", PARTITIONS)
def test_more_than_seven_partitions_are_refused_in_claims_and_templates(refused, cls):
    for document in both_kinds(partitions(8, cls)):
        (said,) = refused("few-partitions-a-claim", document)

        assert said.startswith("deny: this claim asks for 8 partitions")
        assert said.endswith("make several claims of at most 7")
    for document in both_kinds(partitions(7, cls)):
        assert refused("few-partitions-a-claim", document) == []


def test_partitions_are_counted_over_all_requests_of_a_claim(refused):
    single = [partitions(name=f"r{number}") for number in range(8)]

    for document in (*both_kinds(*single), *both_kinds(partitions(4, name="a"), partitions(4, PARTITIONS[1], "b"))):
        assert "asks for 8 partitions" in refused("few-partitions-a-claim", document)[0]
    for document in both_kinds(*single[:7]):
        assert refused("few-partitions-a-claim", document) == []


def test_of_alternatives_the_one_with_the_most_counts(refused):
    for document in both_kinds(alternatives("a", 1, 8, 2)):
        assert "asks for 8 partitions" in refused("few-partitions-a-claim", document)[0]
    for document in both_kinds(alternatives("a", 3, 4), alternatives("b", 3, 2)):
        assert refused("few-partitions-a-claim", document) == []
    for document in both_kinds(alternatives("a", 3, 4), alternatives("b", 3, 4)):
        assert "asks for 8 partitions" in refused("few-partitions-a-claim", document)[0]


def test_the_policy_counts_as_validation_does(api_server):
    rng = random.Random(7)
    documents = []
    for _ in range(300):
        wanted = []
        for number in range(rng.randint(1, 4)):
            counts = [rng.choice([None, 1, 2, 3, 5, 8]) for _ in range(rng.randint(1, 3))]
            asks = [
                {"deviceClassName": rng.choice([*PARTITIONS, "gpu.nvidia.com", "x"])}
                | ({} if count is None else {"count": count})
                for count in counts
            ]
            if len(asks) == 1:
                wanted.append({"name": f"r{number}", "exactly": asks[0]})
            else:
                ways = [{"name": f"s{index}"} | ask for index, ask in enumerate(asks)]
                wanted.append({"name": f"r{number}", "firstAvailable": ways})
        documents += both_kinds(*wanted)

    policy = {"policy": POLICIES["few-partitions-a-claim"], "requests": [asked(one) for one in documents]}
    denied = [bool(said) for said in api_server(policy)["decisions"]]

    assert denied == [any("7 partitions" in one.reason for one in errors(document)) for document in documents]
    assert 100 < sum(denied) < 500


def test_devices_of_other_classes_are_not_counted(refused):
    for document in (
        *both_kinds(partitions(32, "gpu.nvidia.com")),
        *both_kinds(alternatives("a", 20, cls="nic.example.com"), partitions(7)),
        *both_kinds(request(cls="mig.nvidia.com", allocationMode="All")),
    ):
        assert refused("few-partitions-a-claim", document) == []


def test_a_claim_without_requests_is_admitted(refused):
    empty = claim() | {"spec": {"devices": {}}}
    template = claim(kind="ResourceClaimTemplate") | {"spec": {"spec": {"devices": {}}}}

    for name in POLICIES:
        assert refused(name, empty) == refused(name, template) == []


def test_the_monitor_class_needs_admin_access_and_is_no_alternative(refused):
    monitor = "monitor.nvidia.com"
    for document in (*both_kinds(request(cls=monitor)), *both_kinds(choice("a", ("x", monitor)))):
        assert f"uses class {monitor} without admin access" in refused("monitor-needs-admin-access", document)[0]
    for document in both_kinds(request(cls="monitor.nvidia.com", adminAccess=True), request("b")):
        assert refused("monitor-needs-admin-access", document) == []


def test_the_largest_claim_costs_less_than_an_expression_may(refused):
    widest = [alternatives(f"r{number}", *[1] * 8, cls="gpu.nvidia.com") for number in range(32)]

    for name in POLICIES:
        for document in both_kinds(*widest):
            assert refused(name, document) == []


def test_the_policies_know_the_classes_that_the_code_knows():
    text = json.dumps(POLICIES["few-partitions-a-claim"])

    assert {name for name in CLASSES if f"'{name}'" in text} == set(PARTITIONS)
    assert {one["spec"]["policyName"] for one in manifests("policies.yaml", "ValidatingAdmissionPolicyBinding")} == {
        one["metadata"]["name"] for one in POLICIES.values()
    }


@pytest.fixture(scope="module")
def called(api_server):
    """Tell for each request whether the API server asks a webhook."""

    def called(*requests):
        answers = {}
        for webhook in CONFIGURATION["webhooks"]:
            conditions = {"matchConditions": webhook["matchConditions"], "requests": list(requests)}
            resources = {one for rule in webhook["rules"] for one in rule["resources"]}
            answers |= {
                index: calls
                for index, calls in enumerate(api_server(conditions)["called"])
                if requests[index]["resource"] in resources
            }
        return [answers[index] for index in range(len(requests))]

    return called


FOREIGN = config(driver="nic.example.com", version="nic.example.com/v1", kind="NicConfig")


def test_a_webhook_is_asked_about_every_class_and_driver_of_ours(called):
    documents = []
    for version in ("v1", "v1beta2", "v1beta1"):
        for kind in ("ResourceClaim", "ResourceClaimTemplate"):
            for name in CLASSES:
                documents.append(claim(request("o", "other"), request("a", name), version=version, kind=kind))
                documents.append(claim(choice("a", ("x", "other"), ("y", name)), version=version, kind=kind))
            documents += [
                claim(request(cls="x"), configs=[FOREIGN, config(driver=driver)], version=version, kind=kind)
                for driver in opaque.KINDS
            ]
        documents += [
            device_class("mine", config(driver=driver)) | {"apiVersion": f"resource.k8s.io/{version}"}
            for driver in opaque.KINDS
        ]
    documents.append(DOMAIN)

    assert called(*map(asked, documents)) == [True] * len(documents)
    assert all(admission.is_ours(question(one)) for one in documents)


def test_a_webhook_is_never_asked_about_what_is_nothing_of_ours(called):
    documents = [
        claim(request(cls="nic.example.com"), configs=[FOREIGN], version=version, kind=kind)
        for version in ("v1", "v1beta2", "v1beta1")
        for kind in ("ResourceClaim", "ResourceClaimTemplate")
    ]
    documents += [
        claim(choice("a", ("x", "nic.example.com"))),
        claim() | {"spec": {"devices": {}}},
        device_class("nic.example.com", FOREIGN),
        device_class("nic.example.com"),
    ]

    assert called(*map(asked, documents)) == [False] * len(documents)


def test_a_webhook_is_not_asked_about_updates_without_new_content_or_of_what_is_being_deleted(called):
    bad = device_class("mine", config(more=1))
    for old in (bad, DOMAIN):
        relabelled, going, changed = (copy.deepcopy(old) for _ in range(3))
        relabelled["metadata"]["labels"] = {"a": "b"}
        relabelled["status"] = {"status": "Ready"}
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        going["spec"] = changed["spec"] = bad["spec"] | {"extendedResourceName": "example.com/x"}

        updates = [asked(new, "UPDATE", old) for new in (relabelled, going, changed)]
        assert called(*updates) == [False, False, True]


def test_the_webhook_and_the_conditions_agree_about_a_thousand_mutated_objects(called):
    rng = random.Random(1)
    good = [
        claim(request("a"), choice("b", ("x", "mig.nvidia.com")), configs=[FOREIGN, config()]),
        claim(request("a", "nic.example.com"), configs=[FOREIGN, config()], kind="ResourceClaimTemplate"),
        claim(request("a"), configs=[FOREIGN], version="v1beta1"),
    ]
    documents = []
    while len(documents) < 1000:
        base = rng.choice(good)
        document = base | {"spec": mutated(base["spec"], rng)}
        if well_formed(document["spec"]):
            documents.append(document)

    assert called(*map(asked, documents)) == [ownership.is_ours(one) for one in documents]


def well_formed(spec):
    """Tell whether lists are lists and objects objects: what is not, does not get past the API server's decoder."""
    if not isinstance(spec, dict):
        return False
    if "spec" in spec:
        return well_formed(spec["spec"]) and "devices" not in spec
    devices = spec.get("devices", {})
    if not isinstance(devices, dict):
        return False
    requests, configs = devices.get("requests", []), devices.get("config", [])
    if not isinstance(requests, list) or not isinstance(configs, list):
        return False
    asks = []
    for one in requests:
        alternatives = one.get("firstAvailable", []) if isinstance(one, dict) else None
        if not isinstance(alternatives, list):
            return False
        asks += [one, one.get("exactly", {}), *alternatives]
    inner = [one.get("opaque", {}) if isinstance(one, dict) else None for one in configs]
    return all(isinstance(one, dict) for one in (*asks, *inner))


def test_the_webhook_is_asked_about_every_version_and_kind_that_it_knows():
    rules = {
        (group, version, resource)
        for webhook in CONFIGURATION["webhooks"]
        for rule in webhook["rules"]
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
        for resource in rule["resources"]
    }

    claims = {
        ("resource.k8s.io", version, resource)
        for version in ("v1", "v1beta2", "v1beta1")
        for resource in ("resourceclaims", "resourceclaimtemplates", "deviceclasses")
    }
    domains = {("resource.nvidia.com", version, "computedomains") for version in ("v1beta1", "v1beta2")}
    assert rules == claims | domains | {("resource.dra-gpu.dev", "v1alpha1", "claimresizes")}
    assert {webhook["failurePolicy"] for webhook in CONFIGURATION["webhooks"]} == {"Fail"}


def test_the_examples_are_admitted_by_policies_and_webhook(refused):
    checked = 0

    for path in sorted((DEPLOY.parent / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if not document or document["kind"] not in KINDS:
                continue
            asked_about = question(document)
            assert not admission.is_ours(asked_about) or admission.problems(asked_about) == (), path
            if document["kind"] != "DeviceClass":
                assert all(refused(name, document) == [] for name in POLICIES), path
            checked += 1

    assert checked > 5


OF_CONTROLLER = {of_name(one): one for one in manifests("rbac/controller.yaml", "ValidatingAdmissionPolicy")}
ACCOUNT = "system:serviceaccount:dra-gpu:dra-gpu-"
CONTROLLER, NODE = {"user": f"{ACCOUNT}controller"}, {"user": f"{ACCOUNT}node"}
ADMINISTRATOR = {"user": "root", "groups": ["system:masters"]}
MAKES_CLAIMS = {"user": "system:kube-controller-manager", "groups": ["system:authenticated"]}


def labelled(uid):
    one = claim(request())
    return one | {"metadata": one["metadata"] | {"labels": {"resource.dra-gpu.dev/claim-resize": uid, "team": "a"}}}


def test_only_the_controller_says_which_claims_are_growths(api_server):
    plain, growth, other = claim(request()), labelled("uid-1"), labelled("uid-2")
    renamed = claim(request()) | {"metadata": plain["metadata"] | {"labels": {"team": "a"}}}
    changes = [
        asked(growth),
        asked(growth, "UPDATE", plain),
        asked(plain, "UPDATE", growth),
        asked(renamed, "UPDATE", growth),
        asked(other, "UPDATE", growth),
    ]
    others = [asked(plain), asked(renamed), asked(renamed, "UPDATE", plain), asked(growth, "UPDATE", growth)]
    policy = OF_CONTROLLER["growths-are-the-controllers"]

    def said(requests, who):
        asking = {"policy": policy, "requests": [one | who for one in requests]}
        return [len(one) for one in api_server(asking)["decisions"]]

    for who in ({}, NODE, MAKES_CLAIMS):
        assert said(changes, who) == [1] * len(changes)
        assert said(others, who) == [0] * len(others)
    for who in (CONTROLLER, ADMINISTRATOR):
        assert said([*changes, *others], who) == [0] * (len(changes) + len(others))


def test_only_the_driver_says_how_far_a_resize_is(api_server):
    before = {"apiVersion": "resource.dra-gpu.dev/v1alpha1", "kind": "ClaimResize", "metadata": {"name": "training"}}
    more = before | {"status": {"permit": 2, "permitted": {"memory": "80Gi"}}}
    requests = [asked(more, "UPDATE", before), asked(more, "UPDATE", more)]
    policy = OF_CONTROLLER["resizes-are-told-by-the-driver"]

    for who, refused in (({}, 1), (CONTROLLER, 0), (NODE, 0), (ADMINISTRATOR, 0)):
        asking = {"policy": policy, "requests": [one | who for one in requests]}
        assert [len(one) for one in api_server(asking)["decisions"]] == [refused, 0]


def test_every_policy_of_the_controller_is_bound():
    bound = {one["spec"]["policyName"] for one in manifests("rbac/controller.yaml", "ValidatingAdmissionPolicyBinding")}

    assert bound == {one["metadata"]["name"] for one in OF_CONTROLLER.values()}
