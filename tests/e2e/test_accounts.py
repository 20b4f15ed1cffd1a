"""What the accounts of the driver's processes may do, as the API server itself tells and does it.

The node plugin's account has tests of its own besides (test_rights.py, test_attacker.py); here are the tables of all,
and somebody who has the token of the controller or of the webhook.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from lab.api import Api, ApiError, Json, path_of
from lab.identity import NAMESPACE

from tests.e2e.harness.accounts import account_api, rights_of
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.namespace import TestNamespace
from tests.e2e.harness.objects import claim
from tests.e2e.harness.slices import SLICES
from tests.e2e.harness.waiting import wait_until
from tests.e2e.test_attacker import ADMISSION, RBAC, a_pod, of_kind, refused, token_request
from tests.e2e.test_rights import a_slice

NODE, CONTROLLER, WEBHOOK = "dra-gpu-node", "dra-gpu-controller", "dra-gpu-webhook"
TOUCHED = "resource.dra-gpu.dev/prepare-again"
CONFIGURATIONS = path_of(ADMISSION, "validatingwebhookconfigurations")
LEASES = path_of("coordination.k8s.io/v1", "leases", namespace=NAMESPACE)
SECRETS = path_of("v1", "secrets", namespace=NAMESPACE)
pytestmark = pytest.mark.budget(5)

#: What each account may do beyond what every account may: anywhere, and in the driver's own namespace as well.
ANYWHERE: dict[str, dict[str, str]] = {
    NODE: {
        "claimresizes.resource.dra-gpu.dev": "get list watch",
        "claimresizes/status.resource.dra-gpu.dev": "patch",
        "devicetaintrules.resource.k8s.io": "list watch",
        "events": "create patch",
        "nodes": "get",
        "resourceclaims.resource.k8s.io": "get",
        "resourceclaims/driver.resource.k8s.io gpu.nvidia.com": "associated-node:patch associated-node:update",
        "resourceclaims/status.resource.k8s.io": "patch update",
        "resourceslices.resource.k8s.io": "create delete get list update watch",
    },
    CONTROLLER: {
        "customresourcedefinitions.apiextensions.k8s.io claimresizes.resource.dra-gpu.dev": "get",
        "events": "list watch",
        "claimresizes.resource.dra-gpu.dev": "create delete get list patch watch",
        "claimresizes/status.resource.dra-gpu.dev": "patch",
        "nodes": "list",
        "pods": "create delete get list patch watch",
        "resourceclaims.resource.k8s.io": "create delete get list watch",
        "resourceclaims/binding.resource.k8s.io": "patch",
        "resourceclaims/status.resource.k8s.io": "patch",
        "resourceslices.resource.k8s.io": "delete list",
    },
    WEBHOOK: {"validatingwebhookconfigurations.admissionregistration.k8s.io dra-gpu-webhook": "get patch"},
}
AT_HOME: dict[str, dict[str, str]] = {
    NODE: {},
    CONTROLLER: {
        "leases.coordination.k8s.io": "create",
        "leases.coordination.k8s.io dra-gpu-controller": "get update",
    },
    WEBHOOK: {"secrets dra-gpu-webhook-tls": "get patch"},
}


@pytest.mark.case("C154")
@pytest.mark.parametrize("account", ANYWHERE)
def test_an_account_may_do_what_the_table_says_and_nothing_else(
    cluster: Cluster, namespace: TestNamespace, account: str
) -> None:
    anybody = account_api(cluster, "default", namespace.name)
    mine = account_api(cluster, account)

    def beyond_everybody(where: str) -> dict[str, str]:
        common = rights_of(anybody, where)
        found = rights_of(mine, where)
        return {what: " ".join(sorted(verbs)) for what, verbs in found.items() if common.get(what) != verbs}

    assert beyond_everybody(namespace.name) == ANYWHERE[account]
    assert beyond_everybody(NAMESPACE) == ANYWHERE[account] | AT_HOME[account]


@dataclass(frozen=True)
class Scene:
    """Things of other people, and clients with the tokens of two of the driver's accounts."""

    cluster: Cluster
    controller: Api
    webhook: Api
    namespace: str

    @property
    def admin(self) -> Api:
        """A client with all rights."""
        return self.cluster.api

    def path(self, resource: str, name: str = "", subresource: str = "", group: str = "v1") -> str:
        """Where something of the other people lies."""
        return path_of(group, resource, name, namespace=self.namespace, subresource=subresource)

    def claims(self, name: str = "", subresource: str = "") -> str:
        """Where their claims lie."""
        return self.path("resourceclaims", name, subresource, "resource.k8s.io/v1")

    def belongings(self) -> list[Json]:
        """What stands in it all but a pod's status: equal before and after means that nobody touched it."""
        paths = [self.path("pods", "job"), self.path("secrets", "password"), self.claims("held")]
        paths += [f"{SLICES}/accounts-nic", f"{SECRETS}/other", f"{LEASES}/other", f"{CONFIGURATIONS}/accounts-other"]
        found = [self.admin.get(path) for path in paths]
        for one in found:
            if one["kind"] == "Pod":
                del one["status"]
            for volatile in ("managedFields", "resourceVersion"):
                one["metadata"].pop(volatile, None)
        return found


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """The things, and the policies about the accounts in force."""
    api = cluster.api
    with ExitStack() as stack:
        namespace = TestNamespace(api, f"e2e-{secrets.token_hex(4)}")
        api.create("/api/v1/namespaces", of_kind("v1", "Namespace", namespace.name))
        stack.callback(namespace.clean)
        made = Scene(cluster, account_api(cluster, CONTROLLER), account_api(cluster, WEBHOOK), namespace.name)
        account = made.path("serviceaccounts", "default")
        wait_until("service account of the namespace", lambda: api.exists(account))

        def put(collection: str, body: Json) -> None:
            path = f"{collection}/{body['metadata']['name']}"
            api.delete(path, grace_seconds=0)  # what a run that was killed has left in a cluster that is kept
            api.create(collection, body)
            stack.callback(api.delete, path, grace_seconds=0)

        gated = a_pod("job", "")
        gated["spec"] = {"schedulingGates": [{"name": "example.com/never"}], "containers": gated["spec"]["containers"]}
        put(made.path("pods"), gated)
        put(made.path("secrets"), of_kind("v1", "Secret", "password", stringData={"password": "hunter2"}))
        for name, driver in (("held", "gpu.nvidia.com"), ("nic", "nic.example.com")):
            put(made.claims(), claim(name))
            result = {"request": "gpu", "driver": driver, "pool": "accounts", "device": "gpu-99"}
            status = {"allocation": {"devices": {"results": [result]}}}
            api.patch(made.claims(name, "status"), {"status": status})
        put(SLICES, a_slice("accounts-nic", cluster.node.name, driver="nic.example.com"))
        put(SECRETS, of_kind("v1", "Secret", "other", stringData={"password": "hunter2"}))
        put(LEASES, of_kind("coordination.k8s.io/v1", "Lease", "other", spec={"holderIdentity": "somebody"}))
        put(CONFIGURATIONS, of_kind(ADMISSION, "ValidatingWebhookConfiguration", "accounts-other", webhooks=[]))
        # An admission policy takes effect a moment after it was written.
        wait_until("the policy about pods in force", lambda: refused(lambda: label(made, "x")))
        wait_until("the policy about other drivers' slices in force", lambda: refused(lambda: sweep_others(made)))
        wait_until("the policy about growths in force", lambda: refused(lambda: make_a_pod(made)))
        wait_until("the policy about claims' users in force", lambda: refused(lambda: reserve(made, "nic", [RESIZE])))
        yield made


def on_pod(scene: Scene, change: Json, subresource: str = "", kind: str = "merge") -> Json:
    """Change somebody's pod with the controller's token."""
    return scene.controller.patch(scene.path("pods", "job", subresource), change, kind)


def label(scene: Scene, value: str) -> None:
    """Give somebody's pod a label, and take it away where that was let through."""
    on_pod(scene, {"metadata": {"labels": {"seen": value}}})
    on_pod(scene, {"metadata": {"labels": {"seen": None}}})


def sweep_others(scene: Scene) -> None:
    """Delete a slice of another driver, which is put back where that was let through."""
    scene.controller.delete(f"{SLICES}/accounts-nic")
    scene.admin.create(SLICES, a_slice("accounts-nic", scene.cluster.node.name, driver="nic.example.com"))


def make_a_pod(scene: Scene, name: str = "mine", **spec: object) -> object:
    """Make a pod with the controller's token; it is deleted where that was let through."""
    body = a_pod(name, "")
    body["spec"] = {"schedulingGates": [{"name": "example.com/never"}], "containers": body["spec"]["containers"]} | spec
    if name != "mine":
        body["metadata"] |= GROWTH
    found = scene.controller.create(scene.path("pods"), body)
    scene.admin.delete(scene.path("pods", name), grace_seconds=0)
    return found


def make_a_claim(scene: Scene, **metadata: object) -> object:
    """The same with a claim."""
    body = claim("held-grow-00000")
    body["metadata"] |= metadata
    found = scene.controller.create(scene.claims(), body)
    scene.admin.delete(scene.claims("held-grow-00000"))
    return found


def reserve(scene: Scene, name: str, users: list[Json]) -> object:
    """Say who may use somebody's claim; what was let through is taken back."""
    found = scene.controller.patch(scene.claims(name, "status"), {"status": {"reservedFor": users}})
    scene.admin.patch(scene.claims(name, "status"), {"status": {"reservedFor": []}})
    return found


def token_of(api: Api, account: str) -> object:
    """Ask for the token of an account of the driver."""
    return api.create(
        path_of("v1", "serviceaccounts", account, namespace=NAMESPACE, subresource="token"), token_request()
    )


def all_rights(api: Api, account: str) -> object:
    """Give an account all rights."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = of_kind(RBAC, "ClusterRoleBinding", "mine", roleRef=role, subjects=[subject])
    return api.create(path_of(RBAC, "clusterrolebindings"), binding)


#: What makes a pod or claim one that stands in for a growth.
GROWTH: Json = {
    "labels": {"resource.dra-gpu.dev/claim-resize": "6a1f0c5e-0000-4000-8000-000000000000"},
    "ownerReferences": [
        {
            "apiVersion": "resource.dra-gpu.dev/v1alpha1",
            "kind": "ClaimResize",
            "name": "held",
            "uid": "6a1f0c5e-0000-4000-8000-000000000001",
        }
    ],
}
UID = "6a1f0c5e-0000-4000-8000-000000000002"
RESIZE: Json = {"apiGroup": "resource.dra-gpu.dev", "resource": "claimresizes", "name": "held", "uid": UID}
CARRIED: Json = {
    "resourceClaims": [{"name": "growth", "resourceClaimName": "held-grow-00000"}],
    "automountServiceAccountToken": False,
}
NEW_IMAGE = {"spec": {"containers": [{"name": "main", "image": "evil.invalid/evil"}]}}
Attempt = Callable[[Scene], object]

WITH_THE_CONTROLLERS_TOKEN: dict[str, Attempt] = {
    # Pods: one annotation, and nothing else of them
    "another image in a pod": lambda s: on_pod(s, NEW_IMAGE, kind="strategic"),
    "another image beside the annotation": lambda s: on_pod(
        s, NEW_IMAGE | {"metadata": {"annotations": {TOUCHED: "now"}}}, kind="strategic"
    ),
    "a pod let to the scheduler": lambda s: on_pod(s, {"spec": {"schedulingGates": []}}),
    "a pod's label": lambda s: on_pod(s, {"metadata": {"labels": {"team": "mine"}}}),
    "a pod's other annotation": lambda s: on_pod(s, {"metadata": {"annotations": {"other": "x"}}}),
    "a pod's finalizer": lambda s: on_pod(s, {"metadata": {"finalizers": ["example.com/never"]}}),
    "a pod's owner": lambda s: on_pod(
        s, {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}]}}
    ),
    "a pod's status": lambda s: on_pod(s, {"status": {"phase": "Failed"}}, "status"),
    "a container into a pod": lambda s: on_pod(s, {"spec": {"ephemeralContainers": []}}, "ephemeralcontainers"),
    "a command in a pod": lambda s: s.controller.create(s.path("pods", "job", "exec"), {}),
    "a pod's log": lambda s: s.controller.get(s.path("pods", "job", "log")),
    # Pods that stand in for a growth: they never start, and have no rights
    "a pod of its own": make_a_pod,
    "a growth's pod that would start": lambda s: make_a_pod(s, "held-grow-00000", automountServiceAccountToken=False),
    "a growth's pod with an account": lambda s: make_a_pod(
        s, "held-grow-00000", **(CARRIED | {"automountServiceAccountToken": True})
    ),
    "a growth's pod with the host's processes": lambda s: make_a_pod(s, "held-grow-00000", hostPID=True, **CARRIED),
    "a growth's pod with the host's files": lambda s: make_a_pod(
        s, "held-grow-00000", volumes=[{"name": "root", "hostPath": {"path": "/"}}], **CARRIED
    ),
    "a growth's pod with somebody's claim": lambda s: make_a_pod(
        s,
        "held-grow-00000",
        **(CARRIED | {"resourceClaims": [{"name": "growth", "resourceClaimName": "held"}]}),
    ),
    "somebody's pod deleted": lambda s: s.controller.delete(s.path("pods", "job")),
    # Claims that do, and who uses a claim
    "a claim of its own": make_a_claim,
    "a claim of no resize": lambda s: make_a_claim(s, labels=GROWTH["labels"]),
    "somebody's claim used by a pod": lambda s: reserve(s, "held", [{"resource": "pods", "name": "job", "uid": UID}]),
    "a claim of another driver kept": lambda s: reserve(s, "nic", [RESIZE]),
    "a claim of another driver freed": lambda s: s.controller.patch(
        s.claims("nic", "status"), {"status": {"allocation": None}}
    ),
    "what a driver says of a device": lambda s: s.controller.patch(
        s.claims("held", "status"),
        {
            "status": {
                "devices": [{"driver": "gpu.nvidia.com", "pool": "accounts", "device": "gpu-99", "data": {"a": 1}}]
            }
        },
    ),
    # Slices: of lost nodes of our drivers
    "a slice of another driver deleted": sweep_others,
    "a slice of its own": lambda s: s.controller.create(SLICES, a_slice("more", s.cluster.node.name)),
    "a slice changed": lambda s: s.controller.patch(f"{SLICES}/accounts-nic", {"metadata": {"labels": {"x": "y"}}}),
    # Everything else
    "a claim's spec": lambda s: s.controller.patch(s.claims("held"), {"metadata": {"labels": {"x": "y"}}}),
    "a claim deleted": lambda s: s.controller.delete(s.claims("held")),
    "a secret": lambda s: s.controller.get(s.path("secrets", "password")),
    "the webhook's secret": lambda s: s.controller.get(f"{SECRETS}/dra-gpu-webhook-tls"),
    "all secrets": lambda s: s.controller.get("/api/v1/secrets"),
    "a node": lambda s: s.controller.patch(f"/api/v1/nodes/{s.cluster.node.name}", {"spec": {"unschedulable": True}}),
    "another lease here": lambda s: s.controller.replace(
        f"{LEASES}/other",
        of_kind("coordination.k8s.io/v1", "Lease", "other", spec={"holderIdentity": "mine"}),
    ),
    "a lease of the cluster": lambda s: s.controller.create(
        path_of("coordination.k8s.io/v1", "leases", namespace="kube-system"),
        of_kind("coordination.k8s.io/v1", "Lease", "mine", spec={"holderIdentity": "mine"}),
    ),
    "the node plugin's token": lambda s: token_of(s.controller, NODE),
    "all rights": lambda s: all_rights(s.controller, CONTROLLER),
    "no policy": lambda s: s.controller.delete(
        path_of(ADMISSION, "validatingadmissionpolicies", "controller-touches-pods.dra-gpu.dev")
    ),
    "to be an administrator": lambda s: s.controller.create(
        path_of("certificates.k8s.io/v1", "certificatesigningrequests"),
        of_kind(
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            "mine",
            spec={"request": "", "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
        ),
    ),
}

WITH_THE_WEBHOOKS_TOKEN: dict[str, Attempt] = {
    "another secret here": lambda s: s.webhook.get(f"{SECRETS}/other"),
    "all secrets here": lambda s: s.webhook.get(SECRETS),
    "a secret elsewhere": lambda s: s.webhook.get(s.path("secrets", "password")),
    "a secret of its own": lambda s: s.webhook.create(SECRETS, of_kind("v1", "Secret", "mine")),
    "its secret deleted": lambda s: s.webhook.delete(f"{SECRETS}/dra-gpu-webhook-tls", missing_ok=False),
    "another webhook configuration": lambda s: s.webhook.patch(f"{CONFIGURATIONS}/accounts-other", {"webhooks": []}),
    "a webhook configuration more": lambda s: s.webhook.create(
        CONFIGURATIONS, of_kind(ADMISSION, "ValidatingWebhookConfiguration", "mine", webhooks=[])
    ),
    "its configuration deleted": lambda s: s.webhook.delete(f"{CONFIGURATIONS}/dra-gpu-webhook", missing_ok=False),
    "to change what is stored": lambda s: s.webhook.create(
        path_of(ADMISSION, "mutatingwebhookconfigurations"),
        of_kind(ADMISSION, "MutatingWebhookConfiguration", "mine", webhooks=[]),
    ),
    "a policy away": lambda s: s.webhook.delete(
        path_of(ADMISSION, "validatingadmissionpolicies", "monitor-needs-admin-access.dra-gpu.dev")
    ),
    "a claim": lambda s: s.webhook.get(s.claims("held")),
    "a pod": lambda s: s.webhook.get(s.path("pods", "job")),
    "the nodes": lambda s: s.webhook.get("/api/v1/nodes"),
    "the slices": lambda s: s.webhook.get(SLICES),
    "the controller's token": lambda s: token_of(s.webhook, CONTROLLER),
    "all rights": lambda s: all_rights(s.webhook, WEBHOOK),
}
#: Why the server refuses with 422: by a policy of ours, or for a right to a part of a status that is missing. Anything
#: else would be a mistake in the attempt.
REASONS = ("the controller may", "Forbidden: changing status.devices requires")


@pytest.mark.case("C154")
@pytest.mark.parametrize("what", WITH_THE_CONTROLLERS_TOKEN)
def test_with_the_controllers_token_there_is_no_way_to(scene: Scene, what: str) -> None:
    assert_refused(scene, WITH_THE_CONTROLLERS_TOKEN[what])


@pytest.mark.case("C154")
@pytest.mark.parametrize("what", WITH_THE_WEBHOOKS_TOKEN)
def test_with_the_webhooks_token_there_is_no_way_to(scene: Scene, what: str) -> None:
    assert_refused(scene, WITH_THE_WEBHOOKS_TOKEN[what])


def assert_refused(scene: Scene, attempt: Attempt) -> None:
    """Make an attempt, which the API server refuses, and after which everything stands as before."""
    before = scene.belongings()

    with pytest.raises(ApiError) as refusal:
        attempt(scene)

    assert refusal.value.status == 403 or any(why in refusal.value.message for why in REASONS), refusal.value
    assert scene.belongings() == before


def test_the_controller_sets_its_annotation_and_takes_it_away(scene: Scene) -> None:
    for value in ("2026-01-01T00:00:00Z", None):
        touched = on_pod(scene, {"metadata": {"annotations": {TOUCHED: value}}})

        assert touched["metadata"].get("annotations", {}).get(TOUCHED) == value


def test_the_controller_enters_a_resize_in_a_claim_and_takes_it_out(scene: Scene) -> None:
    path = scene.claims("held", "status")

    entered = scene.controller.patch(path, {"status": {"reservedFor": [RESIZE]}})
    left = scene.controller.patch(path, {"status": {"reservedFor": []}})

    assert entered["status"]["reservedFor"] == [RESIZE]
    assert left["status"].get("reservedFor") is None


def test_the_controller_makes_a_growth_and_deletes_it(scene: Scene) -> None:
    assert make_a_claim(scene, **GROWTH)
    assert make_a_pod(scene, "held-grow-00000", **CARRIED)
